"""How do the algorithms compare at the end, in numbers?"""

from typing import Any

from rich.table import Table

from perfeds2.report.terminal import console as open_console


def print_summary(summary: dict[str, Any]) -> None:
    """A row per algorithm: means over seeds, ± half the 95 % interval. Two tables where one would be too wide."""
    console = open_console()
    limit = (
        f"{summary['rounds']:,} rounds"
        if summary["horizon_s"] is None
        else f"{summary['horizon_s']:g} simulated seconds"
    )
    seeds = len(summary["seeds"])
    heading = f"{summary['task']}: {summary['ues']} UEs, {limit}, {seeds} seed{'s' if seeds > 1 else ''}"
    meaning = " (mean over seeds ± half of the 95 % interval)" if seeds > 1 else ""
    console.print(f"\n[bold]{heading}[/bold]{meaning}")
    columns = _columns(summary)
    timing, learning, waiting = columns[:3], columns[3:-1], columns[-1:]
    narrow = bool(learning) and console.width < WIDE
    for shown in [timing + waiting, learning] if narrow else [columns]:
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("algorithm", no_wrap=True)
        for head, _ in shown:
            table.add_column(head, justify="right", no_wrap=True)
        for number, row in enumerate(summary["algorithms"]):
            some = f" ({row['diverged']} of {seeds})" if row.get("diverged") and seeds > 1 else ""
            mark = f" [red]diverged{some}[/red]" if row.get("diverged") else ""
            table.add_row(row["algorithm"] + mark, *(cells[number] for _, cells in shown))
        console.print(table)
    for note in summary["notes"]:
        console.print(f"[dim]Note: {note}[/dim]")


WIDE = 116  # what the whole table needs


def _columns(summary: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Every column: its head, and a cell per algorithm. Three of timing, those of learning, then waiting."""
    rows, seeds = summary["algorithms"], len(summary["seeds"])
    columns = [
        ("rounds", [_mean(row["rounds"], ",.0f") for row in rows]),
        ("merges", [_mean(row["merges"], ",.0f") for row in rows]),
        (
            "staleness\nmean  max",
            [f"{_mean(row['staleness_mean'], '.1f')} {_mean(row['staleness_max'], '.0f'):>4}" for row in rows],
        ),
    ]
    if summary["target_accuracy"] is not None:
        columns.append(
            (f"seconds\nto {summary['target_accuracy']:.0%}", [_time(row["time_to_target_s"], seeds) for row in rows])
        )
        for name, head, form in (
            ("train_loss", "train loss\nglobal", ".3f"),
            ("train_loss_personal", "train loss\npersonal", ".3f"),
            ("test_accuracy", "test accuracy\nglobal", ".1%"),
            ("test_accuracy_personal", "test accuracy\npersonal", ".1%"),
        ):
            columns.append((head, [_with_interval(row[name], form) for row in rows]))
    columns.append(("UEs\nwait", [_mean(row["waiting_share"], ".0%") for row in rows]))
    return columns


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
