"""Arenas without training: results by a formula."""

from pathlib import Path
from typing import Any

from trained_by_formula import trained_by, training

from perfeds2.runs.session import Execution
from perfeds2.runs.store import Result
from perfeds2.spec.resolve import nested
from perfeds2.studies.arena import Arena, run_arena
from perfeds2.studies.arena_plan import ArenaPlan, make_arena

THREE = ["PerFedS2", "FedBuff", "Ditto"]


def plan_of(base: dict[str, Any] | None = None, **asked: Any) -> ArenaPlan:
    given: dict[str, Any] = {"methods": THREE} | asked
    return make_arena(nested({"horizon_s": 9.0, "seeds": 3} | (base or {})), **given)


def played(accuracy, done=None, *, fails=lambda _: None):
    """``accuracy`` of (method, learning, seed) is reached at half of the horizon."""

    def result(one):
        horizon_s, learning = one.spec.run.horizon_s, one.spec.learning_of(one.algorithm)
        share = accuracy(one.algorithm, learning, one.seed)
        times = [(0, 0.0, 0.1), (10, horizon_s / 2, share), (20, horizon_s, share)]
        rows = [
            {"round": k, "time_s": t, "train_loss": 1.0, "train_loss_personal": 1.0, "test_accuracy": 0.2}
            | {"test_accuracy_personal": a, "merged_bits": k * 50.0}
            for k, t, a in times
        ]
        facts = {"algorithm": one.algorithm, "seed": one.seed, "rounds": 20, "merges": 100, "staleness_mean": 1.0}
        ues = [{"test_accuracy_personal": each} for each in [share - 0.1, share + 0.1] * 10]
        return Result(rows, ues, facts | {"mode": "S2", "quorum": 5})

    return trained_by(result, done, fails)


def fixed(name, learning, seed):  # noqa: ARG001 (what a formula may ask for)
    """PerFedS2 is 4 points above FedBuff and 8 above Ditto, give or take the seed."""
    best = {"PerFedS2": 0.80, "FedBuff": 0.76, "Ditto": 0.72}[name]
    return best + 0.002 * (seed % 5) * {"PerFedS2": 1, "FedBuff": 2, "Ditto": -1}[name]


def run(path: Path, plan: ArenaPlan, on: Any = None, **more: Any) -> Arena:
    with training(on or played(fixed)):
        return run_arena(plan, path, Execution(yes=True, **more))
