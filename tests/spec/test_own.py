"""May a user's own things enter wherever a name is accepted, and are they part of what a run is?"""

import os
import runpy
import textwrap
from dataclasses import replace

import numpy as np
import pytest
from command_line import told, train_here
from in_numpy import train_in_numpy

from perfeds2 import Cell, FedAvg, Learner, PerFed, Protocol, compare, equal_share, plan, sweep
from perfeds2.allocation.bandwidth import equal_finish
from perfeds2.errors import InputError
from perfeds2.runs.folder import open_folder
from perfeds2.runs.notes import notes_of
from perfeds2.spec.build import Algorithm, Stage, fixed_settings, make_algorithms, make_timelines
from perfeds2.spec.cells import make_cell
from perfeds2.spec.names import user_errors
from perfeds2.spec.resolve import read_toml, resolve, spec_from
from perfeds2.spec.tasks import make_task

MINE = """
import jax
import numpy as np
from dataclasses import dataclass
from perfeds2 import Algorithm, Cell, Learner, Objective, PerFed, Protocol
from perfeds2.learning.datasets import TASKS


class FreeSpace(Cell):
    @property
    def mean_signal_hz(self):
        return 1e9 * self.distance_m**-2.0


def two_ues(ues, seed):
    return Cell(np.full(ues, 50.0), np.full(ues, 1e9), seed=seed)


def task(ues, labels_per_ue, seed):
    return TASKS["synthetic"](ues, labels_per_ue, seed + 100)


def policy(uplink):
    return np.where(uplink.bits > 0, uplink.bandwidth_hz / max((uplink.bits > 0).sum(), 1), 0.0)


def nearest_first(cell, quorum, rounds):
    order = np.argsort(cell.distance_m)
    return np.resize(order, (rounds, quorum))


def taking_turns(round_):
    return np.arange(2 * round_, 2 * round_ + 2) % 4


def by_speed(cell):
    return cell.cpu_hz / cell.cpu_hz.sum()


class Plain(Objective):
    def gradient(self, params, start, batches, context):
        return jax.grad(context.loss)(params, jax.tree.map(lambda b: b[0], batches))


def divides(uplink):
    return uplink.bits / uplink.round[0]


def refuses(uplink):
    raise ValueError("no band today.")


def too_short(uplink):
    return uplink.bits[1:]


def forgets_to_return(cell):
    np.argsort(cell.distance_m)


def plans_no_one(cell):
    return lambda round_: [0, 99]


mine = Algorithm("Mine", Learner(PerFed(0.01), batch=4), Protocol(2, 3))


def by_cell(cell, seed):
    return Algorithm("ByCell", Learner(PerFed(0.01), batch=4), Protocol(cell.ues - 1 - seed % 2))
"""
SMALL = {"ues": 4, "quorum": 2, "batch": 4, "rounds": 6, "seeds": [0]}


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(MINE))
    return path


@pytest.mark.usefixtures("file")
def test_each_kind_of_own_thing_is_found_by_its_file_and_called_with_what_it_names():
    spec = spec_from(
        **SMALL,
        task="mine.py:task",
        cell="mine.py:FreeSpace",
        bandwidth="mine.py:policy",
        schedule="mine.py:nearest_first",
        shares="mine.py:by_speed",
        stale="restart",
        algorithms="PerFedS2,mine.py:mine,mine.py:by_cell,mine.py:Plain",
    )
    stage = Stage.of(spec, 1)
    cell = stage.cell
    assert type(cell).__name__ == "FreeSpace"
    assert cell.mean_signal_hz == pytest.approx(1e9 * cell.distance_m**-2.0)
    assert cell.distance_m == pytest.approx(Cell.draw(4, 1).distance_m)  # the rest is the paper's
    ours, own, by_cell, plain = make_algorithms(spec, stage)
    assert [a.name for a in (ours, own, by_cell, plain)] == ["PerFedS2", "Mine", "ByCell", "PlainS2"]
    assert by_cell.protocol.quorum == 2
    assert ours.bandwidth.__name__ == "policy"
    assert plain.learner.beta == spec.learning.beta
    timeline = next(make_timelines(spec, stage, [ours]))
    assert set(timeline.ues[0]) == set(np.argsort(cell.distance_m)[:2])  # the schedule looked at the cell
    assert make_task(spec, 0).name == "synthetic"
    assert spec.own.keys() == {"mine.py"}


