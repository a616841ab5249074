"""Draw the pictures of docs/explanation/concepts.md: python docs/site/pictures.py [NAME ...], all or some.

The clock, the policies and the losses compute what is drawn, on a cell of four UEs that is small enough to follow by
eye. A picture is a few kilobytes of SVG and follows the light or dark mode of the screen.
"""

import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from perfeds2 import Cell, Protocol, Timeline, Uplink, simulate
from perfeds2.allocation.bandwidth import equal_finish, equal_share
from perfeds2.network.link import rate_bps
from perfeds2.shown import STATE_COLOURS

FOLDER = Path(__file__).parents[1] / "images" / "concepts"
WIDTH, LEFT, RIGHT, ROW, BAR = 640, 52, 12, 22, 16  # pixels
BITS, SAMPLES = 77_120.0, 120  # per upload, per job
INK, PALE = "light-dark(#24292f, #e6e6e6)", "light-dark(#57606a, #9aa4b0)"  # for light and dark pages
STYLE = f"""
.idea text {{ font: 12px system-ui, "Segoe UI", Roboto, Arial, sans-serif; fill: {INK} }}
.idea .strong {{ font-weight: 600 }} .idea .small {{ font-size: 10px }} .idea .on {{ fill: #fff }} .idea .on-light {{ fill: #24292f }}
.idea .line {{ stroke: {PALE}; fill: none }} .idea .rule {{ stroke: {PALE}; stroke-dasharray: 3 3 }} .idea .mark {{ fill: #24292f; stroke: #fff }}
.idea .one {{ stroke: light-dark(#0072B2, #56B4E9); fill: none; stroke-width: 2 }}
.idea .two {{ stroke: light-dark(#D55E00, #F0894A); fill: none; stroke-width: 2; stroke-dasharray: 7 3 }}
.idea .three {{ stroke: light-dark(#009E73, #35C99B); fill: none; stroke-width: 2; stroke-dasharray: 2 2 }}
.idea .way {{ stroke-width: 7; stroke-dasharray: none }} .idea .lost {{ stroke: light-dark(#C8102E, #FF6B7D); stroke-width: 2 }}"""
BY_ITSELF = ' style="color-scheme: light dark"'  # alone, it follows the screen's mode; inside a page, the page's


# ---- SVG elements


def text(x: float, y: float, said: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(said)}</text>'


def bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" fill="{colour}"/>'


def line(points: Sequence[tuple[float, float]], kind: str) -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def drawing(height: float, parts: Sequence[str], said: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="idea"{BY_ITSELF} viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
        f"<title>{escape(said)}</title><style>{STYLE}</style>{''.join(parts)}</svg>\n"
    )


# ---- timelines


def four_ues(**rest: Any) -> Cell:
    """Return four UEs, the last with a slow processor. There is no fading, so that rounds are alike."""
    return Cell(np.array([60.0, 90.0, 130.0, 180.0]), np.array([1.6e9, 1.1e9, 8e8, 2.2e8]), rician_k=np.inf, **rest)


def play(protocol: Protocol, **how: Any) -> Timeline:
    return simulate(four_ues(), protocol, payload_bits=BITS, samples=SAMPLES, horizon_s=0.7, **how)


def chart(timeline: Timeline, title: str, top: float, until_s: float, stale: bool = False) -> tuple[list[str], float]:
    """Draw a row per UE, and return the parts and the bottom edge.

    A bar is an activity, its number the model version, a diamond a merge, a cross a discarded job and a dashed line
    the end of a round. ``stale`` labels each merge with its staleness.
    """
    scale = (WIDTH - LEFT - RIGHT) / until_s
    parts = [text(LEFT, top + 12, title, "strong")]
    first, rows = top + 20, timeline.population
    for second in timeline.time_s[timeline.time_s < until_s]:
        x = LEFT + scale * second
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{first:.1f}" y2="{first + rows * ROW:.1f}" class="rule"/>')
    for job in timeline.frame().to_dict("records"):
        y = first + ROW * job["ue"] + (ROW - BAR) / 2
        seconds = [min(job[name], until_s) for name in ("start_s", "sending_s", "arrival_s", "end_s")]
        for state, begin, end in zip(("computing", "sending", "waiting"), seconds, seconds[1:], strict=False):
            if end > begin:
                parts.append(bar(LEFT + scale * begin, y, scale * (end - begin), BAR, STATE_COLOURS[state]))
        if scale * (seconds[1] - seconds[0]) > 20:
            parts.append(text(LEFT + scale * seconds[0] + 8, y + 12, str(job["version"]), "small on"))
        if job["end_s"] < until_s:
            parts += _ended(job, LEFT + scale * job["end_s"], y + BAR / 2, stale)
    parts += [text(LEFT - 8, first + ROW * ue + 15, f"UE {ue}", "", "end") for ue in range(rows)]
    return parts, first + rows * ROW + 8


