"""exp_8: the three semi-synchronous algorithms."""

from perfeds2.paper.figures.figure import DISTANCE, EQUAL, Figure, Panel, algorithms

S2 = ("PerFedS2", "FedAvgS2", "FedProxS2")

FIGURE = Figure(
    "exp_8",
    "PerFedS2, FedAvgS2 and FedProxS2 on MNIST (A = 5) and Shakespeare (A = 50), with equal shares and random distances. "
    "With one local step FedProx's proximal term is zero: its line lies on FedAvg's.",
    (
        Panel("MNIST, equal shares", "mnist", algorithms(S2), EQUAL),
        Panel("MNIST, random distances", "mnist", algorithms(S2), DISTANCE),
        Panel("Shakespeare, equal shares", "shakespeare", algorithms(S2), EQUAL),
        Panel("Shakespeare, random distances", "shakespeare", algorithms(S2), DISTANCE),
    ),
)
