"""How long did a federation take, and how long would the simulator's clock say?"""

from html import escape

import numpy as np

from perfeds2.report.answer import in_words
from perfeds2.report.run import Run
from perfeds2.report.style import ACCURACY, COLOURS, NEUTRAL
from perfeds2.report.tables import Column, Table, seconds
from perfeds2.report.traces import Chart, level, make_layout, rounded


def clocks_hint(run: Run) -> str:
    clocks = run.clocks
    assert clocks is not None
    return (
        f"Real is what was measured. Simulated is the same protocol on the simulator's clock: a device's jobs take, one after the "
        f"other, what they took here (in the median {seconds(clocks.compute_s)} of computing and {seconds(clocks.beyond_s)} of "
        f"everything else), the server takes no time, and every device that ever answered is there from beginning to end."
    )


def clocks_table(run: Run) -> Table:
    """The run, a round, and the way to the target, on both clocks."""
    clocks = run.clocks
    assert clocks is not None
    rounds = [np.diff(times_s, prepend=0.0) for times_s in (clocks.real_s, clocks.simulated_s)]
    rows = [
        ("The whole run", clocks.real_s[-1], clocks.simulated_s[-1]),
        ("A round, median", *(float(np.median(took_s)) for took_s in rounds)),
        ("A round, 90 % are shorter", *(float(np.quantile(took_s, 0.9)) for took_s in rounds)),
    ]
    if (reached := _round_of_target(run)) is not None:
        target = in_words(run, run.target_accuracy or 0)
        rows.append((f"To {target}, after {reached} rounds", *(_closed(times, reached) for times in (clocks.real_s, clocks.simulated_s))))  # fmt: skip
    columns = [Column("", "left"), Column("Real"), Column("Simulated"), Column("Real is longer by")]
    return Table(columns, [[name, seconds(real), seconds(simulated), _longer(real, simulated)] for name, real, simulated in rows])  # fmt: skip


def clocks_line(run: Run) -> str:
    """The same in one line, for the terminal."""
    clocks = run.clocks
    assert clocks is not None
    real_s, simulated_s = (
        float(np.median(np.diff(times, prepend=0.0))) for times in (clocks.real_s, clocks.simulated_s)
    )
    return (
        f"A round took {seconds(real_s)} in the median, {seconds(simulated_s)} on the simulator's clock; the run "
        f"{seconds(clocks.real_s[-1])} and {seconds(clocks.simulated_s[-1])}."
    )


def clocks_chart(run: Run) -> Chart | None:
    """The same accuracies over both clocks."""
    clocks, metrics = run.clocks, run.metrics
    if clocks is None or metrics is None:
        return None
    lines = (("real", clocks.real_s, COLOURS["PerFed"], "solid"), ("simulated", clocks.simulated_s, COLOURS["FedAvg"], "7px,3px"))  # fmt: skip
    at = metrics["round"].to_numpy(int)
    traces = [
        {"type": "scatter", "mode": "lines", "name": name, "y": rounded(run.score.scale * metrics[ACCURACY]),
         "x": rounded(np.concatenate([[0.0], times_s])[at]), "line": {"color": colour, "width": 2, "shape": "hv", "dash": dash},
         "hovertemplate": f"%{{y:{run.score.form}}}{run.score.unit} after %{{x:,.2f}} s<extra>{escape(name)}</extra>"}
        for name, times_s, colour, dash in lines
    ]  # fmt: skip
    layout = make_layout(
        {"title": {"text": "Time (s)"}, "tickformat": ","}, {"title": {"text": run.score.named(ACCURACY)}}
    )
    layout |= {"showlegend": True, "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"}}
    layout["margin"] |= {"t": 30, "l": 56}
    if run.target_accuracy is not None:
        layout["shapes"] = [
            level(run.score.scale * run.target_accuracy, "y", {"color": NEUTRAL, "width": 1, "dash": "2px,3px"})
        ]
    return Chart("clocks", f"Personalised {run.score.word} on both clocks", 330, [{"data": traces, "layout": layout}])


def _round_of_target(run: Run) -> int | None:
    """After how many rounds the target was reached, if it was."""
    if run.metrics is None or run.target_accuracy is None:
        return None
    there = run.metrics[run.metrics[ACCURACY] >= run.target_accuracy]["round"]
    return None if there.empty else int(there.iloc[0])


def _closed(times_s: tuple[float, ...], rounds: int) -> float:
    return times_s[rounds - 1] if rounds else 0.0


def _longer(real_s: float, simulated_s: float) -> str:
    return f"{100 * (real_s / simulated_s - 1):+.1f} %" if simulated_s > 0 else "–"
