"""exp_5: how many updates close a round, shares by distance."""

from perfeds2.paper.figures.figure import DISTANCE, Figure, Panel, varied

FIGURE = Figure(
    "exp_5",
    "PerFedS2 with A = 5, 10, 15 updates a round. Distances are uniform from 0 to 200 m and decide the shares.",
    (
        Panel("MNIST", "mnist", varied("A", "protocol", "quorum", (5, 10, 15)), DISTANCE),
        Panel("CIFAR-100", "cifar100", varied("A", "protocol", "quorum", (5, 10, 15)), DISTANCE),
    ),
)