def _ended(job: Any, x: float, y: float, stale: bool) -> list[str]:
    if job["outcome"] != "merged":
        return [line([(x - 5, y - 5), (x + 5, y + 5)], "lost"), line([(x - 5, y + 5), (x + 5, y - 5)], "lost")]
    mark = f'<path class="mark" d="M{x - 5:.1f} {y:.1f}l5 -5 5 5 -5 5z"/>'
    told = text(x - 8, y + 4, f"τ = {job['staleness']}", "small on-light", "end") if stale and job["staleness"] else ""
    return [mark, told]


def legend(top: float, crossed: bool = True) -> tuple[list[str], float]:
    parts, x = [], float(LEFT)
    for state in ("computing", "sending", "waiting"):
        parts += [bar(x, top, 12, 12, STATE_COLOURS[state]), text(x + 17, top + 10, state)]
        x += 92
    parts += [f'<path class="mark" d="M{x} {top + 6}l5 -5 5 5 -5 5z"/>', text(x + 17, top + 10, "merged")]
    if crossed:
        parts += [
            line([(x + 82, top + 1), (x + 92, top + 11)], "lost"),
            line([(x + 82, top + 11), (x + 92, top + 1)], "lost"),
            text(x + 98, top + 10, "discarded"),
        ]
        x += 112
    parts += [
        f'<line x1="{x + 80}" x2="{x + 80}" y1="{top - 1}" y2="{top + 13}" class="rule"/>',
        text(x + 86, top + 10, "a round closes"),
    ]
    return parts, top + 20


def charts(panels: Sequence[tuple[Timeline, str]], said: str, until_s: float = 0.5, stale: bool = False) -> str:
    """Draw charts below one another on the same time axis."""
    jobs = [job for timeline, _ in panels for job in timeline.frame().to_dict("records")]
    crossed = any(job["outcome"] != "merged" and job["end_s"] < until_s for job in jobs)
    parts, top = legend(4.0, crossed)
    for timeline, title in panels:
        more, top = chart(timeline, title, top, until_s, stale)
        parts += more
    parts += [text(LEFT, top + 8, "0 s", "small"), text(WIDTH - RIGHT, top + 8, f"{until_s} s", "small", "end")]
    return drawing(top + 14, parts, said)


# ---- concepts


def straggler() -> str:
    """Draw how synchronous rounds wait for the slowest UE."""
    panels = [
        (play(Protocol(4)), "Synchronous: every round waits for UE 3"),
        (play(Protocol(3)), "A = 3: no round waits for UE 3"),
    ]
    return charts(panels, "Four UEs over time: in synchronous rounds three of them wait for the slow one.")


def quorum() -> str:
    """Draw a quorum A of all, of two and of one."""
    panels = [
        (play(Protocol(a)), f"A = {a}: {what}")
        for a, what in ((4, "synchronous"), (2, "semi-synchronous"), (1, "asynchronous"))
    ]
    return charts(panels, "The same four UEs with a quorum of four, two and one.", 0.3)


def staleness() -> str:
    """Draw how many rounds close while a UE works."""
    panels = [(play(Protocol(2)), "A = 2, no bound: the number in a bar is the model version the UE started from")]
    return charts(panels, "Four UEs with a quorum of two; the slow one's updates are several rounds stale.", 0.3, True)


def stale_rules() -> str:
    """Draw what happens to a UE that would exceed the bound S."""
    words = {
        "restart": "the slow UE gets the new model and starts over",
        "wait": "the round waits for the slow UE",
        "ignore": "the slow UE finishes and its update is rejected",
    }
    panels = [(play(Protocol(2, 1, rule)), f"S = 1, {rule}: {what}") for rule, what in words.items()]  # type: ignore[arg-type]  # Literals
    return charts(panels, "Four UEs with a bound of one on staleness, under restart, wait and ignore.", 0.4)


