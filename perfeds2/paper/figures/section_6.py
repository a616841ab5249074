"""The eight figures of Section VI, named as the paper's LaTeX labels are."""

from perfeds2.paper.figures.figure import (
    DISTANCE,
    EQUAL,
    SIX,
    Figure,
    Panel,
    PanelLine,
    Values,
    algorithms,
    merged,
    varied,
)

S2 = ("PerFedS2", "FedAvgS2", "FedProxS2")
QUORUMS = varied("A", "protocol", "quorum", (5, 10, 15))
# Section VI's own explanation is that a round waits for whoever would become too stale: rounds close on first arrivals.
WAITING = merged(EQUAL, {"protocol": {"stale": "wait", "schedule": "first", "bandwidth": "equal_share"}})
STALENESSES = varied("S", "protocol", "max_staleness", (1, 2, 3, 4, 5))


def mnist_and_cifar(
    mnist: tuple[PanelLine, ...], settings: Values, cifar: tuple[PanelLine, ...] | None = None
) -> tuple[Panel, ...]:
    return Panel("MNIST", "mnist", mnist, settings), Panel("CIFAR-100", "cifar100", cifar or mnist, settings)


def equal_and_distance(name: str, lines: tuple[PanelLine, ...]) -> tuple[Panel, ...]:
    return (
        Panel(f"{name}, equal shares", name.lower(), lines, EQUAL),
        Panel(f"{name}, random distances", name.lower(), lines, DISTANCE),
    )


exp_1 = Figure(
    "exp_1",
    "Six algorithms on MNIST and CIFAR-100. Every UE has the same distance and the same share; A = 5 for the S2 algorithms.",
    mnist_and_cifar(algorithms(SIX), EQUAL),
)
exp_2 = Figure(
    "exp_2",
    "Six algorithms on MNIST and CIFAR-100. Distances are uniform from 0 to 200 m and decide the shares; A = 5 for the S2 algorithms.",
    mnist_and_cifar(algorithms(SIX), DISTANCE),
)
exp_3 = Figure(
    "exp_3",
    "PerFedS2 with different numbers of labels per UE. More labels make UEs more alike, and each UE's own task harder (erratum 13).",
    mnist_and_cifar(
        varied("l", "task", "labels_per_ue", (2, 4, 6, 8)), EQUAL, varied("l", "task", "labels_per_ue", (3, 5, 7, 9))
    ),
)
exp_4 = Figure(
    "exp_4",
    "PerFedS2 with A = 5, 10, 15 updates a round. Every UE has the same distance and the same share.",
    mnist_and_cifar(QUORUMS, EQUAL),
)
exp_5 = Figure(
    "exp_5",
    "PerFedS2 with A = 5, 10, 15 updates a round. Distances are uniform from 0 to 200 m and decide the shares.",
    mnist_and_cifar(QUORUMS, DISTANCE),
)
exp_6 = Figure(
    "exp_6",
    "PerFedS2 with staleness bounds S = 1 to 5; a round waits for whoever would exceed them. Equal shares, A = 5.",
    mnist_and_cifar(STALENESSES, WAITING),
)
exp_7 = Figure(
    "exp_7",
    "Six algorithms on LEAF's Shakespeare, 188 speaking roles as UEs, A = 50 for the S2 algorithms.",
    equal_and_distance("Shakespeare", algorithms(SIX)),
)
exp_8 = Figure(
    "exp_8",
    "PerFedS2, FedAvgS2 and FedProxS2 on MNIST (A = 5) and Shakespeare (A = 50), with equal shares and random distances. "
    "With one local step FedProx's proximal term is zero: its line lies on FedAvg's.",
    equal_and_distance("MNIST", algorithms(S2)) + equal_and_distance("Shakespeare", algorithms(S2)),
)
