"""Compare merges under attack: how accurate are honest UEs if others are hostile?

    python benchmarks/attacks.py --out attacks
    python benchmarks/attacks.py --out attacks --merges mean trimmed-mean --seeds 2 --rounds 100
    python benchmarks/attacks.py --out attacks --only crowd

The first tables have rounds of A = 5 uploads and a column for each attack: one hostile UE of six, with 2 and 5 labels per
UE, and two of 20 (crowd). The last has 20 UEs with a growing share of hostile ones, for A = 5 and A = 20; each number
is for the worst of all attacks. Numbers are personal accuracies of the honest UEs, the mean of all seeds with a 95 %
interval. All attacks and seeds of a merge are trained in one batch. Results are kept in --out: running the same command again resumes. The tables are
written to attacks.md there.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfeds2.files import write_text
from perfeds2.learning.attacks import ATTACKS, hostile_ues
from perfeds2.learning.methods import ROBUST
from perfeds2.runs.pool import WorkerChoice, run_all
from perfeds2.runs.statistics import mean_and_interval
from perfeds2.runs.store import Result, Store
from perfeds2.runs.training import trainings_of
from perfeds2.spec.resolve import spec_from

NAMES = [name.partition(":")[0] for name in ATTACKS]
CLEAN = "none"
NEVER_S = 1e9  # between evaluations: only the first and the last model are evaluated
SHARES = (0.1, 0.2, 0.3)
Accuracies = dict[str, np.ndarray]  # personal accuracy of each seed, by attack


@dataclass(frozen=True)
class Bench:
    """What all trainings have in common."""

    store: Store
    seeds: int
    rounds: int
    task: str

    def accuracies(
        self, merge: str, share: float, ues: int, quorum: int, labels: int, attacks: Sequence[str] = NAMES
    ) -> Accuracies:
        """Return the accuracy of a merge under every attack and none, all trained in one batch."""
        found = {}
        for name in (CLEAN, *attacks):
            attack = f"{NAMES[0]}:0" if name == CLEAN else f"{name}:{share:.6f}"  # a share of 0 needs no other program
            spec = spec_from(
                task=self.task,
                ues=ues,
                quorum=quorum,
                labels_per_ue=labels,
                rounds=self.rounds,
                schedule="first",
                algorithms=["PerFedS2"],
                seeds=self.seeds,
                eval_every_s=NEVER_S,
                merge=merge,
                attack=attack,
            )
            found[name] = trainings_of(spec, f"{merge}, {name}")
        everything = [one for trainings in found.values() for one in trainings]
        results = run_all(everything, self.store, WorkerChoice(together=True), strict=True)
        return {
            name: np.array([honest_accuracy(results[one], share, one.seed) for one in trainings])
            for name, trainings in found.items()
        }


def honest_accuracy(result: Result, share: float, seed: int) -> float:
    """Return the mean personal accuracy of the UEs that are not hostile at this share; 0 for a diverged model."""
    accuracies = np.array([row["test_accuracy_personal"] for row in result.ue_rows], float)
    return float(np.nan_to_num(accuracies)[~hostile_ues(share, accuracies.size, seed)].mean())


def by_attack(bench: Bench, merges: Sequence[str], labels: int, hostile: int = 1, ues: int = 6) -> str:
    """Return the table of a few hostile UEs, a column for each attack."""
    found = {merge: bench.accuracies(merge, hostile / ues, ues, 5, labels) for merge in merges}
    clean, lines = found[merges[0]][CLEAN], []
    for merge, by_name in found.items():
        worst = min(by_name.values(), key=np.mean)
        lines.append([merge, *map(with_interval, by_name.values()), with_interval(worst / clean)])
    title = (
        f"{hostile} hostile of {ues} UEs, A = 5, {labels} labels per UE. Kept: the least accuracy of the row, relative to "
        f"{merges[0]} without an attack, seed by seed."
    )
    return f"{title}\n\n{markdown(['merge', CLEAN, *NAMES, 'kept'], lines)}"


def by_share(bench: Bench, merges: Sequence[str], labels: int = 2, ues: int = 20) -> str:
    """Return the table of growing shares of hostile UEs."""
    quorums, lines = (5, ues), []
    for merge in merges:
        row = [merge]
        for quorum in quorums:
            found = [bench.accuracies(merge, share, ues, quorum, labels) for share in SHARES]
            worst = [min((one[name] for name in NAMES), key=np.mean) for one in found]
            row += map(with_interval, [found[0][CLEAN], *worst])
        lines.append(row)
    head = ["merge", *(f"A = {quorum}, {share:.0%}" for quorum in quorums for share in (0, *SHARES))]
    return f"{ues} UEs, {labels} labels per UE, by share of hostile UEs. Each number is for the worst attack.\n\n{markdown(head, lines)}"


def by_quorum(bench: Bench, merges: Sequence[str], ues: int = 20) -> str:
    """Return the table of what each merge costs without any attack, in points below the first merge, seed by seed."""
    lines, quorums, labels = [[merge] for merge in merges], (3, 5, 10), (2, 5)
    for some in labels:
        for quorum in quorums:
            found = [bench.accuracies(merge, 0.0, ues, quorum, some, attacks=())[CLEAN] for merge in merges]
            for line, accuracies in zip(lines, found, strict=True):
                line.append(with_interval(found[0] - accuracies))
    head = ["merge", *(f"{some} labels, A = {quorum}" for some in labels for quorum in quorums)]
    return f"{ues} honest UEs: points of accuracy below {merges[0]}, seed by seed.\n\n{markdown(head, lines)}"


def with_interval(shares: np.ndarray) -> str:
    """Return the mean of the seeds and half the width of its 95 % interval."""
    mean, low, _ = mean_and_interval(shares)
    return f"{100 * mean:.1f} %" if low is None else f"{100 * mean:.1f} ± {100 * (mean - low):.1f} %"


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---", *("---:" for _ in head[1:])], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--merges", nargs="+", default=["mean", *ROBUST], help="The first is what 'kept' is relative to."
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--only", choices=["attacks", "crowd", "shares", "honest"], help="Make these tables only.")
    parser.add_argument("--out", type=Path, default=Path("attacks"))
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    bench, tables = Bench(Store(given.out / "parts"), given.seeds, given.rounds, given.task), []
    if given.only in (None, "attacks"):
        tables += [by_attack(bench, given.merges, labels) for labels in (2, 5)]
    if given.only in (None, "crowd"):
        tables.append(by_attack(bench, given.merges, 2, hostile=2, ues=20))
    if given.only in (None, "shares"):
        tables.append(by_share(bench, given.merges))
    if given.only in (None, "honest"):
        tables.append(by_quorum(bench, given.merges))
    write_text(given.out / "attacks.md", "\n".join(tables))
    print("\n".join(tables))


if __name__ == "__main__":
    main()
