"""How does a tuning become one page that opens anywhere, offline?"""

import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfeds2 import __version__
from perfeds2.files import write_text
from perfeds2.learning.metrics import Score, score_of
from perfeds2.report.document import Part, document, note, scrolling, section, verbatim
from perfeds2.report.style import COLOURS, LineStyle
from perfeds2.report.tables import Cell, Column, Table, as_html, as_latex, in_latex
from perfeds2.report.traces import Chart, Plot, line_look, make_layout, rounded
from perfeds2.report.tuning import best_table, edge_notes, facts, headline, meaning, numeric, shown

if TYPE_CHECKING:  # it trains, so it needs JAX
    from perfeds2.studies.tune import Best, Tuning

LINE = LineStyle(COLOURS["PerFed"], (), "o")


def write_tuning_page(tuning: "Tuning") -> Path:
    """Write a tuning's ``report.html``. Returns the page's path."""
    write_text(tuning.path / "report.html", page(tuning))
    return tuning.path / "report.html"


def page(tuning: "Tuning") -> str:
    """The whole page."""
    sections = [_found(tuning), _landscapes(tuning), _every(tuning), _adopt(tuning)]
    said = ["tuning", *facts(tuning), f"perfeds2 {__version__}"]
    return document(said, headline(tuning), map(note, edge_notes(tuning)), sections)


def _found(tuning: "Tuning") -> list[Part]:
    table = scrolling(as_html(best_table(tuning, score_first=True), kind="plain"), "Settings found")
    return section("Settings found", table, hint=escape(meaning(tuning)))


def write_tuning_latex(tuning: "Tuning", out: Path) -> Path:
    """``tune.tex``: what was found, for a paper."""
    about = in_latex(f"perfeds2 {__version__} tune, {', '.join(facts(tuning))}. {meaning(tuning)}")
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "tune.tex", f"% {about}\n{as_latex(best_table(tuning))}\n")
    return out / "tune.tex"


# ---- landscapes


def _landscapes(tuning: "Tuning") -> list[Part]:
    means = _means(tuning)
    charts = [chart for place, best in enumerate(tuning.best) if (chart := _landscape(tuning, means, place, best))]
    hint = (
        f"Every setting in its first {tuning.search.horizons_s[0]:.4g} s, the best of the others at each place. Numbers are "
        "those of the last rung, as far as a setting came there; the ring is what was found."
    )
    return section("The landscape", charts, hint=hint) if charts else []


def _means(tuning: "Tuning") -> Any:
    """Of each setting on each rung, the mean over seeds."""
    return tuning.table.groupby(["algorithm", "rung", "number"], as_index=False)["accuracy_mean"].mean()


def _landscape(tuning: "Tuning", means: Any, place: int, best: "Best") -> Chart | None:
    search, score = tuning.search, score_of(tuning.search.metric)
    name, keys = best.algorithm, numeric(tuning.search.axes[best.algorithm])
    settings: Any = pd.DataFrame(search.candidates(name))
    first, last = (means[(means["algorithm"] == name) & (means["rung"] == rung)].join(settings, on="number") for rung in (1, search.rungs))  # fmt: skip
    if not keys or first.empty:
        return None
    plot = _map(score, keys, first, last, best) if len(keys) == 2 else _line(score, keys[0], first, best)
    return Chart(f"landscape-{place}", name, 320, [plot])


