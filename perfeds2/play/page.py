"""How does the page become one file: live, asking its server, or canned, for a talk without one?

Style, scripts and data are inside it. Its own rules (Content-Security-Policy) let it run only the scripts written here,
and load nothing; the live one may ask its own server, and no other.
"""

import base64
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from perfeds2.files import write_text
from perfeds2.play.knobs import Knob, same_again, settings_at, start_of
from perfeds2.spec.fields import TaskSpec

Tell = Callable[[float, str], None]  # hears how far it is, and with what
SCRIPTS = ("draw.js", "curves.js", "play.js")
GRID: dict[str, Sequence[Any]] = {  # what can be moved on a canned page
    "quorum": (2, 5, 10, 15),
    "max_staleness": (1, 5, "unbounded"),
    "bandwidth_hz": (2e5, 1e6, 5e6),
}


def live_page(knobs: Sequence[Knob], fixed: Mapping[str, Any]) -> str:
    """The page that asks its server."""
    known = {"knobs": [asdict(knob) for knob in knobs], "task": _task(fixed), "canned": None}
    return _page(known, "connect-src 'self'")


def write_canned(path: Path, knobs: Sequence[Knob], fixed: Mapping[str, Any], tell: Tell | None = None) -> None:
    """The page with all its answers inside, for the knobs of the grid; one training, with the knobs where they begin."""
    write_text(path, canned_page(knobs, fixed, tell))


def canned_page(
    knobs: Sequence[Knob], fixed: Mapping[str, Any], tell: Tell | None = None, *, trains: bool = True
) -> str:
    """The text of it."""
    from perfeds2.play.rounds import play_cells, without_nan
    from perfeds2.play.training import train_in_turns

    start = start_of(knobs)
    grid = {name: _offered(name, start) for name in GRID}
    answers: dict[str, Any] = {}
    every = list(itertools.product(*(range(len(values)) for values in grid.values())))
    for number, places in enumerate(every):
        state = start | {name: values[i] for (name, values), i in zip(grid.items(), places, strict=True)}
        if tell is not None:
            tell(number / len(every) / (1 + trains), "rounds")
        answers[",".join(map(str, places))] = without_nan(play_cells(state, fixed)) | same_again(state, fixed)
    trained = list[Any]()
    if trains:
        settings = settings_at(start, float(start["train_s"]), fixed)
        for row in train_in_turns(settings):
            trained.append(row)
            if tell is not None:
                tell(0.5 + 0.5 * min(row["time_s"] / float(start["train_s"]), 1.0), "training")
    offered = [replace(knob, values=tuple(grid[knob.name])) for knob in knobs if knob.name in grid]
    stays = [asdict(knob) | {"values": [knob.start]} for knob in knobs if knob.name not in grid]
    canned = {"grid": list(grid), "answers": answers, "trained": trained, "stays": stays}
    known = {"knobs": [asdict(knob) for knob in offered], "task": _task(fixed), "canned": canned}
    return _page(known, "connect-src 'none'")


def _task(fixed: Mapping[str, Any]) -> str:
    return str(fixed.get("task", TaskSpec.model_fields["name"].default))


def _offered(name: str, start: Mapping[str, Any]) -> list[Any]:
    """What a canned knob can be: the grid's, and where it begins."""
    values = {value for value in GRID[name] if name != "quorum" or value <= start["ues"]} | {start[name]}
    return sorted(values, key=lambda value: (isinstance(value, str), value if not isinstance(value, str) else 0))


def _page(data: Mapping[str, Any], connect: str) -> str:
    own, house = files("perfeds2.play"), files("perfeds2.report")
    script = "\n".join(own.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; {connect}; script-src 'sha256-{digest}'"
    style = "\n".join(
        folder.joinpath(name).read_text(encoding="utf-8") for folder, name in ((house, "page.css"), (own, "play.css"))
    )
    # In a script element only "<" can end the data early, and JSON may write it as an escape.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    page = own.joinpath("page.html").read_text(encoding="utf-8")
    for place, what in (("@policy@", policy), ("@style@", style), ("@data@", text), ("@script@", script)):
        page = page.replace(place, what)
    return page