def equal_finish_bandwidth() -> str:
    """Draw equal bandwidths beside equal finish times."""
    band_hz, heard_db = 1e6, np.array([16.0, 12.0, 8.0, 4.0])  # SNR on a quarter of the band
    signal_hz = band_hz / 4 * 10 ** (heard_db / 10)
    uplink = Uplink(0, band_hz, signal_hz, np.zeros(4), np.full(4, BITS), np.full(4, 0.25), None)
    found = {"equal_share": equal_share(uplink), "equal_finish": equal_finish(uplink)}
    ends = {name: BITS / np.asarray(rate_bps(band, uplink.signal_hz)) for name, band in found.items()}
    longest, tall = max(end.max() for end in ends.values()), 96.0
    scale, parts, top = (WIDTH - LEFT - RIGHT) / longest, [], 6.0
    for name, band in found.items():
        parts.append(text(LEFT, top + 12, f"{name}: the round takes {ends[name].max():.3f} s", "strong"))
        y, told = top + 20, top
        for ue in range(4):
            height = tall * band[ue] / band_hz
            parts += [bar(LEFT, y, scale * ends[name][ue], height - 1.5, STATE_COLOURS["sending"])]
            told = max(told + 10, y + height / 2 + 3)
            parts += [text(LEFT - 8, told, f"UE {ue}", "small", "end")]
            parts += [
                bar(
                    LEFT + scale * ends[name][ue],
                    y,
                    scale * (ends[name].max() - ends[name][ue]),
                    height - 1.5,
                    STATE_COLOURS["waiting"],
                )
            ]
            y += height
        top = y + 8
    parts += [
        bar(LEFT, top, 12, 12, STATE_COLOURS["sending"]),
        text(LEFT + 17, top + 10, "sending (height: share of the band)"),
    ]
    parts += [
        bar(LEFT + 270, top, 12, 12, STATE_COLOURS["waiting"]),
        text(LEFT + 287, top + 10, "waiting for the others"),
    ]
    return drawing(
        top + 20,
        parts,
        "With equal shares of the band UEs finish at different times; equal_finish gives weak UEs more, and all finish together.",
    )


def personal_step() -> str:
    """Draw where the mean loss is lowest, before and after one personal step."""
    alpha, places, bends = 0.3, (-1.2, 1.0), (2.6, 0.9)  # two UEs: f_i(w) = bend/2 · (w − place)²
    after = [b * (1 - alpha * b) ** 2 for b in bends]  # F_i is also a parabola
    plain, meta = (
        sum(b * p for p, b in zip(places, weights, strict=True)) / sum(weights) for weights in (bends, after)
    )
    high, top, bottom = 4.6, 22.0, 236.0

    def at(w: float, ue: int) -> tuple[float, float]:
        loss = bends[ue] / 2 * (w - places[ue]) ** 2
        return LEFT + (w + 2.4) / 4.8 * (WIDTH - LEFT - RIGHT), bottom - loss / high * (bottom - top)

    parts = [line([(LEFT, bottom), (WIDTH - RIGHT, bottom)], "line")]
    parts += [
        text(WIDTH - RIGHT, bottom + 14, "weights w", "small", "end"),
        text(LEFT - 8, top, "loss", "small", "end"),
    ]
    for ue, kind in enumerate(("one", "two")):
        points = [point for w in np.linspace(-2.4, 2.4, 97) if (point := at(float(w), ue))[1] >= top]
        (x, y), side = (points[-1], "end") if ue else (points[0], "start")
        parts += [line(points, kind), text(x, y - 10, f"UE {ue}'s loss", "", side)]
    for start, name in ((plain, "FedAvg's w"), (meta, "PerFed's w")):
        x, left = at(start, 0)[0], start == plain
        ends = [start - alpha * bend * (start - place) for place, bend in zip(places, bends, strict=True)]
        left_over = np.mean(
            [bend / 2 * (end - place) ** 2 for end, place, bend in zip(ends, places, bends, strict=True)]
        )
        parts += [f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.0f}" y2="{bottom:.0f}" class="rule"/>']
        parts += [
            text(x + (-6 if left else 26), top + y, said, kind, "end" if left else "start")
            for y, said, kind in ((4, name, "strong"), (19, f"after a step {left_over:.2f}", "small"))
        ]
        for ue, kind in enumerate(("one", "two")):
            way = [at(float(w), ue) for w in np.linspace(start, ends[ue], 20)]
            parts += [
                f'<g opacity="0.5">{line(way, kind + " way")}</g>',
                f'<circle class="mark" cx="{way[-1][0]:.1f}" cy="{way[-1][1]:.1f}" r="4.5"/>',
            ]
    return drawing(
        256,
        parts,
        "Two UEs' losses. From FedAvg's weights and from PerFed's, one gradient step on each: PerFed's end lower on average.",
    )


