"""Does the line to type say what the spec says?"""

import shlex

import pytest
from command_line import commands

from perfeds2.commands.common import nested_values, take_settings
from perfeds2.commands.run import DEFAULTS
from perfeds2.spec.line import command_line
from perfeds2.spec.resolve import resolve, spec_from


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ues": 50, "quorum": 12, "max_staleness": "unbounded", "bits": 8, "seeds": 5, "horizon_s": 12.5},
        {"radio": "umi", "power_w": 0.2, "schedule": "deficit", "bandwidth": "equal_finish", "seeds": [3, 7]},
        {"beta": 0.05, "PerFedS2.beta": 0.02, "PerFedS2.local_steps": 4, "split": "dirichlet:0.5", "seeds": [3]},
        {"task": "synthetic", "cpu_hz": [1e9, 2e9], "held_out": True, "energy": "lte", "algorithms": ["FedBuff"]},
        {"ues": 3, "distance_m": [10.0, 20.5, 30.0], "shares": [0.5, 0.3, 0.2], "rounds": 20},
    ],
)
def test_what_is_typed_is_what_was_meant(settings):
    spec = spec_from(**{"algorithms": ["PerFedS2"], **settings})
    line = command_line("run", spec, DEFAULTS)
    program, name, *words = shlex.split(line)
    assert (program, name) == ("perfeds2", "run")
    command = commands()
    context = command.make_context("perfeds2", [name, *words])
    _, command, words = command.resolve_command(context, [name, *words])  # pyright: ignore[reportAttributeAccessIssue] (a group)
    given = command.make_context(name, words, parent=context).params
    file, assignments, flags = take_settings(given)
    assert resolve(nested_values(file, flags, assignments, DEFAULTS)) == spec


def test_what_goes_without_saying_is_not_said():
    spec = spec_from(ues=30, quorum=7, algorithms=["PerFedS2"], seeds=[0])
    assert command_line("run", spec, DEFAULTS) == "perfeds2 run --ues 30 --quorum 7"
    longer = spec_from(horizon_s=12, algorithms=["PerFedS2"], seeds=[0])
    assert command_line("run", longer, DEFAULTS) == "perfeds2 run --horizon-s 12.0"  # looks follow from it


def test_the_quorum_of_a_cell_is_written_where_it_is_not_the_default_of_its_ues():
    """Of 8 UEs a round closes on 2 by default, of the 4 in each of two cells on 1."""
    for cells, quorum, said in ((1, 2, False), (2, 1, False), (2, 2, True)):
        spec = spec_from(ues=8, cells=cells, quorum=quorum)
        assert ("--quorum" in command_line("run", spec, {})) == said
