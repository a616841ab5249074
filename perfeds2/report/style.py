"""Choose the colour, dash and marker of lines, on pages and on paper.

Colours are from Okabe and Ito's palette, which colour-blind readers can tell apart. For the paper's algorithms the
objective sets colour and marker (for greyscale print) and the mode sets the dash. Other methods differ in all three,
and are dash-dotted unless a figure shows several modes of them.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfeds2.chart import LineStyle
from perfeds2.learning.metrics import NEW_UES_METRICS

COLOURS = {"FedAvg": "#0072B2", "FedProx": "#CC79A7", "PerFed": "#D55E00"}
OBJECTIVE_MARKERS = {"FedAvg": "x", "FedProx": "^", "PerFed": "o"}
SPARE_COLOURS = ("#009E73", "#E69F00", "#56B4E9", "#8A5CC2", "#8C6D3F")  # for other objectives
DASHES_PX = {"S2": (), "SYN": (7, 3), "ASY": (2, 2)}  # on, off; empty is solid
OWN_DASHES_PX = ((9, 3, 2, 3), (6, 2, 2, 2, 2, 2), (12, 4, 5, 4), (14, 3, 2, 3, 2, 3), (4, 3, 1, 3))
OWN_MARKERS = ("s", "D", "v", "P", "*")
SEQUENCE = ("#5B3FC4", "#A8389F", "#DB4F62", "#EE8034", "#D4AC0D")  # ordered, from low to high values
MARKERS = ("o", "s", "^", "D", "v")  # used with colour, for greyscale print
ACCURACY, GLOBAL = "test_accuracy_personal", "test_accuracy"  # after and before a personal step
METRICS = (ACCURACY, GLOBAL, *NEW_UES_METRICS, "train_loss_personal", "train_loss")  # in display order


def algorithm_styles(algorithms: Sequence[tuple[str, str, str]]) -> dict[str, LineStyle]:
    """Return a style for each (name, objective, mode). The paper's algorithms look the same everywhere."""
    modes = {objective: {mode for _, other, mode in algorithms if other == objective} for _, objective, _ in algorithms}
    own = {objective: _own_style(number) for number, objective in enumerate(sorted(modes.keys() - COLOURS.keys()))}
    fixed = own | {name: LineStyle(COLOURS[name], (), OBJECTIVE_MARKERS[name]) for name in COLOURS}
    styles: dict[str, LineStyle] = {}
    for name, objective, mode in algorithms:  # first those whose style is determined by objective and mode
        style = fixed[objective]
        if objective in COLOURS or len(modes[objective]) > 1:
            style = replace(style, dash_px=DASHES_PX.get(mode, ()))
        if mode in DASHES_PX and style not in styles.values():
            styles[name] = style
    taken = {style.colour for style in styles.values()}
    free = [_own_style(number) for number in range(len(own), len(own) + len(SPARE_COLOURS) ** 3)]
    free = sorted((style for style in free if style not in own.values()), key=lambda style: style.colour in taken)
    others = [name for name, _, _ in algorithms if name not in styles]
    styles |= {name: free[number % len(free)] for number, name in enumerate(others)}
    return {name: styles[name] for name, _, _ in algorithms}


def _own_style(number: int) -> LineStyle:
    """Return the style of a further method; 25 differ also without colour, and 125 with it."""
    kinds = len(SPARE_COLOURS)
    colour, dash = (number + number // kinds**2) % kinds, (number + number // kinds) % kinds
    return LineStyle(SPARE_COLOURS[colour], OWN_DASHES_PX[dash], OWN_MARKERS[number % kinds])


def named_styles(names: Sequence[str]) -> dict[str, LineStyle]:
    """Return styles based on names alone: FedAvg-SYN, PerFedS2, PerFed-ASY or a user's own."""
    told = []
    for name in names:
        mode = next((mode for mode in DASHES_PX if name.endswith(mode)), "")
        objective = name.removesuffix(mode).removesuffix("-")
        told.append((name, objective, mode if objective in COLOURS else ""))
    return algorithm_styles(told)


def ordered_styles(names: Sequence[str]) -> dict[str, LineStyle]:
    """Return styles for the values of a setting: along a colour scale, with alternating dashes and markers."""
    places, stops = np.linspace(0, len(SEQUENCE) - 1, len(names)), range(len(SEQUENCE))
    channels = [np.interp(places, stops, [int(tint[at : at + 2], 16) for tint in SEQUENCE]) for at in (1, 3, 5)]
    tints = ["#" + "".join(f"{round(value):02X}" for value in colour) for colour in zip(*channels, strict=True)]
    dashes = [*DASHES_PX.values()]
    return {
        name: LineStyle(tint, dashes[number % len(dashes)], MARKERS[number % len(MARKERS)])
        for number, (name, tint) in enumerate(zip(names, tints, strict=True))
    }
