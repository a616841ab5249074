"""Which colour, dash and words does a thing have, on the page and on paper?

Colours are Okabe and Ito's, told apart by colour-blind readers. An objective has a colour, a mode has a dash.
"""

from collections.abc import Sequence

from perfeds2.timeline.timeline import State

COLOURS = {"FedAvg": "#0072B2", "FedProx": "#CC79A7", "PerFed": "#D55E00"}
SPARE_COLOURS = ("#009E73", "#E69F00", "#56B4E9")  # for objectives that came later
NEUTRAL = "#6B7785"  # for what several objectives share
DASHES_PX = {"S2": (), "SYN": (7, 3), "ASY": (2, 2)}  # on, off; solid is empty
STATE_COLOURS: dict[State, str] = {
    "computing": "#33608C",
    "sending": "#E69F00",
    "waiting": "#BCC3CB",
    "idle": "#E4E7EB",
}
LOST_COLOUR = "#C8102E"  # jobs thrown away
METRICS = {  # in the order they are shown; the words for the axis
    "test_accuracy_personal": "Personalised test accuracy (%)",
    "train_loss_personal": "Personalised training loss",
    "test_accuracy": "Global test accuracy (%)",
    "train_loss": "Global training loss",
}


def short(name: str, most: int = 24) -> str:
    """A name that fits beside an axis."""
    return name if len(name) <= most else name[: most - 1] + "…"


def colour(objective: str | None, objectives: Sequence[str]) -> str:
    """The colour of an objective among those of the run; of none in particular, a neutral one."""
    if objective is None:
        return NEUTRAL
    if objective in COLOURS:
        return COLOURS[objective]
    others = sorted(set(objectives) - COLOURS.keys())
    return SPARE_COLOURS[others.index(objective) % len(SPARE_COLOURS)]
