"""How far is a sweep, and what came out of it? On the terminal, and as one chart."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from perfeds2.runs.crew import Failed
from perfeds2.runs.sweep import Failure, Standing, Sweep
from perfeds2.spec.fields import ALGORITHMS

if TYPE_CHECKING:
    import pandas as pd

SHOWN_WORKERS = 16
SHOWN_ROWS = 60
LINE_EVERY_S = 2.0


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[Standing], None] | None]:
    """A table on stderr that keeps up; plain lines where there is no terminal."""
    console = Console(stderr=True)
    if quiet:
        yield None
    elif console.is_terminal:
        board = _Board()
        with Live(get_renderable=board.draw, console=console, transient=True, refresh_per_second=4):
            yield board.take
    else:
        yield _lines(lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True))


def _lines(say: Callable[[str], None]) -> Callable[[Standing], None]:
    said_s, said = time.monotonic(), 0

    def watch(now: Standing) -> None:
        nonlocal said_s, said
        if isinstance(now.event, Failed):
            say(f"{now.event.job.label}: {now.event.error}")
        over = now.done + now.failed == now.total
        if (over or time.monotonic() - said_s > LINE_EVERY_S) and now.done + now.failed != said:
            say(_heading(now))
            said_s, said = time.monotonic(), now.done + now.failed

    return watch


class _Board:
    """The latest standing. Its clock goes on while nothing happens."""

    def __init__(self) -> None:
        self._latest: Standing | None = None
        self._since_s = time.monotonic()

    def take(self, now: Standing) -> None:
        self._latest, self._since_s = now, time.monotonic()

    def draw(self) -> Group:
        if self._latest is None:
            return Group("starting …")
        elapsed_s = self._latest.elapsed_s + time.monotonic() - self._since_s
        now = replace(self._latest, elapsed_s=elapsed_s)
        return Group(Text(_heading(now), style="bold"), _workers_table(now))


def _workers_table(now: Standing) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in ("worker", "at", "done"):
        table.add_column(head, justify="left" if head == "at" else "right", no_wrap=True)
    for worker, (label, share) in sorted(now.workers.items())[:SHOWN_WORKERS]:
        table.add_row(str(worker), label, f"{share:.0%}")
    if len(now.workers) > SHOWN_WORKERS:
        table.add_row("…", f"and {len(now.workers) - SHOWN_WORKERS} more", "")
    return table


def _heading(now: Standing) -> str:
    parts = [f"{now.done:,} of {now.total:,} runs done", f"{len(now.workers)} running"]
    parts += [f"{now.failed:,} failed"] if now.failed else []
    parts += [f"{now.retried:,} tried again"] if now.retried else []
    parts += [f"{_clock(now.elapsed_s)} so far"]
    parts += [f"about {_clock(now.left_s)} left"] if now.left_s else []
    return ", ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def print_sweep(sweep: Sweep) -> None:
    """A row per point and algorithm, and what failed."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=150)
    summary = sweep.summary
    axes = [axis.name for axis in sweep.grid.axes]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in axes:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("algorithm", no_wrap=True)
    for head in ("seeds", "seconds\nto target", "train loss\npersonal", "test accuracy\npersonal", "rounds"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in summary.head(SHOWN_ROWS).to_dict("records"):
        mark = " [red](diverged)[/red]" if row["diverged"] else ""
        table.add_row(
            *(_value(row[name]) for name in axes),
            f"{row['algorithm']}{mark}",
            str(row["seeds"]),
            _seconds(row),
            _with_interval(row, "train_loss_personal", ".3f"),
            _with_interval(row, "test_accuracy_personal", ".1%"),
            f"{row['rounds_mean']:,.0f}",
        )
    if len(summary):
        console.print(table)
    if len(summary) > SHOWN_ROWS:
        console.print(f"… and {len(summary) - SHOWN_ROWS:,} more rows, in {sweep.path / 'sweep_summary.csv'}")
    print_failures(sweep.failures)


def print_failures(failures: Sequence[Failure]) -> None:
    """Which runs were given up, and why; on stderr, so also where all else is quiet."""
    if not failures:
        return
    table = Table(box=None, header_style="bold", pad_edge=False, title="Failed", title_justify="left")
    for head in ("run", "attempts", "error"):
        table.add_column(head)
    for failure in failures[:SHOWN_ROWS]:
        table.add_row(failure.label, str(failure.attempts), failure.error)
    if len(failures) > SHOWN_ROWS:
        table.add_row("…", "", f"and {len(failures) - SHOWN_ROWS:,} more, in failed.csv")
    console = Console(stderr=True, highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(stderr=True, highlight=False, markup=False, width=150)
    console.print(table)


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _seconds(row: dict[str, Any]) -> str:
    """The median over seeds, counting a seed that never got there as later than all."""
    reached, seeds, median = row["seeds"] - row["censored"], row["seeds"], row["time_to_target_s_median"]
    some = "" if reached == seeds else f" ({reached}/{seeds})"
    return ("never" if reached == 0 else "–" if median != median else f"{median:.1f}") + some


def _with_interval(row: dict[str, Any], name: str, form: str) -> str:
    mean, low, high = (row[f"{name}_{part}"] for part in ("mean", "low", "high"))
    if mean != mean:  # no number: a seed diverged
        return "–"
    if low != low:
        return format(mean, form)
    return f"{format(mean, form)} ±{format((high - low) / 2, form).rstrip('%')}"


def write_chart(sweep: Sweep) -> list[Path]:
    """Final accuracy and time to target against the first axis, as sweep.png and sweep.pdf. Returns what was written.

    A line per algorithm and combination of the other axes; intervals are 95 % over seeds. Nothing for a grid without axes.
    """
    summary, axes = sweep.summary, [axis.name for axis in sweep.grid.axes]
    if not axes or summary.empty or len(_lines_of(summary, axes)) > 12:  # more lines than a reader can tell apart
        return []
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from perfeds2.files import write_atomically
    from perfeds2.report.paper import STYLE, WIDTH_IN

    written = []
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever the reader has in a matplotlibrc
        mpl.rcParams.update(STYLE)
        figure = Figure(figsize=(WIDTH_IN, 3.8), layout="constrained")
        _draw(figure, summary, axes)
        for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
            path = sweep.path / f"sweep.{kind}"
            with write_atomically(path) as file:
                figure.savefig(file, format=kind, metadata=metadata)  # no clock in the bytes
            written.append(path)
    return written


def _lines_of(summary: "pd.DataFrame", axes: Sequence[str]) -> "dict[str, pd.DataFrame]":
    """The rows of each line of the chart, by its label."""
    keys = ["algorithm", *axes[1:]]
    lines: dict[str, Any] = {}
    for _, rows in summary.groupby(keys, sort=False):
        algorithm, *others = rows[keys].iloc[0]
        label = [algorithm, *(f"{name}={_value(value)}" for name, value in zip(axes[1:], others, strict=True))]
        lines[", ".join(label)] = rows
    return lines


def _draw(figure: Any, summary: "pd.DataFrame", axes: Sequence[str]) -> None:
    from perfeds2.report.style import DASHES_PX, METRICS, SPARE_COLOURS, colour

    reached = bool(summary["time_to_target_s_median"].notna().any())  # else there is no second panel to draw
    panels = figure.subplots(1 + reached, sharex=True, squeeze=False)[:, 0]
    accuracy, bottom = panels[0], panels[-1]
    values = list(dict.fromkeys(summary[axes[0]]))
    numbers = all(isinstance(value, int | float) for value in values)
    place = {value: value if numbers else number for number, value in enumerate(values)}
    lines = _lines_of(summary, axes)
    for number, (label, rows) in enumerate(lines.items()):
        objective, mode = ALGORITHMS[rows["algorithm"].iloc[0]]
        tint = colour(objective, list({o for o, _ in ALGORITHMS.values()}))
        if len(axes) > 1:  # the other axes need colours of their own
            tint = (tint, *SPARE_COLOURS, "#CC79A7", "#0072B2")[number % 6]
        dash = tuple(px / 2 for px in DASHES_PX.get(mode, ()))
        at = [place[value] for value in rows[axes[0]]]
        look: dict[str, Any] = {"color": tint, "linestyle": (0, dash) if dash else "solid", "marker": "o", "ms": 2.5}
        for panel, name, scale in zip(panels, ("test_accuracy_personal", "time_to_target_s"), (100, 1), strict=False):
            middle = rows["time_to_target_s_median"] if name == "time_to_target_s" else scale * rows[f"{name}_mean"]
            panel.plot(at, middle, label=label, **look)
            low, high = (scale * rows[f"{name}_{end}"] for end in ("low", "high"))
            panel.vlines(at, low, high, color=tint, linewidth=0.7, alpha=0.6)
    if numbers and min(values) > 0 and max(values) >= 10 * min(values):
        bottom.set_xscale("log")
    if numbers and len(values) <= 8:
        bottom.set_xticks(values, [_value(value) for value in values], minor=False)
        bottom.minorticks_off()
    elif not numbers:
        bottom.set_xticks(range(len(values)), [str(value) for value in values])
    accuracy.set_ylim(max(0.0, accuracy.get_ylim()[0]), min(100.0, accuracy.get_ylim()[1]))
    accuracy.set_ylabel(METRICS["test_accuracy_personal"])
    if reached:
        targets = sorted({f"{100 * value:g}" for value in summary["target_accuracy"]})
        bottom.set_ylabel(f"Seconds to {' or '.join(targets)} %, median")
        bottom.set_ylim(bottom=0)
    bottom.set_xlabel(axes[0])
    figure.legend(
        *accuracy.get_legend_handles_labels(), loc="outside upper center", ncols=2 if len(axes) > 1 else 3,
        handlelength=2.4, columnspacing=1.0, borderpad=0.1, labelspacing=0.3,
    )  # fmt: skip
