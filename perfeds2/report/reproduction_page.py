"""How do the reproduced figures and the ledger become one page?"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from perfeds2 import __version__
from perfeds2.files import write_text
from perfeds2.paper.claims import Entry, ledger
from perfeds2.paper.figures.figure import Figure
from perfeds2.report.answer import listed
from perfeds2.report.document import document, header, legend, scrolling, section, side_by_side, verbatim
from perfeds2.report.ledger import counts, meaning, page_table, rule
from perfeds2.report.page import over_seeds
from perfeds2.report.reproduction import DrawnPanel, load_panels
from perfeds2.report.style import METRICS
from perfeds2.report.tables import as_html
from perfeds2.report.traces import Chart, curve_chart
from perfeds2.runs.statistics import INTERVAL_SEEDS
from perfeds2.spec.fields import read_toml


def write_page(figures: Sequence[Figure], out: Path, command: str = "perfeds2 reproduce all") -> Path:
    """Write ``reproduction.html`` of the figures whose numbers are in a folder. ``command`` is what made them."""
    path = out / "reproduction.html"
    write_text(path, page(figures, out, ledger(out), command))
    return path


def page(figures: Sequence[Figure], out: Path, entries: Sequence[Entry], command: str) -> str:
    """The whole page: the ledger, the figures, the rule, the commands."""
    found = [(figure, out / f"{figure.name}.csv") for figure in figures]
    drawn = [(figure, load_panels(figure, csv)) for figure, csv in found if csv.exists()]
    charts: list[Chart] = []
    sections = [_header(drawn, entries, _tried(out)), _ledger_section(entries)]
    first = 0  # every line of the page has its own number, so that a figure's legend speaks for that figure alone
    for figure, panels in drawn:
        styles = {label: style for panel in panels for label, style in panel.styles.items()}
        mine = _figure_charts(figure, panels, {label: number for number, label in enumerate(styles, first)})
        sections.append(_figure_section(figure, panels, mine, legend(styles, f"Lines of {figure.name}", first)))
        charts += mine
        first += len(styles)
    sections.append(_commands_section(command, out))
    return document(counts(entries), sections, charts)


def _tried(out: Path) -> str:
    """What the figures in a folder were made with instead of the paper's settings; empty for nothing."""
    path = out / "reproduce.toml"
    changes = read_toml(path).get("changes", {}) if path.exists() else {}
    return ", ".join(
        f"{section}.{key} = {value}" for section, values in changes.items() for key, value in values.items()
    )


def _header(drawn: Sequence[tuple[Figure, list[DrawnPanel]]], entries: Sequence[Entry], changes: str) -> str:
    seeds = sorted({panel.seeds for _, panels in drawn for panel in panels})
    facts = [
        "Section VI again",
        f"{len(drawn)} figure{'s' if len(drawn) != 1 else ''}",
        f"{listed([str(number) for number in seeds])} seed{'' if seeds == [1] else 's'}",
        *([f"instead of the paper's: {changes}"] if changes else []),
        f"perfeds2 {__version__}",
    ]
    return header(facts, counts(entries), f"<p>{_emphasised(rule())}</p>")


def _emphasised(text: str) -> str:
    """Escaped, with what stands between asterisks in italics."""
    parts = escape(text).split("*")
    return "".join(f"<em>{part}</em>" if number % 2 else part for number, part in enumerate(parts))


def _ledger_section(entries: Sequence[Entry]) -> str:
    table = scrolling(as_html(page_table(entries), kind="ledger"), "Claims")
    return section("Does what Section VI says hold?", table, hint=escape(meaning()))


def _figure_charts(figure: Figure, panels: Sequence[DrawnPanel], numbers: dict[str, int]) -> list[Chart]:
    """A chart per panel and metric."""
    return [
        curve_chart(
            part,
            numbers,
            height_px=290,
            name=f"{figure.name}-{place}-{part.metric.replace('_', '-')}",
            title=f"{drawn.panel.title}: {METRICS[part.metric].lower()}",
        )
        for place, drawn in enumerate(panels)
        for part in drawn.parts
        if part.curves
    ]


def _figure_section(figure: Figure, panels: Sequence[DrawnPanel], charts: Sequence[Chart], buttons: str) -> str:
    seeds = max(drawn.seeds for drawn in panels)
    missing = [panel.title for panel in figure.panels if panel.title not in {drawn.panel.title for drawn in panels}]
    note = f'<p class="note">Not run: {escape(listed(missing))}.</p>' if missing else ""
    caption = f"<p>{escape(figure.caption)}</p>"
    hint = f"{over_seeds(seeds, seeds >= INTERVAL_SEEDS)} Click a name to hide it."
    return section(figure.name, note, buttons, side_by_side(charts), name=figure.name, hint=hint, caption=caption)


def _commands_section(command: str, out: Path) -> str:
    hint = (
        "It gives the same numbers again. Interrupted, the same command goes on; what is done is not done twice. The second "
        "line prints the ledger of what is there. Beside this page: every figure as CSV, PDF and PNG, and the ledger as "
        "claims.csv and claims.json."
    )
    return section("Run it again", verbatim(f"{command}\nperfeds2 reproduce --claims --out {out}"), hint=hint)
