"""Which colour, dash and words does a thing have, on the page and on paper?

Colours are Okabe and Ito's, told apart by colour-blind readers. Of the paper's algorithms an objective has a colour, and a
marker for those who see or print in grey; a mode has a dash. What is one's own has colours of its own, and is dash-dotted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfeds2.shown import LOST_COLOUR as LOST_COLOUR
from perfeds2.shown import STATE_COLOURS as STATE_COLOURS

COLOURS = {"FedAvg": "#0072B2", "FedProx": "#CC79A7", "PerFed": "#D55E00"}
OBJECTIVE_MARKERS = {"FedAvg": "x", "FedProx": "^", "PerFed": "o"}
SPARE_COLOURS = ("#009E73", "#E69F00", "#56B4E9", "#8A5CC2", "#8C6D3F")  # for objectives that came later
NEUTRAL = "#6B7785"  # for what several objectives share
MARK = "#D55E00"  # what to compare with
DASHES_PX = {"S2": (), "SYN": (7, 3), "ASY": (2, 2)}  # on, off; solid is empty
WIDTH_PX = 2.0  # of a line
OWN_DASHES_PX = ((9, 3, 2, 3), (6, 2, 2, 2, 2, 2), (12, 4, 5, 4))
SEQUENCE = ("#5B3FC4", "#A8389F", "#DB4F62", "#EE8034", "#D4AC0D")  # ordered: darker is less
MARKERS = ("o", "s", "^", "D", "v")  # beside colour, for those who print in grey
ACCURACY, GLOBAL = "test_accuracy_personal", "test_accuracy"  # after a personal step, and before it
METRICS = {  # in the order they are shown; the words for the axis
    ACCURACY: "Personalised test accuracy (%)",
    GLOBAL: "Global test accuracy (%)",
    "train_loss_personal": "Personalised training loss",
    "train_loss": "Global training loss",
}


@dataclass(frozen=True)
class LineStyle:
    """How a line is told from the others of its drawing."""

    colour: str
    dash_px: tuple[int, ...] = ()  # on, off, …; solid is empty
    marker: str = ""


def algorithm_styles(algorithms: Sequence[tuple[str, str, str]]) -> dict[str, LineStyle]:
    """A style for each (name, objective, mode), no two alike: the paper's as everywhere, others among what is left."""
    own = sorted({objective for _, objective, _ in algorithms} - COLOURS.keys())
    tints = COLOURS | {objective: SPARE_COLOURS[number % len(SPARE_COLOURS)] for number, objective in enumerate(own)}
    styles: dict[str, LineStyle] = {}
    for name, objective, mode in algorithms:  # first those whose style says what they are
        style = LineStyle(tints[objective], DASHES_PX.get(mode, ()), OBJECTIVE_MARKERS.get(objective, ""))
        if mode in DASHES_PX and style not in styles.values():
            styles[name] = style
    pairs = zip(SPARE_COLOURS * len(OWN_DASHES_PX), OWN_DASHES_PX * len(SPARE_COLOURS), strict=True)  # all there are
    taken = {style.colour for style in styles.values()}
    free = sorted((LineStyle(*pair) for pair in pairs), key=lambda style: style.colour in taken)
    others = [name for name, _, _ in algorithms if name not in styles]
    styles |= {name: free[number % len(free)] for number, name in enumerate(others)}
    return {name: styles[name] for name, _, _ in algorithms}


def named_styles(names: Sequence[str]) -> dict[str, LineStyle]:
    """The same where nothing is known of an algorithm but its name: FedAvg-SYN, PerFedS2, PerFed-ASY or one's own."""
    told = []
    for name in names:
        mode = next((mode for mode in DASHES_PX if name.endswith(mode)), "")
        objective = name.removesuffix(mode).removesuffix("-")
        told.append((name, objective, mode if objective in COLOURS else ""))
    return algorithm_styles(told)


def ordered_styles(names: Sequence[str]) -> dict[str, LineStyle]:
    """For values of settings: from one end of a scale to the other, and dashed in turn."""
    places, stops = np.linspace(0, len(SEQUENCE) - 1, len(names)), range(len(SEQUENCE))
    channels = [np.interp(places, stops, [int(tint[at : at + 2], 16) for tint in SEQUENCE]) for at in (1, 3, 5)]
    tints = ["#" + "".join(f"{round(value):02X}" for value in colour) for colour in zip(*channels, strict=True)]
    dashes = [*DASHES_PX.values()]
    return {
        name: LineStyle(tint, dashes[number % len(dashes)], MARKERS[number % len(MARKERS)])
        for number, (name, tint) in enumerate(zip(names, tints, strict=True))
    }


def paired_styles(lines: Sequence[tuple[str, str, str]]) -> dict[str, LineStyle]:
    """A style for each (name, algorithm, folder): colour is the algorithm, dash and marker the folder; of one algorithm, all three."""
    algorithms, folders = ([*dict.fromkeys(each[place] for each in lines)] for place in (1, 2))
    if len(algorithms) == 1:
        return dict(zip((name for name, _, _ in lines), ordered_styles(folders).values(), strict=True))
    tints, spare = dict[str, str](), [*SPARE_COLOURS, *COLOURS.values()]
    for name, style in named_styles(
        algorithms
    ).items():  # some differ in their dash alone, which says something else here
        free = [tint for tint in spare if tint not in tints.values()] or spare
        tints[name] = free[0] if style.colour in tints.values() else style.colour
    dashes = (*DASHES_PX.values(), *OWN_DASHES_PX)
    looks = {
        name: (dashes[number % len(dashes)], MARKERS[number % len(MARKERS)]) for number, name in enumerate(folders)
    }
    return {name: LineStyle(tints[algorithm], *looks[folder]) for name, algorithm, folder in lines}


def line_widths(groups: Sequence[Sequence[str]], one: float = WIDTH_PX, more: float = 3.0) -> dict[str, float]:
    """How wide lines are that coincide: who lies below looks out on both sides of who lies above."""
    return {name: one + more * (len(group) - 1 - place) for group in groups for place, name in enumerate(group)}


def short(name: str, most: int = 24) -> str:
    """A name that fits beside an axis."""
    return name if len(name) <= most else name[: most - 1] + "…"