def fading() -> str:
    """Draw the SNR of three UEs, round by round."""
    cell = Cell(np.array([60.0, 130.0, 180.0]), np.full(3, 1e9), seed=3)
    decibels = np.array([10 * np.log10(cell.signal_hz(k) / (cell.bandwidth_hz / 3)) for k in range(40)])
    low, high, top, bottom = float(decibels.min()) - 2, float(decibels.max()) + 2, 26.0, 196.0
    step = (WIDTH - LEFT - RIGHT) / 40
    parts = [text(LEFT, 14, "Signal-to-noise ratio (dB), redrawn every round", "strong")]
    for kind, ue, metres in zip(("one", "two", "three"), range(3), cell.distance_m, strict=True):
        levels = bottom - (decibels[:, ue] - low) / (high - low) * (bottom - top)
        points = [(LEFT + step * (k + side), float(level)) for k, level in enumerate(levels) for side in (0, 1)]
        parts += [
            line(points, kind),
            line([(LEFT + 150 * ue, 216), (LEFT + 150 * ue + 24, 216)], kind),
            text(LEFT + 150 * ue + 30, 220, f"UE at {metres:.0f} m"),
        ]
    for value in np.arange(np.ceil(low / 10) * 10, high, 10):
        parts.append(
            text(LEFT - 8, bottom - (value - low) / (high - low) * (bottom - top) + 4, f"{value:.0f}", "small", "end")
        )
    parts.append(text(WIDTH - RIGHT, 220, "40 rounds", "small", "end"))
    return drawing(
        228,
        parts,
        "Signal-to-noise ratio of three UEs over forty rounds: distant UEs are weaker, and all vary from round to round.",
    )


# ---- the code

FLOORS = [  # purpose of each floor and its folders, in import order
    ("When each update is merged", ["network", "allocation", "theory", "timeline"]),
    ("What is learned along a timeline", ["privacy", "learning"]),
    ("From settings and names to objects", ["spec"]),
    ("Running trainings, making tables", ["runs", "studies"]),
    ("Figures, pages and the paper", ["paper", "report", "play"]),
    ("The same rounds on real devices", ["deployment"]),
    ("The command line", ["commands"]),
]


def house() -> str:
    """Draw the package's folders. Imports only point up."""
    height, gap, left, labels = 34.0, 14.0, 30.0, 268.0
    parts, top = [], 10.0
    for said, rooms in FLOORS:
        width = (WIDTH - RIGHT - labels - 8 * (len(rooms) - 1)) / len(rooms)
        parts.append(text(left, top + 21, said, "small"))
        for number, room in enumerate(rooms):
            x = labels + number * (width + 8)
            parts.append(f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height}" rx="4" class="line"/>')
            parts.append(text(x + width / 2, top + 21, f"{room}/", "strong", "middle"))
        top += height + gap
    middle = 14.0
    parts.append(line([(middle, top - gap), (middle, 14)], "one"))
    parts.append(line([(middle - 4, 22), (middle, 14), (middle + 4, 22)], "one"))
    return drawing(
        top,
        parts,
        "The folders of perfeds2 on seven floors. A folder imports only from its own floor's left and from floors above.",
    )


PICTURES: dict[str, Callable[[], str]] = {
    "straggler": straggler,
    "quorum": quorum,
    "staleness": staleness,
    "stale-rules": stale_rules,
    "equal-finish": equal_finish_bandwidth,
    "personal-step": personal_step,
    "fading": fading,
    "house": house,
}


def main(names: Sequence[str]) -> int:
    for name in names or PICTURES:
        if name not in PICTURES:
            print(f"There is no picture {name}; choose from {', '.join(PICTURES)}.", file=sys.stderr)
            return 2
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{name}.svg").write_text(PICTURES[name](), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
