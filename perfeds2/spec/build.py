"""What objects does a spec stand for? The task, the cell, the algorithms and their timelines, for a seed.

What is the user's own is called with what it names of what is known here:

- a task: a ``Task``, or a function of any of (ues, labels_per_ue, split, seed, data_dir) that returns one;
- a split: a function of any of (labels, owners, ues, seed) that says whose each sample is, or who gets which share;
- a loss: a function of outputs and targets; a metric: one of outputs, targets and a mask;
- a model: a ``Model``, a PyTorch module, or a function or class of any of (inputs, classes, dtype) that gives one;
- a cell: FILE.csv, a ``Cell``, a subclass of it, or a function of any of (ues, seed) and the cell's settings;
- a radio: a ``Radio``, or a function of any of (distance_m, x_m, y_m, carrier_hz, bs_height_m, ue_height_m, seed) that
  gives the path loss of each UE in dB;
- a schedule: a function of ``round_`` or of a ``moment``, or one of any of (cell, shares, quorum, rounds, seed, payload_bits,
  samples) that returns rows of UEs or such a function;
- shares: a function of any of (cell, ues, quorum, payload_bits, samples, seed);
- a bandwidth policy: a function of an ``Uplink``;
- a merge: a ``Merge``, or a function or class of settings (its own, and any of the learning settings) that gives one;
- an algorithm: an ``Algorithm``, a function of any of (cell, seed, spec) that returns one, or a method: an objective, a merge, or a
  class with one of each as ``objective`` and ``merge``. It runs in the spec's semi-synchronous rounds unless its ``mode`` says otherwise.
"""

import inspect
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
from jaxtyping import Float

from perfeds2.allocation import schedule as schedules
from perfeds2.allocation.bandwidth import Policy, between, equal_finish, equal_share
from perfeds2.allocation.schedulers import of_those_here
from perfeds2.allocation.shares import check_shares, equal_shares, nearest_feasible
from perfeds2.allocation.tiers import AllTiers, OneTier, tiers_by_latency
from perfeds2.errors import InputError
from perfeds2.learning.merges import Merge, OfMean, Undrafted
from perfeds2.learning.methods import parts_of
from perfeds2.learning.methods.fedat import TierAverage
from perfeds2.learning.methods.safa import ModelCache
from perfeds2.learning.methods.scaffold import Scaffold
from perfeds2.learning.replay import Learner
from perfeds2.learning.task import cycles_per_sample
from perfeds2.network.cell import Cell
from perfeds2.spec.cells import limits_energy, make_budget, make_cell, seconds_a_step, upload_bits
from perfeds2.spec.fields import Spec
from perfeds2.spec.methods import Method, method_of
from perfeds2.spec.names import Named, call, expect, user_errors
from perfeds2.spec.tasks import check_model, make_task, model_of
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import simulate
from perfeds2.timeline.state import Schedule

ROWS = 4096  # of a schedule; a longer run repeats them
TIERS = 5  # M of FedAT and TiFL


# ---- the algorithms


@dataclass(frozen=True)
class Algorithm:
    """What a UE computes, when a round closes, and how the band is shared. Make your own and compare it."""

    name: str
    learner: Learner
    protocol: Protocol
    bandwidth: Policy = equal_share
    schedule: Schedule | None = None  # None: a round closes on the first arrivals
    shares: Float[np.ndarray, " n"] | None = None  # η; None: equal
    mode: str = "custom"

    @property
    def objective(self) -> str:
        return type(self.learner.objective).__name__


@dataclass(frozen=True)
class Stage:
    """What the algorithms of a seed have in common: the cell, schedules for it, and the timelines that are known by now.

    None of it depends on what is learned, so specs in which the clock sees the same share one.
    """

    seed: int
    cell: Cell
    plan: Callable[[int], tuple[Any, Schedule | None]]  # by samples: FedAvg's and FedProx's is one
    timelines: dict[Any, Timeline] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: Spec, seed: int) -> "Stage":
        cell = make_cell(spec, seed)
        return cls(seed, cell, cache(partial(plan_rounds, spec, cell, seed)))


def clock_key(spec: Spec) -> Hashable:
    """Equal in specs whose cells, schedules and timelines are the same."""
    load = (upload_bits(spec), cycles_per_sample(model_of(spec)), seconds_a_step(spec))
    energy = spec.energy if limits_energy(spec) else None
    return spec.cell, spec.radio, energy, spec.protocol, load, spec.run.rounds, spec.run.horizon_s


