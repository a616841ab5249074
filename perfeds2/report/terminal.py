"""What does the terminal show at the end?"""

from typing import Any

from rich.console import Console
from rich.table import Table


def print_summary(summary: dict[str, Any]) -> None:
    """A row per algorithm: means over seeds, ± half the 95 % interval."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=150)
    trained = summary["target_accuracy"] is not None
    limit = (
        f"{summary['rounds']:,} rounds"
        if summary["horizon_s"] is None
        else f"{summary['horizon_s']:g} simulated seconds"
    )
    seeds = len(summary["seeds"])
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("algorithm", no_wrap=True)
    heads = ["rounds", "merges", "staleness\nmean  max"]
    if trained:
        target = f"{summary['target_accuracy']:.0%}"
        heads += [
            f"seconds\nto {target}",
            "train loss\nglobal",
            "train loss\npersonal",
            "test accuracy\nglobal",
            "test accuracy\npersonal",
        ]
    heads += ["UEs\nwait"]
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row in summary["algorithms"]:
        cells = [_mean(row["rounds"], ",.0f"), _mean(row["merges"], ",.0f")]
        cells += [f"{_mean(row['staleness_mean'], '.1f')} {_mean(row['staleness_max'], '.0f'):>4}"]
        if trained:
            cells += [_time(row["time_to_target_s"], seeds)]
            cells += [_with_interval(row[name], ".3f") for name in ("train_loss", "train_loss_personal")]
            cells += [_with_interval(row[name], ".1%") for name in ("test_accuracy", "test_accuracy_personal")]
        cells += [_mean(row["waiting_share"], ".0%")]
        mark = " [red](diverged)[/red]" if row.get("diverged") else ""
        table.add_row(row["algorithm"] + mark, *cells)
    heading = f"{summary['task']}: {summary['ues']} UEs, {limit}, {seeds} seed{'s' if seeds > 1 else ''}"
    meaning = " (mean over seeds ± half of the 95 % interval)" if seeds > 1 else ""
    console.print(f"\n[bold]{heading}[/bold]{meaning}")
    console.print(table)
    for note in summary["notes"]:
        console.print(f"[dim]Note: {note}[/dim]")


def _mean(statistic: dict[str, Any], form: str) -> str:
    return "–" if statistic["mean"] is None else format(statistic["mean"], form)


def _with_interval(statistic: dict[str, Any], form: str) -> str:
    if statistic["mean"] is None or statistic["low"] is None:
        return _mean(statistic, form)
    half = format((statistic["high"] - statistic["low"]) / 2, form).rstrip("%")
    return f"{format(statistic['mean'], form)} ±{half}"


def _time(times: dict[str, Any], seeds: int) -> str:
    """The median over seeds, counting a seed that never got there as later than all."""
    some = "" if times["reached"] == seeds else f" ({times['reached']}/{seeds})"
    return ("never" if times["reached"] == 0 else "–" if times["median"] is None else f"{times['median']:.1f}") + some
