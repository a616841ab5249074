"""Build the page as one file: live, which asks its server, or canned, which needs none."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.resources import files

from perfeds2.play.knobs import Answer, Keywords, Knob, Value, in_order, same_again, settings_at, start_of
from perfeds2.report.document import data_element, html_page
from perfeds2.spec.fields import TaskSpec

Tell = Callable[[float, str], None]  # called with the progress, from 0 to 1, and the current stage
SCRIPTS = ("draw.js", "curves.js", "play.js")
GRID: dict[str, Sequence[Value]] = {  # the knobs that a canned page can move, and their values
    "quorum": (2, 5, 10, 15),
    "max_staleness": (1, 5, "unbounded"),
    "bandwidth_hz": (2e5, 1e6, 5e6),
}


def served_page(knobs: Sequence[Knob], fixed: Keywords) -> str:
    """Return the page that asks its server. Its content security policy forbids any other connection."""
    return _page(knobs, fixed, None, "connect-src 'self'")


def canned_page(knobs: Sequence[Knob], fixed: Keywords, tell: Tell = lambda *_: None, *, trains: bool = True) -> str:
    """Return a page with the answers for all knob values of the grid, and one training at the start values.

    Args:
        knobs: The knobs of the page.
        fixed: Settings that are not knobs.
        tell: Called with the progress, from 0 to 1, and the current stage.
        trains: Whether to include the training.
    """
    from perfeds2.play.rounds import play_cells
    from perfeds2.play.training import train_in_turns

    start = start_of(knobs)
    grid = {name: in_order([*values, start[name]]) for name, values in GRID.items()}
    grid["quorum"] = tuple(value for value in grid["quorum"] if int(value) <= int(start["ues"]))
    answers: Answer = {}
    every = list(itertools.product(*(range(len(values)) for values in grid.values())))
    for number, places in enumerate(every):
        state = start | {name: values[i] for (name, values), i in zip(grid.items(), places, strict=True)}
        tell(number / len(every) / (1 + trains), "rounds")
        answers[",".join(map(str, places))] = play_cells(state, fixed) | same_again(state, fixed)
    trained, train_s = list[Answer](), float(start["train_s"])
    for row in train_in_turns(settings_at(start, train_s, fixed)) if trains else ():
        trained.append(row)
        tell(0.5 + 0.5 * min(float(str(row["time_s"])) / train_s, 1.0), "training")
    offered = [replace(knob, values=grid[knob.name]) for knob in knobs if knob.name in grid]
    stays = [asdict(knob) | {"values": [knob.start]} for knob in knobs if knob.name not in grid]
    canned: Answer = {"grid": list(grid), "answers": answers, "trained": trained, "stays": stays}
    return _page(offered, fixed, canned, "connect-src 'none'")


def _page(knobs: Sequence[Knob], fixed: Keywords, canned: Answer | None, policy: str) -> str:
    body, style, *scripts = (
        files("perfeds2.play").joinpath(name).read_text(encoding="utf-8")
        for name in ("page.html", "play.css", *SCRIPTS)
    )
    task = str(fixed.get("task", TaskSpec.model_fields["name"].default))
    data = {"knobs": [asdict(knob) for knob in knobs], "task": task, "canned": canned}
    parts = [body, data_element("data", data)]
    return html_page("Play with a cell: perfeds2", parts, ["\n".join(scripts)], policy=policy, style=style)
