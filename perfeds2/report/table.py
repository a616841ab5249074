"""How do the algorithms compare at the end, in numbers?"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape

from perfeds2.report.series import Algorithm, Run
from perfeds2.report.style import DASHES_PX, colour

Best = Callable[[Iterable[float]], float]  # min or max


@dataclass(frozen=True)
class Column:
    head: str
    estimate: str  # its name in summary.json
    form: str
    scale: int = 1
    interval: bool = False  # whether to show its half-width
    best: Best | None = None


TIMING = (
    Column("Rounds", "rounds", ",.0f"),
    Column("Merges", "merges", ",.0f"),
    Column("Staleness, mean", "staleness_mean", ",.2f"),
    Column("Staleness, max", "staleness_max", ",.0f"),
)
LEARNING = (
    Column("Train loss, global", "train_loss", ",.3f", interval=True, best=min),
    Column("Train loss, personal", "train_loss_personal", ",.3f", interval=True, best=min),
    Column("Test accuracy, global (%)", "test_accuracy", ".1f", 100, interval=True, best=max),
    Column("Test accuracy, personal (%)", "test_accuracy_personal", ".1f", 100, interval=True, best=max),
)
WAITING = (Column("UEs wait (% of time)", "waiting_share", ".1f", 100),)


def results_table(run: Run) -> str:
    """The table as HTML: a row per algorithm, with what went wrong under its name."""
    learned = any(LEARNING[-1].estimate in algorithm.estimates for algorithm in run.algorithms)
    timed = learned and run.target_accuracy is not None
    target_head = [f"Time to {100 * run.target_accuracy:.4g} % (s)"] if timed and run.target_accuracy else []
    learning = LEARNING if learned else ()
    heads = ["Algorithm", *_heads(TIMING), *target_head, *_heads(learning), *_heads(WAITING)]
    rows = []
    for algorithm in run.algorithms:
        cells = [
            f'<th scope="row">{line_sample(run, algorithm)} {escape(algorithm.name)}{_warnings(run, algorithm)}</th>'
        ]
        cells += [_cell(run, algorithm, column) for column in TIMING]
        cells += [_target_cell(run, algorithm)] if timed else []
        cells += [_cell(run, algorithm, column) for column in (*learning, *WAITING)]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "\n".join(rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def line_sample(run: Run, algorithm: Algorithm) -> str:
    """An algorithm's line as a small drawing."""
    stroke = colour(algorithm.objective, [a.objective for a in run.algorithms])
    dashes = " ".join(map(str, DASHES_PX.get(algorithm.mode, ())))
    return (
        f'<svg class="line" width="22" height="8" aria-hidden="true"><line x1="0" y1="4" x2="22" y2="4" '
        f'stroke="{stroke}" stroke-width="2.5" stroke-dasharray="{dashes}"/></svg>'
    )


def _heads(columns: Iterable[Column]) -> list[str]:
    return [column.head for column in columns]


def _warnings(run: Run, algorithm: Algorithm) -> str:
    said = []
    starved = algorithm.estimates.get("starved")
    if starved is not None and any(starved.values):
        said.append(f"{starved.mean or 0:.3g} UEs never merged{', on average' if len(run.seeds) > 1 else ''}")
    if algorithm.diverged:
        said.append(f"diverged in {algorithm.diverged} of {len(run.seeds)} seeds")
    return "".join(f'<span class="warn">{text}</span>' for text in said)


def _cell(run: Run, algorithm: Algorithm, column: Column) -> str:
    estimate = algorithm.estimates.get(column.estimate)
    if estimate is None or estimate.mean is None:
        return "<td>–</td>"
    text = format(estimate.mean * column.scale, column.form)
    if column.best is not None and len(run.algorithms) > 1:
        means = [e.mean for a in run.algorithms if (e := a.estimates.get(column.estimate)) and e.mean is not None]
        text = f"<b>{text}</b>" if estimate.mean == column.best(means) else text
    if column.interval and estimate.half_width is not None:
        text += f' <span class="half">± {estimate.half_width * column.scale:{column.form}}</span>'
    return f"<td>{text}</td>"


def _target_cell(run: Run, algorithm: Algorithm) -> str:
    if algorithm.target_median_s is None:
        return "<td>never</td>" if not algorithm.reached else f"<td>{algorithm.reached} of {len(run.seeds)} seeds</td>"
    everywhere = algorithm.reached == len(run.seeds)
    medians = [
        a.target_median_s for a in run.algorithms if a.target_median_s is not None and a.reached == len(run.seeds)
    ]
    text = f"{algorithm.target_median_s:,.1f}"
    if everywhere and len(run.algorithms) > 1 and algorithm.target_median_s == min(medians):
        text = f"<b>{text}</b>"
    return (
        f"<td>{text}</td>"
        if everywhere
        else f'<td>{text} <span class="half">{algorithm.reached} of {len(run.seeds)} seeds</span></td>'
    )
