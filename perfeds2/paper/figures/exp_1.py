"""exp_1: six algorithms, everybody the same share."""

from perfeds2.paper.figures.figure import EQUAL, SIX, Figure, Panel, algorithms

FIGURE = Figure(
    "exp_1",
    "Six algorithms on MNIST and CIFAR-100. Every UE has the same distance and the same share; A = 5 for the S2 algorithms.",
    (
        Panel("MNIST", "mnist", algorithms(SIX), EQUAL),
        Panel("CIFAR-100", "cifar100", algorithms(SIX), EQUAL),
    ),
)