def make_algorithms(spec: Spec, stage: Stage) -> list[Algorithm]:
    """The spec's algorithms in a stage."""
    algorithms = [_make_algorithm(spec, stage, named) for named in spec.algorithms]
    names = [algorithm.name for algorithm in algorithms]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"--algorithms has {twice} twice; give each its own name.")
    planned = next((each.name for each in algorithms if each.schedule is not None), None)
    if planned is not None and limits_energy(spec):
        raise InputError(
            f"an energy budget does not go with the schedule of {planned}, which would wait for UEs that have left. "
            f"Use --schedule first, or --algorithms without it."
        )
    return algorithms


def _make_algorithm(spec: Spec, stage: Stage, named: Named) -> Algorithm:
    """What a name stands for. Schedule and shares are the S2 algorithms'; the bandwidth policy is everybody's.

    Except that ASY shares the band equally instead of finishing together: it waits for nobody in particular, so who came
    first would be rounding noise (erratum 12).
    """
    found = method_of(named)
    if isinstance(named.value, Algorithm):
        return named.value
    if found is None:
        made = call(named.value, f"--algorithms {named}", {"cell": stage.cell, "seed": stage.seed, "spec": spec})
        return expect(made, Algorithm, "--algorithms", named)
    name, own = found
    mode, bandwidth = own.mode, spec.protocol.bandwidth.value
    learner, protocol = make_learner(spec, name, own), protocol_of(spec, mode)
    if own.rounds == "draft":
        return Algorithm(name, bandwidth=bandwidth, mode=mode, **in_drafts(spec, learner))
    if mode == "S2":
        shares, schedule = stage.plan(learner.samples)
        return Algorithm(name, learner, protocol, bandwidth, schedule, shares, mode)
    together = bandwidth is equal_finish or spec.protocol.bandwidth.text.startswith(f"{between.__name__}:")
    algorithm = Algorithm(name, learner, protocol, equal_share if mode == "ASY" and together else bandwidth, mode=mode)
    if own.rounds is None:
        return algorithm
    return replace(algorithm, **in_tiers(spec, learner, stage, at_once=own.rounds == "all tiers"))


def make_learner(spec: Spec, algorithm: str, method: Method) -> Learner:
    """Return what the UEs compute and how it is merged: made with the settings that the method and the merge name."""
    learning = spec.learning_of(algorithm)
    known = {name: value for name, value in dict(learning).items() if value is not None}
    made = call(method.make, f"the method {algorithm}", known | spec.method_settings(algorithm))
    objective, merge = parts_of(made)
    chosen = learning.merge
    if chosen is not None:
        merge = chosen.value
        if inspect.isclass(merge) or not hasattr(merge, "init"):  # it makes a merge; one that has init is one
            merge = call(merge, f"--merge {chosen}", known | spec.method_settings(chosen.label))
    if not isinstance(merge, Merge | OfMean):
        raise InputError(
            f"--merge {chosen} gave a {type(merge).__name__}; expected something with init and __call__ (docs/how-to/extending.md)."
        )
    learner = Learner(
        objective,
        learning.beta,
        learning.batch,
        learning.local_steps,
        merge,
        alpha=learning.alpha,
        clip=learning.clip,
        bits=None if spec.radio.bits == 32 else spec.radio.bits,
        top_k=None if spec.radio.top_k == 1 else spec.radio.top_k,
        personal_steps=learning.personal_steps or 1,
    )
    _refuse_what_does_not_fit(algorithm, learner, chosen)
    return learner


def _refuse_what_does_not_fit(algorithm: str, learner: Learner, merge: Named | None) -> None:
    """Refuse settings that a method cannot follow."""
    given = {"--top-k": learner.top_k}
    why = "it merges late uploads as well, and a UE could not know which of them counted"
    if isinstance(learner.objective, Scaffold):
        given |= {"--clip": learner.clip, "--bits": learner.bits, "--merge": merge}
        why = "its control variates are computed from whole uploads, by a merge of its own"
    elif not isinstance(learner.merge, Undrafted):
        return
    for flag, value in given.items():
        if value is not None:
            raise InputError(
                f"{flag} {value} does not go with {algorithm}: {why}. Leave it out, or take --algorithms without {algorithm}."
            )