@pytest.mark.usefixtures("file")
def test_a_schedule_of_the_round_and_a_cell_of_the_seed():
    spec = spec_from(**SMALL, cell="mine.py:two_ues", schedule="mine.py:taking_turns")
    cell = make_cell(spec, 5)
    assert (cell.seed, cell.ues) == (5, 4)
    spec = spec_from(**SMALL, schedule="mine.py:taking_turns", algorithms="PerFedS2")
    (algorithm,) = make_algorithms(spec, Stage.of(spec, 5))
    assert algorithm.schedule is not None
    assert algorithm.schedule(3).tolist() == [2, 3]


def test_a_spec_with_own_things_reads_back_as_itself_and_notices_a_changed_file(file, tmp_path):
    spec = spec_from(**SMALL, bandwidth="mine.py:policy")
    (tmp_path / "spec.toml").write_text(spec.to_toml())
    assert resolve(read_toml(tmp_path / "spec.toml")) == spec
    file.write_text(MINE + "\n# another file now\n")
    with pytest.raises(InputError, match=r"mine\.py has changed since this spec was written"):
        resolve(read_toml(tmp_path / "spec.toml"))


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"bandwidth": "mine.py:polcy"}, "has no polcy; did you mean policy?"),
        ({"bandwidth": "yours.py:policy"}, "was not found: there is no yours.py in"),
        ({"bandwidth": "no.such.package:policy"}, "cannot be loaded: ModuleNotFoundError"),
        (
            {"bandwidth": "broken.py:policy"},
            "cannot be loaded: ZeroDivisionError: division by zero (broken.py, line 2)",
        ),
        (
            {"task": "mine.py:policy"},
            "--task mine.py:policy has an unknown parameter uplink; available are ues, labels_per_ue",
        ),
        ({"task": "mine.py:by_speed"}, "unknown parameter cell"),
        ({"cell": "mine.py:by_speed"}, "unknown parameter cell"),
        ({"algorithms": "mine.py:mine,mine.py:mine"}, "has Mine twice"),
        ({"algorithms": "mine.py:two_ues"}, "unknown parameter ues"),
        ({"schedule": "mine.py:by_speed"}, "expected rows of 2 UEs"),
        ({"schedule": "mine.py:forgets_to_return"}, "expected rows of 2 UEs (--quorum), got object of shape ()"),
        (
            {"schedule": "mine.py:plans_no_one"},
            "PerFedS2: the schedule plans [ 0 99] for round 0; expected 2 different",
        ),
        ({"schedule": "mine.py:mine"}, "--schedule 'mine.py:mine' is not a schedule; expected a name such as"),
        (
            {"bandwidth": "mine.py:divides"},
            "PerFedS2: TypeError: 'int' object is not subscriptable (mine.py, line 4",
        ),
        ({"bandwidth": "mine.py:refuses"}, "PerFedS2: no band today (mine.py, line 5"),
        (
            {"bandwidth": "mine.py:too_short"},
            "Hz in round 0; expected 4 finite numbers ≥ 0 that sum to at most 1000000 Hz.",
        ),
        ({"bandwidth": "leaves.py:policy"}, "cannot be loaded: SystemExit: 0 (leaves.py, line 1)"),
        (
            {"bandwidth": "unfinished.py:policy"},
            "cannot be loaded: SyntaxError: '(' was never closed (unfinished.py, line 1).",
        ),
        ({"bandwidth": "between:THETA"}, "needs a number as in between:0.5"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(tmp_path, settings, sentence):
    (tmp_path / "broken.py").write_text("\nx = 1 / 0\n")
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "unfinished.py").write_text("policy = (\n")
    with pytest.raises(InputError) as raised:
        compare(**SMALL | {"algorithms": "PerFedS2"} | settings)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_changes_within_a_second_is_read_again(file):
    def theta():
        return spec_from(bandwidth="mine.py:theta").protocol.bandwidth.value()

    for value in "123":
        file.write_text(f"def theta():\n    return {value}\n")
        os.utime(file, (1e9, 1e9))
        assert theta() == int(value)


