"""The controls of the page, and the settings that they set.

A knob has a fixed list of values, and a request with any other value is refused. So no text from the page can reach
code that opens a file.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfeds2.errors import InputError
from perfeds2.spec.fields import SECTIONS, Spec, settings
from perfeds2.spec.line import flag_words
from perfeds2.spec.names import MODES, algorithm_name
from perfeds2.spec.resolve import spec_from
from perfeds2.spec.settings import Setting

Value = Any  # a number or a word
State = Mapping[str, Value]  # value of every knob, by name
Keywords = Mapping[str, object]  # settings by keyword, as ``spec_from`` takes them
Answer = dict[str, Any]  # becomes JSON
MOST_UES = 50


@dataclass(frozen=True)
class Knob:
    """A control of the page."""

    name: str  # of its setting, except for the knobs in ``OURS``
    label: str
    group: str
    values: tuple[Value, ...]
    start: Value
    hint: str = ""
    unit: str = ""
    choice: bool = False  # a drop-down list instead of a slider


def in_order(values: Iterable[Value]) -> tuple[Value, ...]:
    """Return the distinct values: numbers in ascending order, then words in the given order."""
    return tuple(sorted(dict.fromkeys(values), key=lambda each: (1, 0) if isinstance(each, str) else (0, each)))


def _words(keyword: str) -> tuple[str, ...]:
    """Return the names that a setting accepts. Of families of names only ``between:THETA`` has a usual member, its middle."""
    each = setting_of(keyword)
    known = each.words if each.kind is None else each.kind.table()
    members = (name.replace(":THETA", ":0.5") for name in known)
    return tuple(name for name in members if not name.rpartition(":")[2].isupper())


def setting_of(keyword: str) -> Setting:
    return next(each for each in settings() if each.keyword == keyword)


ROUNDS, CELL, RADIO, SHOWN, TRAINING = "Rounds", "Cell", "Radio", "Shown", "Training"
HERTZ = (1e8, 2e8, 3e8, 5e8, 7e8, 1e9, 1.5e9, 2e9, 3e9)
BANDS = (5e4, 1e5, 1.5e5, 2e5, 3e5, 5e5, 7e5, 1e6, 1.5e6, 2e6, 3e6, 5e6, 1e7, 2e7)
STALENESS = (*range(11), 12, 15, 20, 30, 50, "unbounded")
RADII = (10, 20, 50, 100, 150, 200, 300, 500, 1000)
WINDOWS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
QUORUM = "Only the semi-synchronous cell uses it. The synchronous one waits for all UEs, the asynchronous one for one update."
STALE = "restart: begin again with the newest model. wait: keep the round open. ignore: discard the update."
LAYOUT = "disc: evenly over the area. uniform: evenly in distance. equal: all at half the radius."
RADIOS = "paper: Table I, better than any real radio. umi, uma, rma: 3GPP street, rooftop and rural."
CELLS = "Each cell closes its own rounds and exchanges its model with the cloud after each. UEs are divided equally."
SPEED = "Moving UEs walk to random places. In several cells they change to the base station that is 3 dB stronger."
SEED = "Another number gives other positions, processors and fading, the same in all three cells."
OBJECTIVE = "PerFed: the personalised gradient of three batches. FedAvg: the plain gradient."
KNOBS = (
    Knob("quorum", "A: updates that close a round", ROUNDS, tuple(range(1, MOST_UES + 1)), 5, QUORUM),
    Knob("max_staleness", "S: oldest update, in rounds", ROUNDS, STALENESS, 5, "Bound of the semi-synchronous cell."),
    Knob("stale", "Beyond the bound", ROUNDS, _words("stale"), "restart", STALE, choice=True),
    Knob("ues", "UEs", CELL, tuple(range(2, MOST_UES + 1)), 20),
    Knob("cells", "Cells below a cloud", CELL, (1, 2, 3), 1, CELLS),
    Knob("radius_m", "Radius of the cell", CELL, RADII, 200, unit="m"),
    Knob("layout", "UE positions", CELL, _words("layout"), "disc", LAYOUT, choice=True),
    Knob("walk_mps", "Speed of UEs", CELL, (0, 1.4, 10, 30), 0, SPEED, unit="m/s"),
    Knob("slowest_hz", "Slowest processor", CELL, HERTZ, 2e8, unit="Hz"),
    Knob("fastest_hz", "Fastest processor", CELL, HERTZ, 2e9, unit="Hz"),
    Knob("bandwidth_hz", "Bandwidth", RADIO, BANDS, 1e6, "The uplink that all UEs share.", unit="Hz"),
    Knob("bandwidth", "Bandwidth policy", RADIO, _words("bandwidth"), "equal_share", choice=True),
    Knob("radio", "Radio", RADIO, _words("radio"), "paper", RADIOS, choice=True),
    Knob("seed", "Seed of the cell", RADIO, tuple(range(20)), 0, SEED),
    Knob("objective", "What UEs compute", SHOWN, ("PerFed", "FedAvg"), "PerFed", OBJECTIVE, choice=True),
    Knob("window_s", "Seconds shown", SHOWN, WINDOWS, 1, unit="s"),
    Knob("train_s", "Simulated seconds to train", TRAINING, (2, 5, 10, 20, 30), 10, unit="s"),
)
COHERENCE_S = 0.16  # of moving UEs; longer than a real one, so that the page answers at once
OURS = (
    "walk_mps",
    "slowest_hz",
    "fastest_hz",
    "objective",
    "window_s",
    "train_s",
    "seed",
)  # not settings by themselves


# What a setting means that is not given; the page shows rounds that close on the first A arrivals.
OF_NONE = {"radio": "paper", "cells": 1, "bandwidth": "equal_share"}


def knobs_at(flags: Keywords) -> tuple[tuple[Knob, ...], dict[str, object]]:
    """Return the knobs as a command's flags set them, and the other flags, which apply to every simulation.

    Raises:
        InputError: The number of UEs cannot be shown.
    """
    fixed = dict(flags)
    spec = spec_from(**{name: value for name, value in flags.items() if name != "horizon_s"})
    if spec.cell.ues > MOST_UES or spec.cell.ues < 2:
        raise InputError(f"--ues {spec.cell.ues} cannot be shown; the page has 2 to {MOST_UES} UEs.")
    found = {name: _value_in(spec, name) for name in (knob.name for knob in KNOBS) if fixed.pop(name, None) is not None}
    found |= {"ues": spec.cell.ues, "quorum": spec.protocol.quorum}
    if fixed.pop("cpu_hz", None) is not None:
        found["slowest_hz"], found["fastest_hz"] = spec.cell.cpu_hz
    if (horizon_s := fixed.pop("horizon_s", None)) is not None:
        found["window_s"] = spec_from(horizon_s=horizon_s).run.horizon_s or 0.0
    start = {knob.name: knob.start for knob in KNOBS} | found
    knobs = (replace(knob, start=start[knob.name], values=in_order([*knob.values, start[knob.name]])) for knob in KNOBS)
    return tuple(knobs), fixed


def _value_in(spec: Spec, name: str) -> Value:
    """Return a spec's value of a knob's setting."""
    if name == "seed":
        return spec.run.seeds[0]
    each = setting_of(name)
    value = spec.model_dump(mode="json")[each.section][each.key]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_state(given: object, knobs: Sequence[Knob] = KNOBS) -> dict[str, Value]:
    """Validate a request's knobs. Missing knobs have their start value; A is at most the number of UEs of a cell.

    Raises:
        InputError: A knob or its value does not exist.
    """
    if not isinstance(given, Mapping):
        raise InputError("the page must send a table of controls.")
    known = {knob.name: knob for knob in knobs}
    for name, value in given.items():
        if name not in known:
            raise InputError(f"{name!r:.40} is not a control; expected one of {', '.join(known)}.")
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value not in known[name].values:
            raise InputError(f"{name} cannot be {value!r:.40}; expected one of the values that the page offers.")
    state = {name: given.get(name, knob.start) for name, knob in known.items()}
    cells, layout = int(state["cells"]), state["layout"] if state["cells"] == 1 else "disc"
    ues = cells * max(int(state["ues"]) // cells, 1)
    return state | {"ues": ues, "quorum": min(int(state["quorum"]), ues // cells), "layout": layout}


def start_of(knobs: Sequence[Knob]) -> dict[str, Value]:
    return {knob.name: knob.start for knob in knobs}


# ---- from knobs to settings and commands


def settings_at(state: State, horizon_s: float, fixed: Keywords | None = None) -> dict[str, object]:
    """Return keyword arguments for ``compare`` and ``spec_from``, without those that have their default."""
    said: dict[str, object] = {
        name: value for name, value in state.items() if name not in OURS and value != usual(name)
    }
    said |= {"ues": state["ues"], "quorum": state["quorum"]}
    if (cpu_hz := (state["slowest_hz"], state["fastest_hz"])) != usual("cpu_hz"):
        said["cpu_hz"] = list(cpu_hz)
    if state["walk_mps"]:
        said |= {"mobility": "waypoint", "speed_mps": state["walk_mps"], "coherence_s": COHERENCE_S}
    algorithms = [
        algorithm_name(str(state["objective"]), mode) for mode in MODES if mode != "SYN" or not hands_over(state)
    ]
    return (
        {"schedule": "first"}
        | dict(fixed or {})
        | said
        | {"algorithms": algorithms, "seed": state["seed"], "horizon_s": horizon_s}
    )


def hands_over(state: State) -> bool:
    """Return whether UEs change their cell, so that no round can wait for all UEs of one."""
    return bool(state["walk_mps"]) and state["cells"] > 1


def usual(keyword: str) -> object:
    """Return the default of a setting."""
    if keyword in OF_NONE:
        return OF_NONE[keyword]
    each = setting_of(keyword)
    return SECTIONS[each.section].model_fields[each.key].default


def same_again(state: State, fixed: Keywords | None = None) -> dict[str, str]:
    """Return commands and Python code that reproduce the numbers shown and the training."""
    show, train = (settings_at(state, float(state[name]), fixed) for name in ("window_s", "train_s"))
    arguments = ", ".join(f"{name}={value!r}" for name, value in show.items() if name != "horizon_s")
    python = f"""\
from perfeds2 import compare
from perfeds2.studies.compare import simulate_spec
from perfeds2.spec.resolve import spec_from

settings = dict({arguments})
shown = simulate_spec(spec_from(horizon_s={show["horizon_s"]!r}, **settings), 'simulate', None)
for row in shown.summary['algorithms']:
    print(row['algorithm'], row['rounds']['mean'], row['waiting_share']['mean'], row['joules']['mean'])
trained = compare(horizon_s={train["horizon_s"]!r}, **settings)
print(trained.metrics)"""
    return {
        "shown_by": shlex.join(["perfeds2", "simulate", *flag_words(show)]),
        "trained_by": shlex.join(["perfeds2", "compare", *flag_words(train)]),
        "python": python,
    }
