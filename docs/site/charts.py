"""Draw the bar charts of the reports: python docs/site/charts.py [NAME ...], all or some.

A chart reads its numbers from the table of its page, so no number is typed twice.
"""

import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pictures import WIDTH, bar, drawing, line, text

REPORTS = Path(__file__).parents[1] / "reports"
FOLDER = Path(__file__).parents[1] / "images" / "charts"
NUMBER = re.compile(r"\d[\d,]*\.?\d*")
NAMES, ROW, THICK, ROOM = 250, 24, 15, 60  # pixels: width of names, height of a row and of a bar, space for a value
OURS, THEIRS = "#0072B2", "#8A939E"


@dataclass(frozen=True)
class Value:
    """One bar of a chart."""

    name: str
    number: float
    shown: str  # as in the table, with its unit
    is_ours: bool = True
    target: float | None = None


def rows(page: str, header: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the page's table with the given header."""
    lines = iter((REPORTS / page).read_text(encoding="utf-8").splitlines())
    for each in lines:
        if each.startswith(header):
            next(lines)
            break
    for each in lines:
        if not each.startswith("|"):
            return
        yield [cell.strip() for cell in each.strip("|").split("|")]


def number(cell: str) -> float:
    """Return the first number in a cell."""
    found = NUMBER.search(cell)
    assert found, cell
    return float(found[0].replace(",", ""))


def peers() -> str:
    found = []
    for name, rate, *_ in rows("peers.md", "| | rounds/s | rounds per CPU second |"):
        if "1 thread" not in name:
            found.append(Value(name, number(rate), NUMBER.findall(rate)[0], name.startswith("perfeds2")))
    return bars("Rounds per second, 2 ARM cores (logarithmic)", found, floor=1.0)


def performance() -> str:
    found = []
    for name, measured, target in rows("performance.md", "| what | measured | target |"):
        if "× as fast" not in measured:
            continue
        start, _, last = name.removeprefix("… against ").rpartition(", ")
        cases = last.split(" / ") if start else [""]
        goal = number(target) if "≥" in target else None
        for case, ratio in zip(cases, NUMBER.findall(measured), strict=True):
            label = f"{start}, {case}" if start else last
            found.append(
                Value(label.replace("one constraint per UE", "loop"), number(ratio), f"{ratio} ×", target=goal)
            )
    return bars("Times as fast as … (logarithmic; | is the target)", found, floor=0.5)


def federation() -> str:
    found = []
    for name, _, seconds, *_ in rows("federation.md", "| | round: median, p90 | 180 updates merged after |"):
        found.append(Value(name, number(seconds), seconds, name.startswith("semi")))
    return bars("Seconds until 180 updates are merged; one of six devices is ten times slower", found)


def reliability() -> str:
    names = ("kills of commands", "hostile inputs")
    counts = [what for _, what, _ in rows("reliability.md", "| command | what | CPU |")]
    found = [Value(name, number(count), NUMBER.findall(count)[0]) for name, count in zip(names, counts, strict=False)]
    heading = next(each for each in (REPORTS / "federation.md").read_text("utf-8").splitlines() if "kills" in each[:12])
    found.append(Value("kills in a federation", number(heading), NUMBER.findall(heading)[0]))
    return bars("Tried in tests, without a lost or wrong result (logarithmic)", found, floor=1.0)


def attacks() -> str:
    table = rows("attacks.md", "| merge | one of 6, 2 labels: clean |")
    found = [Value(name, number(kept), f"{number(kept):g}", name == "trimmed-mean") for name, _, kept, *_ in table]
    return bars("Kept of the clean accuracy with one hostile UE of six, in percent", found)


def edges() -> str:
    table = rows("edges.md", "| edge, cloud | equal cells, free backhaul |")
    found = [Value(name, number(ratio), ratio.split(" ")[0], name.startswith("semi"), 1.0) for name, ratio, *_ in table]
    return bars("Seconds to 80 % divided by those of sync, sync (edge, cloud)", found)


def schedules() -> str:
    table = rows("schedules.md", "| `--schedule` | seconds to 95 % |")
    found = [
        Value(name.strip("`"), number(accuracy), accuracy, seconds != "never") for name, seconds, accuracy, _ in table
    ]
    return bars("Personalised accuracy after 30 s, in percent (grey: 95 % never reached)", found)


def nearest() -> str:
    found = []
    for name, _, seconds, *_ in rows("nearest.md", "| method | β | seconds to"):
        found.append(Value(name, number(seconds), seconds, name in ("SEAFL", "FedCompass")))
    return bars("Simulated seconds until the global model classifies 90 % of MNIST correctly", found)


def real_links() -> str:
    links = ("paper", "umi, Shannon", "umi, CQI", "umi, CQI, HARQ")
    accuracies = {name: cells for name, *cells in rows("real-links.md", "| accuracy at the end (%) |")}
    found = []
    for place, link in enumerate(links):
        for name in ("PerFedS2", "PerFed-SYN", "PerFed-ASY"):
            cell = accuracies[name][place]
            found.append(Value(f"{name}, {link}", number(cell), cell, name == "PerFedS2"))
    return bars("Personalised accuracy after 30 s, in percent", found)


def plans() -> str:
    names = ("of the best of all", "of the best whose neighbours hold")
    *_, last = rows("plans.md", "| `python benchmarks/plan_bet.py …` | within")
    found = [Value(name, number(cell), cell.split(" (")[0]) for name, cell in zip(names, last[1:3], strict=True)]
    return bars("Cells of ten in which a plan is within 15 %", found)


def pfllib() -> str:
    found = []
    for name, published, accuracy, _ in rows("pfllib.md", "| pathological | PFLlib"):
        found.append(Value(f"{name}, here", number(accuracy), accuracy))
        if published:
            found.append(Value(f"{name}, PFLlib", number(published), published, is_ours=False))
    return bars("Accuracy on the pathological split, in percent", found)


def bars(title: str, values: Sequence[Value], floor: float | None = None) -> str:
    """Draw horizontal bars, on a logarithmic axis from ``floor`` if it is given."""
    most = max(max(each.number, each.target or 0) for each in values)

    def place(amount: float) -> float:
        share = amount / most if floor is None else math.log(amount / floor) / math.log(most / floor)
        return NAMES + share * (WIDTH - NAMES - ROOM)

    parts = [text(8, 14, title, "strong")]
    for index, each in enumerate(values):
        top = 26 + index * ROW
        parts += [
            text(NAMES - 8, top + 12, each.name, anchor="end"),
            bar(NAMES, top, place(each.number) - NAMES, THICK, OURS if each.is_ours else THEIRS),
            text(place(each.number) + 5, top + 12, each.shown),
        ]
        if each.target is not None:
            parts.append(line([(place(each.target), top - 3), (place(each.target), top + THICK + 3)], "lost"))
    return drawing(30 + len(values) * ROW, parts, f"{title}: {', '.join(f'{v.name} {v.shown}' for v in values)}.")


CHARTS: dict[str, Callable[[], str]] = {
    "peers": peers,
    "performance": performance,
    "pfllib": pfllib,
    "federation": federation,
    "reliability": reliability,
    "attacks": attacks,
    "edges": edges,
    "schedules": schedules,
    "nearest": nearest,
    "plans": plans,
    "real_links": real_links,
}


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in CHARTS]
    if unknown:
        print(f"unknown chart {unknown[0]}; choose from {', '.join(CHARTS)}.", file=sys.stderr)
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names or CHARTS:
        (FOLDER / f"{name}.svg").write_text(CHARTS[name](), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
