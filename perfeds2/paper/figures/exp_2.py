"""exp_2: six algorithms, shares by distance."""

from perfeds2.paper.figures.figure import DISTANCE, SIX, Figure, Panel, algorithms

FIGURE = Figure(
    "exp_2",
    "Six algorithms on MNIST and CIFAR-100. Distances are uniform from 0 to 200 m and decide the shares; A = 5 for the S2 algorithms.",
    (
        Panel("MNIST", "mnist", algorithms(SIX), DISTANCE),
        Panel("CIFAR-100", "cifar100", algorithms(SIX), DISTANCE),
    ),
)
