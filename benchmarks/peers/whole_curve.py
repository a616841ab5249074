"""Run FedAvg-SYN of the paper's exp_1 on MNIST in perfeds2, from imports to figure: clock, training, evaluations."""

import sys
from collections.abc import Sequence
from typing import Any


def main() -> None:
    from perfeds2.studies.compare import train_spec

    seeds, horizon_s, picture = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    rows = train_spec(spec(tuple(range(seeds)), horizon_s), "benchmark", None).rows
    curves = {}
    for row in rows:
        curves.setdefault(row["seed"], []).append((row["time_s"], row["test_accuracy_personal"]))
    draw([list(zip(*curve, strict=True)) for curve in curves.values()], picture)


def spec(seeds: tuple[int, ...], horizon_s: float) -> Any:
    from perfeds2.paper.figures import FIGURES

    panel = FIGURES["exp_1"].panels[0]
    line = next(line for line in panel.lines if line.algorithm == "FedAvg-SYN")
    return panel.spec_of(line, seeds, "paper", {"run": {"horizon_s": horizon_s}}, {})


def draw(curves: Sequence[Any], picture: str) -> None:
    """Draw a line per seed of (seconds, accuracies). Print the mean final accuracy."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots()
    for seconds, accuracies in curves:
        axes.plot(seconds, accuracies)
    axes.set(xlabel="simulated seconds", ylabel="personalised accuracy")
    figure.savefig(picture)
    ends = [accuracies[-1] for _, accuracies in curves]
    print(f"accuracy {sum(ends) / len(ends):.3f} at the end")


if __name__ == "__main__":
    main()
