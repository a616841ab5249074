"""exp_4: how many updates close a round, everybody the same share."""

from perfeds2.paper.figures.figure import EQUAL, Figure, Panel, varied

FIGURE = Figure(
    "exp_4",
    "PerFedS2 with A = 5, 10, 15 updates a round. Every UE has the same distance and the same share.",
    (
        Panel("MNIST", "mnist", varied("A", "protocol", "quorum", (5, 10, 15)), EQUAL),
        Panel("CIFAR-100", "cifar100", varied("A", "protocol", "quorum", (5, 10, 15)), EQUAL),
    ),
)
