"""Arenas without training: workers that know a formula."""

from pathlib import Path
from typing import Any

from perfeds2.runs.crew import Crew, Done, Failed, Started
from perfeds2.spec.resolve import nested
from perfeds2.studies.arena import Arena, run_arena
from perfeds2.studies.arena_plan import Plan, make_plan

THREE = ["PerFedS2", "FedBuff", "Ditto"]


def plan_of(base: dict[str, Any] | None = None, **asked: Any) -> Plan:
    given: dict[str, Any] = {"methods": THREE} | asked
    return make_plan(nested({"horizon_s": 9.0, "seeds": 3} | (base or {})), **given)


def played(accuracy, done=None, *, fails=lambda _: None, together=False):
    """A crew of one hand. ``accuracy`` of (method, learning, seed) is reached at half of the horizon."""

    def result(name, spec, seed):
        horizon_s, learning = spec.run.horizon_s, spec.learning_of(name)
        share = accuracy(name, learning, seed)
        times = [(0, 0.0, 0.1), (10, horizon_s / 2, share), (20, horizon_s, share)]
        metrics = [
            {"round": k, "time_s": t, "train_loss": 1.0, "train_loss_personal": 1.0, "test_accuracy": 0.2}
            | {"test_accuracy_personal": a}
            for k, t, a in times
        ]
        facts = {"rounds": 20, "merges": 100, "staleness_mean": 1.0, "seconds_per_round": 1.0, "waiting_share": 0.0}
        facts |= {"wasted_share": 0.0, "time_to_target_s": None, "mode": "S2", "quorum": 5, "upload_bits": 10.0}
        ues = [share - 0.1, share + 0.1] * 10
        return {
            "seed": seed,
            "algorithms": [{"algorithm": name, **facts, "metrics": metrics, "ue_accuracy_personal": ues}],
        }

    def events(line):
        while line:
            job = line.take()
            yield Started(job, 0)
            error = fails(job)
            if isinstance(error, BaseException):
                raise error
            if error is not None:
                yield Failed(job, 0, error, again=True)
                continue
            if done is not None:
                done.append((job.shape, job.specs[0].run.seeds, job.specs[0].task.held_out))
            yield Done(job, 0, [[result(job.shape, spec, seed) for seed in spec.run.seeds] for spec in job.specs])

    return lambda _: Crew(1, together, events)


def fixed(name, learning, seed):  # noqa: ARG001 (what a formula may ask for)
    """PerFedS2 is 4 points above FedBuff and 8 above Ditto, give or take the seed."""
    best = {"PerFedS2": 0.80, "FedBuff": 0.76, "Ditto": 0.72}[name]
    return best + 0.002 * (seed % 5) * {"PerFedS2": 1, "FedBuff": 2, "Ditto": -1}[name]


def run(path: Path, plan: Plan, **more: Any) -> Arena:
    return run_arena(plan, path, **{"on": played(fixed), "yes": True} | more)
