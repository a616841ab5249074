"""exp_3: how different the UEs' data are."""

from perfeds2.paper.figures.figure import EQUAL, Figure, Panel, varied

FIGURE = Figure(
    "exp_3",
    "PerFedS2 with different numbers of labels per UE. More labels make UEs more alike, and each UE's own task harder (erratum 13).",
    (
        Panel("MNIST", "mnist", varied("l", "task", "labels_per_ue", (2, 4, 6, 8)), EQUAL),
        Panel("CIFAR-100", "cifar100", varied("l", "task", "labels_per_ue", (3, 5, 7, 9)), EQUAL),
    ),
)