def protocol_of(spec: Spec, mode: str) -> Protocol:
    """The rounds of one mode on this cell."""
    if mode == "SYN":
        return Protocol(spec.cell.ues)
    if mode == "ASY":
        return Protocol(1)
    assert spec.protocol.quorum is not None
    if spec.protocol.unplanned == "rest":
        return Protocol(spec.protocol.quorum, rests=True)
    return Protocol(spec.protocol.quorum, bound_of(spec), spec.protocol.stale)


def bound_of(spec: Spec) -> int | None:
    return None if spec.protocol.max_staleness == "unbounded" else spec.protocol.max_staleness


def in_drafts(spec: Spec, learner: Learner) -> dict[str, Any]:
    """SAFA's rounds, as parts of an algorithm; the bound on staleness is its lag tolerance."""
    assert spec.protocol.quorum is not None
    bound = bound_of(spec)
    if isinstance(learner.merge, ModelCache):
        learner = replace(learner, merge=ModelCache(np.inf if bound is None else float(bound)))
    return {"learner": learner, "protocol": Protocol(spec.protocol.quorum, bound, drafts=True)}


def in_tiers(spec: Spec, learner: Learner, stage: Stage, *, at_once: bool) -> dict[str, Any]:
    """TiFL's and FedAT's rounds, as parts of an algorithm: A of a tier close one, or as many as the smallest tier has."""
    assert spec.protocol.quorum is not None
    count, quorum, ues = spec.protocol.tiers or TIERS, spec.protocol.quorum, stage.cell.ues
    if (spec.protocol.tiers or 0) > ues:
        raise InputError(f"--tiers {count} is more than there are UEs ({ues}); choose fewer.")
    tiers = tiers_by_latency(stage.cell, upload_bits(spec, learner.objective), learner.samples, count, quorum)
    quorum = min(quorum, tiers.smallest)
    if isinstance(learner.merge, TierAverage):
        learner = replace(learner, merge=TierAverage.of(tiers.of))
    schedule = (AllTiers if at_once else OneTier)(tiers, quorum, stage.seed)
    return {"learner": learner, "protocol": Protocol(quorum, rests=True), "schedule": schedule}


def make_shares(spec: Spec, cell: Cell, seed: int, samples: int, *, planned: bool) -> Float[np.ndarray, " n"]:
    """Who takes part how often. What a rule says is moved to the nearest that the bounds allow, if rounds are planned."""
    protocol, given = protocol_of(spec, "S2"), spec.protocol.shares
    bound = protocol.max_staleness if planned else None
    if not isinstance(given, Named):
        shares = np.asarray(given, float)
        check_shares(shares, protocol.quorum, bound)
        return shares
    known = {"cell": cell, "ues": cell.ues, "quorum": protocol.quorum, "seed": seed, "samples": samples}
    shares = np.asarray(call(given.value, f"--shares {given}", known | {"payload_bits": upload_bits(spec)}), float)
    if given.source and (shares.shape != (cell.ues,) or not (np.isfinite(shares).all() and (shares >= 0).all())):
        raise InputError(
            f"--shares {given} gave {shares.tolist()!r:.80}; expected a number from 0 for each of {cell.ues} UEs."
        )
    shares = shares / shares.sum() if given.source else shares
    if given.value is equal_shares or not planned:
        return shares
    return nearest_feasible(shares, protocol.quorum, bound)


def plan_rounds(spec: Spec, cell: Cell, seed: int, samples: int) -> tuple[Float[np.ndarray, " n"], Schedule | None]:
    """Shares, and the schedule that gives them."""
    protocol, named = protocol_of(spec, "S2"), spec.protocol.schedule
    try:
        shares = make_shares(spec, cell, seed, samples, planned=named.value is not None)
        if named.value is None:
            if protocol.rests:
                raise InputError("--unplanned rest needs a plan; choose a --schedule other than first.")
            return shares, None
        if is_schedule(named.value):
            return shares, when_opened(named, protocol, named.value)
        known = {"cell": cell, "shares": shares, "quorum": protocol.quorum, "rounds": spec.run.rounds or ROWS}
        more = {"seed": seed, "samples": samples, "payload_bits": upload_bits(spec)}
        rows: Any = call(named.value, f"--schedule {named}", known | more)
        if callable(rows):
            return shares, skipping(named, protocol, cell, when_opened(named, protocol, rows))  # the clock checks it
        rows = np.asarray(rows)
        if rows.ndim != 2 or rows.shape[1:] != (protocol.quorum,) or rows.dtype.kind not in "iu":
            raise ValueError(
                f"expected rows of {protocol.quorum} UEs (--quorum), got {rows.dtype} of shape {rows.shape}."
            )
        schedules.check_schedule(rows, cell.ues, protocol.max_staleness, protocol.stale)
    except InputError:
        raise
    except ValueError as error:
        shares_text = spec.protocol.shares if isinstance(spec.protocol.shares, Named) else "given"
        raise InputError(f"--schedule {named} --shares {shares_text}: {error}") from None
    return shares, skipping(named, protocol, cell, schedules.as_schedule(rows))


