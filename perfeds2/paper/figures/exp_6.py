"""exp_6: how stale an update may be.

Section VI's own explanation is that a round waits for whoever would become too stale, so rounds close on the first
arrivals and ``wait`` is the rule.
"""

from perfeds2.paper.figures.figure import EQUAL, Figure, Panel, merged, varied

WAITING = merged(EQUAL, {"protocol": {"stale": "wait", "schedule": "first", "bandwidth": "equal_share"}})

FIGURE = Figure(
    "exp_6",
    "PerFedS2 with staleness bounds S = 1 to 5; a round waits for whoever would exceed them. Equal shares, A = 5.",
    (
        Panel("MNIST", "mnist", varied("S", "protocol", "max_staleness", (1, 2, 3, 4, 5)), WAITING),
        Panel("CIFAR-100", "cifar100", varied("S", "protocol", "max_staleness", (1, 2, 3, 4, 5)), WAITING),
    ),
)