def test_what_a_package_gives_when_it_is_asked_is_found():
    assert spec_from(bandwidth="perfeds2:equal_share").protocol.bandwidth.value is equal_share


def test_only_what_a_file_binds_once_and_at_its_top_is_written_down(tmp_path, monkeypatch):
    text = """
    def once(uplink): pass
    def twice(uplink): pass
    twice = lambda uplink: None
    for each in (1, 2):
        looped = lambda uplink: None
    if __name__ != "__main__":
        def guarded(uplink): pass
    """
    (tmp_path / "bound_names.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    module = __import__("bound_names")
    given = {name: spec_from(bandwidth=vars(module)[name]) for name in ("once", "twice", "looped", "guarded")}
    assert [name for name, spec in given.items() if not spec.unwritten] == ["once"]
    assert given["once"].protocol.bandwidth.text == "bound_names.py:once"


def test_a_bug_of_ours_is_not_taken_for_the_users():
    def ours():
        raise ValueError("ours")

    ours.__module__ = "perfeds2.allocation.bandwidth"
    with pytest.raises(ValueError, match="ours") as raised, user_errors("--bandwidth", ours, None):
        ours()
    assert not isinstance(raised.value, InputError)
    with pytest.raises(KeyError), user_errors("--bandwidth", "of builtins"):
        raise KeyError("raised in no file of theirs")


@pytest.mark.slow
@pytest.mark.usefixtures("file")
def test_objects_from_python_enter_as_they_are(tmp_path, monkeypatch):
    train_in_numpy(monkeypatch.setattr, traced=True)
    mine = Algorithm("Quick", Learner(PerFed(0.01), batch=4), Protocol(2, 3))
    task = make_task(spec_from(**SMALL, task="synthetic"), 0)
    result = compare(
        task=task,
        cell=lambda seed: Cell.draw(4, seed),
        bandwidth=lambda uplink: np.where(uplink.bits > 0, uplink.bandwidth_hz / 4, 0.0),
        algorithms=["PerFedS2", mine, lambda cell, seed: Algorithm(f"S{seed}", mine.learner, Protocol(cell.ues))],
        batch=4,
        rounds=4,
        seeds=[0],
        out=tmp_path / "run",
    )
    assert [row["algorithm"] for row in result.summary["algorithms"]] == ["PerFedS2", "Quick", "S0"]
    assert result.spec.cell.ues == 4  # the task's
    text = (tmp_path / "run" / "spec.toml").read_text()
    assert "cannot be saved" in text  # the folder says so
    with pytest.raises(InputError, match="was defined interactively and cannot be saved; run it again from Python"):
        resolve(read_toml(tmp_path / "run" / "spec.toml"))  # what --resume does
    with pytest.raises(InputError, match="cannot be saved, so it may differ"):
        open_folder(tmp_path / "run", result.spec)


def test_a_function_of_a_file_is_written_down_as_its_reference():
    spec = spec_from(**SMALL, bandwidth=policy_of_this_file)
    assert spec.protocol.bandwidth.text.endswith("test_own.py:policy_of_this_file")
    assert resolve({**spec.values()}) == spec
    assert spec_from(bandwidth=Cell_policies()["equal_finish"]).protocol.bandwidth.text == "equal_finish"


def policy_of_this_file(uplink):
    return np.where(uplink.bits > 0, uplink.bandwidth_hz / max((uplink.bits > 0).sum(), 1), 0.0)


def Cell_policies():
    from perfeds2.allocation.policies import POLICIES

    return POLICIES


def test_a_task_for_another_number_of_ues_is_refused():
    task = make_task(spec_from(**SMALL, task="synthetic"), 0)
    with pytest.raises(InputError, match="is for 4 UEs, but there are 5"):
        compare(task=task, ues=5, rounds=2, seeds=[0], algorithms=["PerFedS2"])


@pytest.mark.slow
@pytest.mark.usefixtures("file")
def test_a_sweep_takes_own_things_of_a_file_and_what_is_in_no_file(tmp_path, monkeypatch):
    """``test_jobs.py`` takes those of a file to other processes."""
    train_in_numpy(monkeypatch.setattr)
    train_here(monkeypatch)
    base = {**SMALL, "task": "synthetic", "algorithms": ["PerFedS2"]}
    grid = {"bandwidth": ["equal_share", "mine.py:policy"]}
    swept = sweep(base, grid, out=tmp_path / "swept", workers=1)
    assert not swept.failures
    assert swept.summary.bandwidth.tolist() == ["equal_share", "mine.py:policy"]
    ours, own = (rows.time_s.tolist() for _, rows in swept.table.groupby("bandwidth"))
    assert ours == own  # it is the same policy
    (tmp_path / "mine.py").write_text(MINE + "# changed\n")
    with pytest.raises(InputError, match="has changed since"):
        sweep(base, grid, out=tmp_path / "swept")
    here = sweep(base, {"bandwidth": [lambda uplink: policy_of_this_file(uplink)]}, out=tmp_path / "here")
    assert not here.failures
    name = test_a_sweep_takes_own_things_of_a_file_and_what_is_in_no_file.__name__
    assert here.table.bandwidth.unique().tolist() == [f"python:{name}.<locals>.<lambda>"]
    with pytest.raises(InputError, match="was defined interactively and cannot be saved"):
        sweep(base, {"bandwidth": [lambda uplink: policy_of_this_file(uplink)]}, out=tmp_path / "here")


def test_a_file_that_starts_a_sweep_when_a_sweep_loads_it_is_told_so(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "again.py").write_text("from perfeds2 import sweep\nsweep({}, {'seed': [0]}, out='x')\n")
    with pytest.raises(
        InputError,
        match=r"'again\.py:policy' runs sweep when it is loaded; put that behind if __name__ == '__main__'\.$",
    ):
        spec_from(bandwidth="again.py:policy")


@pytest.mark.slow
@pytest.mark.usefixtures("file")
def test_a_plan_is_made_for_an_own_cell_and_task(monkeypatch):
    train_in_numpy(monkeypatch.setattr, traced=True)
    one = {"bits": [32], "local_steps": [1], "stale": ["restart"], "schedule": ["first"], "bandwidth": ["equal_share"]}
    made = plan(
        task="mine.py:task",
        cell="mine.py:FreeSpace",
        ues=4,
        batch=4,
        search=one | {"quorum": [4], "max_staleness": [4]},
        target_accuracy=0.05,
        horizon_s=2,
        seeds=[0],
    )
    assert (made.task, made.population) == ("task", 4)


@pytest.mark.slow
def test_a_finished_comparison_is_given_back_as_it_was(tmp_path, monkeypatch):
    train_in_numpy(monkeypatch.setattr)
    settings = {**SMALL, "task": "synthetic", "algorithms": ["PerFedS2", "FedAvg-SYN"], "out": tmp_path / "run"}
    first, again = compare(**settings), compare(**settings)
    assert again.summary == first.summary
    assert again.metrics.equals(first.metrics)
    assert again.timelines.keys() == first.timelines.keys()
    assert all((again.timelines[each].time_s == first.timelines[each].time_s).all() for each in first.timelines)
    for each, weights in first.models.items():
        assert weights.keys() == again.models[each].keys()
        assert all((weights[name] == again.models[each][name]).all() for name in weights)


@pytest.mark.parametrize("returned", ["[-1.0] * 4", "[1.0]", "[float('nan')] * 4"])
def test_shares_that_are_none_are_refused(tmp_path, monkeypatch, returned):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.py").write_text(f"def shares():\n    return {returned}\n")
    spec = spec_from(**SMALL, shares="some.py:shares", algorithms="PerFedS2")
    with pytest.raises(
        InputError, match=r"--shares some\.py:shares gave .* expected a number from 0 for each of 4 UEs"
    ):
        make_algorithms(spec, Stage.of(spec, 0))


def test_a_script_that_does_not_guard_its_work_is_no_place_to_load_from(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script = "from perfeds2.spec.resolve import spec_from\ndef policy(uplink): pass\n{}print(spec_from(bandwidth=policy).unwritten)"
    for guard, said in (("", "['python:policy']"), ("if __name__ == '__main__': ", "[]")):
        (tmp_path / "script.py").write_text(script.format(guard))
        runpy.run_path("script.py", run_name="__main__")
        assert capsys.readouterr().out.strip() == said


def made(own, **settings):
    spec = spec_from(**{"ues": 6, "rounds": 3, "seeds": [0], **settings}, algorithms=["PerFedS2", own])
    return spec, make_algorithms(spec, Stage.of(spec, 0))[1]


FOLLOWED = {"quorum": 2, "max_staleness": 3, "local_steps": 4, "batch": 8, "beta": 0.02, "bits": 8, "clip": 1.5}


def test_an_own_algorithm_follows_every_setting_that_it_does_not_fix():
    settings = FOLLOWED | {"bandwidth": "equal_finish", "schedule": "round_robin", "alpha": 0.05, "merge": "FedBuff"}
    spec, mine = made(Algorithm("Mine", Learner(FedAvg())), **settings)
    ours = make_algorithms(spec, Stage.of(spec, 0))[0]
    assert replace(mine.learner, objective=ours.learner.objective) == ours.learner
    assert (mine.protocol, mine.bandwidth) == (ours.protocol, ours.bandwidth)
    assert mine.schedule is not None
    assert ours.schedule is not None
    assert [mine.schedule(k).tolist() for k in range(3)] == [ours.schedule(k).tolist() for k in range(3)]
    assert fixed_settings(spec) == {"Mine": []}


def test_what_an_own_algorithm_fixes_stays_and_is_listed():
    own = Algorithm("Mine", Learner(PerFed(0.01), batch=4, local_steps=2), Protocol(5), bandwidth=equal_finish)
    spec, mine = made(own, **FOLLOWED)
    assert (mine.protocol, mine.bandwidth) == (own.protocol, equal_finish)
    assert (mine.learner.batch, mine.learner.local_steps, mine.learner.personal_step) == (4, 2, 0.01)
    assert (mine.learner.beta, mine.learner.clip, mine.learner.bits) == (0.02, 1.5, 8)
    listed = ["--batch 4", "--local-steps 2", "--alpha 0.01", "--quorum 5", "--max-staleness unbounded"]
    assert fixed_settings(spec) == {"Mine": [*listed, "--schedule first"]}


def test_an_own_asynchronous_algorithm_shares_the_band_as_ours_do():
    _, mine = made(Algorithm("Mine", Learner(FedAvg()), Protocol(1)), bandwidth="equal_finish")
    assert mine.bandwidth is equal_share  # erratum 12


@pytest.mark.usefixtures("file")
def test_a_note_lists_what_an_own_algorithm_fixes():
    fixed = "--batch 4, --alpha 0.01, --max-staleness 3, --schedule first, --bandwidth equal_share"
    note = f"Mine fixes {fixed} itself, unlike the other algorithms."
    assert note in notes_of(spec_from(**SMALL | {"batch": 9, "quorum": 2, "algorithms": ["mine.py:mine"]}), {}, None)


@pytest.mark.parametrize(("flag", "what"), [("--algorithms", "an algorithm"), ("--attack", "an attack")])
def test_what_a_name_is_not_has_the_right_article(tmp_path, flag, what):
    (tmp_path / "four.py").write_text("four = 4\n")
    status, _, said = told("compare", flag, f"{tmp_path / 'four.py'}:four", "--out", tmp_path / "run")
    assert status == 2
    assert f" is not {what}; expected" in said