def is_schedule(function: Callable[..., Any]) -> bool:
    """Whether it plans a round; else it makes something that does."""
    return bool({"round_", "moment"} & inspect.signature(function).parameters.keys())


def when_opened(named: Named, protocol: Protocol, schedule: Any) -> Schedule:
    """A schedule that says when a round opens whom it plans. Nobody can know beforehand whether a UE sits out too long."""
    if not named.source and protocol.max_staleness is not None and protocol.stale != "restart":
        raise InputError(
            f"--schedule {named} may leave out a UE for more than {protocol.max_staleness} rounds, and with --stale {protocol.stale} "
            f"its round could wait for ever; use --stale restart, --max-staleness unbounded or --unplanned rest."
        )
    return schedule


def skipping(named: Named, protocol: Protocol, cell: Cell, schedule: Schedule) -> Schedule:
    """One of our schedules where UEs come and go: a round is not planned for who is away when it opens.

    But where only a plan that is kept to the letter keeps everybody within the bound: then the round waits.
    """
    comes_and_goes = cell.fleet is not None and cell.fleet.presence is not None
    to_the_letter = protocol.max_staleness is not None and protocol.stale != "restart"
    if named.source or not comes_and_goes or to_the_letter or "moment" in inspect.signature(schedule).parameters:
        return schedule
    return of_those_here(schedule)


# ---- their timelines


def timeline_key(spec: Spec, algorithm: Algorithm) -> tuple[Any, ...]:
    """Equal in algorithms of a stage that have the same timeline."""
    bits = upload_bits(spec, algorithm.learner.objective)
    shares = None if algorithm.shares is None else algorithm.shares.tobytes()
    return (algorithm.protocol, algorithm.learner.samples, algorithm.bandwidth, algorithm.schedule, shares, bits)


def make_timelines(
    spec: Spec,
    stage: Stage,
    algorithms: Sequence[Algorithm],
    tell: Callable[[Algorithm, int, float], None] | None = None,
) -> Iterator[Timeline]:
    """Each algorithm's timeline. It knows no weights, so those that differ only in what they learn share one.

    ``tell`` hears of the rounds closed and the second reached on the way.
    """
    known, cell = stage.timelines, stage.cell
    for algorithm in algorithms:
        same = timeline_key(spec, algorithm)
        if same not in known:
            own = spec.protocol.bandwidth
            with_own = f" with --bandwidth {own}" if own.source and algorithm.bandwidth is own.value else ""
            with user_errors(f"{algorithm.name}{with_own}", type(cell), algorithm.bandwidth, algorithm.schedule):
                known[same] = simulate(
                    cell,
                    algorithm.protocol,
                    payload_bits=upload_bits(spec, algorithm.learner.objective),
                    samples=algorithm.learner.samples,
                    rounds=spec.run.rounds,
                    horizon_s=spec.run.horizon_s,
                    bandwidth=algorithm.bandwidth,
                    schedule=algorithm.schedule,
                    shares=algorithm.shares,
                    budget=make_budget(spec, cell, algorithm.learner.samples),
                    tell=None if tell is None else partial(tell, algorithm),
                )
        yield known[same]


def check(spec: Spec, *, trains: bool) -> None:
    """Find out what cannot work before anything is written."""
    seed = spec.run.seeds[0]
    check_model(spec)
    for algorithm in make_algorithms(spec, Stage.of(spec, seed)):
        upload_bits(spec, algorithm.learner.objective)
    if trains:
        make_task(spec, seed)
