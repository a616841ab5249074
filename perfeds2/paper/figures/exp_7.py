"""exp_7: six algorithms on Shakespeare."""

from perfeds2.paper.figures.figure import DISTANCE, EQUAL, SIX, Figure, Panel, algorithms

FIGURE = Figure(
    "exp_7",
    "Six algorithms on LEAF's Shakespeare, 188 speaking roles as UEs, A = 50 for the S2 algorithms.",
    (
        Panel("Shakespeare, equal shares", "shakespeare", algorithms(SIX), EQUAL),
        Panel("Shakespeare, random distances", "shakespeare", algorithms(SIX), DISTANCE),
    ),
)