def _map(score: Score, keys: list[str], first: Any, last: Any, best: "Best") -> Plot:
    grid = first.pivot_table(index=keys[0], columns=keys[1], values="accuracy_mean", aggfunc="max")
    rows, columns = ([f"{value:g}" for value in axis] for axis in (grid.index, grid.columns))
    through = {(f"{y:g}", f"{x:g}"): value for (y, x), value in last.groupby(keys)["accuracy_mean"].max().items()}
    text = [[shown(score, through.get((y, x))) if (y, x) in through else "" for x in columns] for y in rows]
    z = [rounded(score.scale * line) for line in grid.to_numpy()]
    hover = f"{escape(keys[0])} %{{y}}, {escape(keys[1])} %{{x}}: %{{z:.4g}}{score.unit}<extra></extra>"
    colours: Plot = {"type": "heatmap", "x": columns, "y": rows, "z": z, "text": text, "texttemplate": "%{text}", "colorscale": "Cividis", "hovertemplate": hover, "xgap": 2, "ygap": 2}  # fmt: skip
    colours["colorbar"] = {"thickness": 10, "outlinewidth": 0, "title": {"text": escape(score.head), "side": "right"}}
    at = {"x": [f"{best.settings[keys[1]]:g}"], "y": [f"{best.settings[keys[0]]:g}"]}
    ring: Plot = {"type": "scatter", "mode": "markers", **at, "hoverinfo": "skip", "showlegend": False}
    ring["marker"] = {"symbol": "circle-open", "size": 38, "color": "#ffffff", "line": {"width": 2.5}}
    layout = make_layout({"title": {"text": escape(keys[1])}, "type": "category"}, {"title": {"text": escape(keys[0])}, "type": "category"}, hovermode="closest")  # fmt: skip
    layout["margin"] |= {"l": 64}
    return {"data": [colours, ring], "layout": layout}


def _line(score: Score, key: str, first: Any, best: "Best") -> Plot:
    values = first.groupby(key)["accuracy_mean"].max()
    x, y = [f"{value:g}" for value in values.index], rounded(score.scale * values.to_numpy())
    line = {"type": "scatter", "x": x, "y": y, "showlegend": False, **line_look(LINE)}
    line |= {"hovertemplate": f"{escape(key)} %{{x}}: %{{y:.4g}}{score.unit}<extra></extra>"}
    found = f"{best.settings[key]:g}"
    ring: Plot = {"type": "scatter", "mode": "markers", "x": [found], "y": [y[x.index(found)]], "hoverinfo": "skip"}
    ring |= {"showlegend": False, "marker": {"symbol": "circle-open", "size": 18, "line": {"width": 2}}}
    layout = make_layout({"title": {"text": escape(key)}, "type": "category"}, {"title": {"text": escape(score.head)}}, hovermode="closest")  # fmt: skip
    return {"data": [line, ring], "layout": layout}


# ---- the rest


def _every(tuning: "Tuning") -> list[Part]:
    """A row per algorithm and setting, best first: how good it was on each rung it came to."""
    search, score, means = tuning.search, score_of(tuning.search.metric), _means(tuning)
    rows: list[list[Cell]] = []
    for name in search.axes:
        own = means[means["algorithm"] == name].pivot_table(index="number", columns="rung", values="accuracy_mean")
        rungs = [own.get(rung + 1, pd.Series(dtype=float)) for rung in range(search.rungs)]
        for number in sorted(own.index, key=lambda each: [-(r.get(each, 0.0) or 0.0) for r in reversed(rungs)]):
            settings = search.candidates(name)[int(number)]
            said = ", ".join(f"{key} {_value(value)}" for key, value in settings.items())
            reached = [shown(score, value) if (value := rung.get(number)) == value and value is not None else "–" for rung in rungs]  # fmt: skip
            rows.append([name, said, *reached])
    heads = [Column(f"{score.head} in {horizon_s:.4g} s") for horizon_s in search.horizons_s]
    table = Table([Column("Algorithm", "left", wraps=True), Column("Settings", "left", wraps=True), *heads], rows)
    hint = f"The better third of a rung goes on for three times as long. {len(rows)} settings, best first."
    return section("Everything that was tried", scrolling(as_html(table), "Everything that was tried"), hint=hint)


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else json.dumps(value)


def _adopt(tuning: "Tuning") -> list[Part]:
    spec = tuning.path / "tuned.toml"
    text = [verbatim(spec.read_text(encoding="utf-8"))] if spec.exists() else []
    hint = "In this folder. tuned.toml has what was found for each algorithm:"
    return section("Adopt it", verbatim("perfeds2 compare --spec tuned.toml --out compared"), *text, hint=hint)
