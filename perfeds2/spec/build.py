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
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from perfeds2.allocation import schedule as schedules
from perfeds2.allocation.bandwidth import Policy, between, equal_finish, equal_share
from perfeds2.allocation.shares import check_shares, equal_shares, nearest_feasible
from perfeds2.errors import InputError
from perfeds2.learning.data import Data, Divisible
from perfeds2.learning.losses import MEASURES
from perfeds2.learning.merges import Merge, OfMean, Undrafted
from perfeds2.learning.methods import parts_of
from perfeds2.learning.methods.scaffold import Scaffold
from perfeds2.learning.models.model import Judged, Model
from perfeds2.learning.objectives import Withholding
from perfeds2.learning.payload import SCALE_BITS, numbers_sent, place_bits
from perfeds2.learning.replay import Learner
from perfeds2.learning.task import Task, cycles_per_sample, payload_bits, weight_shapes
from perfeds2.network.cell import Cell
from perfeds2.network.fleet_file import FleetFile
from perfeds2.spec.alpha import smoothness_of
from perfeds2.spec.fields import CellSpec, Spec, TaskSpec
from perfeds2.spec.fleets import cell_of_fleet, limits_energy, refuse_without_a_fleet, seconds_a_step
from perfeds2.spec.methods import Method, method_of
from perfeds2.spec.names import Named, call, expect, user_errors
from perfeds2.spec.networks import network_of
from perfeds2.spec.radio import make_budget, make_radio
from perfeds2.spec.rounds import bound_of, in_drafts, in_tiers, is_schedule, skipping, when_opened
from perfeds2.spec.tasks import recipe_of, split_of, task_errors
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import simulate
from perfeds2.timeline.state import Schedule

NOT_FOR_CELLS = {"kind", "distance_m", "payload_bits", "trace_end", "on_leave"}
ROWS = 4096  # of a schedule; a longer run repeats them


# ---- the task and the cell


def make_task(spec: Spec, seed: int) -> Task:
    """Data in the hands of the UEs, and a model for them."""
    named, ues = spec.task.name, spec.cell.ues
    recipe, where = recipe_of(spec), (ues, spec.task.labels_per_ue, seed, spec.task.data_dir)
    with task_errors(named):
        if recipe is None:
            task = _own_task(named, *where, spec.task.split)
        else:
            task = recipe(*where, split=split_of(spec.task.split))
    if spec.task.held_out:
        task = replace(task, data=hold_out(task.data, f"--task {named}"))
    if task.ues != ues:
        raise InputError(f"--task {named} is for {task.ues} UEs, but there are {ues} (--ues).")
    model = network_of(spec, recipe or task)
    return task if model is task.model else replace(task, model=model)


def _task(
    named: Named, ues: int, labels_per_ue: int | None, seed: int, data_dir: str | None, split: Named | None
) -> Task:
    asks = callable(named.value) and "split" in inspect.signature(named.value).parameters
    if split is not None and not asks:
        raise InputError(f"--task {named} does not ask for a split, so --split {split} has no say; leave it out.")
    if not callable(named.value):
        return expect(named.value, Task, "--task", named)
    known: dict[str, Any] = {"ues": ues, "labels_per_ue": labels_per_ue, "seed": seed, "data_dir": data_dir}
    known["split"] = split_of(split)
    return expect(call(named.value, f"--task {named}", known), Task, "--task", named)


def hold_out(data: Data, what: str) -> Data:
    """The same data with a validation part, cut from the training part, in the place of the test part."""
    if not isinstance(data, Divisible):
        raise InputError(
            f"{what} has data without held_out(), so no part can be held out for validation; add it to them."
        )
    return data.held_out()


_own_task = lru_cache(maxsize=1)(_task)  # the clock asks for its model first, then it is trained


def model_of(spec: Spec) -> Model:
    """What is trained. For a built-in task it is known before its data are read."""
    recipe = recipe_of(spec)
    return make_task(spec, spec.run.seeds[0]).model if recipe is None else network_of(spec, recipe)


def check_model(spec: Spec) -> None:
    """Refuse a chosen model, loss or metric that does not fit its task."""
    if (spec.task.model, spec.task.loss, spec.task.metric) != (None, None, None):
        model_of(spec)


def metric_of(spec: Spec) -> str:
    """What stands for the accuracy, by its name."""
    if spec.task.metric is not None:
        return _plain(spec.task.metric.label)
    model = None if recipe_of(spec) is not None else model_of(spec)
    if not isinstance(model, Judged):
        return "accuracy"
    metric: Any = model.metric
    ours = (name for name, each in MEASURES.items() if metric is each or type(metric) is each)
    return next(ours, None) or _plain(getattr(metric, "__name__", type(metric).__name__))


def _plain(name: str) -> str:
    return name if name.isidentifier() else "metric"  # a lambda has none


def make_cell(spec: Spec, seed: int) -> Cell:
    """The cell of a seed: who is where and how fast, and the fading everybody meets."""
    settings, own = spec.cell, spec.cell.kind
    kind: Any = Cell if own is None else own.value
    refuse_without_a_fleet(spec)
    if isinstance(kind, FleetFile):
        kind = partial(cell_of_fleet, spec, kind)
    if isinstance(kind, Cell):
        cell = kind
    else:
        known: dict[str, Any] = settings.model_dump(exclude=NOT_FOR_CELLS) | {"seed": seed}
        known |= make_radio(spec, partial(model_bits, spec))
        known["cycles_per_sample"] = settings.cycles_per_sample or cycles_per_sample(model_of(spec))
        make = kind.draw if inspect.isclass(kind) and issubclass(kind, Cell) else kind
        with user_errors(f"--cell {own}", kind):
            cell = expect(call(make, f"--cell {own}", known), Cell, "--cell", own)
    if cell.ues != settings.ues:
        raise InputError(f"--cell {own} has {cell.ues} UEs, but there are {settings.ues} (--ues).")
    return cell if settings.distance_m is None else replace(cell, distance_m=np.asarray(settings.distance_m, float))


def model_bits(spec: Spec) -> float:
    """What a model takes on its way to a UE."""
    return spec.cell.payload_bits or payload_bits(model_of(spec))


def upload_bits(spec: Spec, objective: Any = None) -> float:
    """Z: what one upload takes. If nobody says it, less of an objective whose UEs keep a part of the model for themselves.

    Of fewer bits a number, every array that is uploaded has its scale besides; of some of the numbers, where they stand.
    """
    if spec.cell.payload_bits is not None:
        return spec.cell.payload_bits
    model, bits = model_of(spec), spec.radio.bits or 32
    arrays = weight_shapes(model)
    stays = _withheld(objective, model) if isinstance(objective, Withholding) else []
    numbers = round(payload_bits(model) / 32) - sum(math.prod(each.shape) for each in stays)
    sent = numbers_sent(spec.radio.top_k or 1.0, numbers)
    return bits * sent + place_bits(sent, numbers) + (SCALE_BITS * (len(arrays) - len(stays)) if bits < 32 else 0.0)


def _withheld(objective: Withholding, model: Model) -> list[Any]:
    """The shapes of what is not uploaded."""
    try:
        return jax.tree.leaves(jax.eval_shape(lambda: objective.withheld(model.init(jax.random.key(0)))))
    except ValueError as error:
        raise InputError(f"{type(objective).__name__} does not fit this model: {error}") from None


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
    at_once = own.rounds == "all tiers"
    return replace(
        algorithm,
        **in_tiers(spec, learner, stage.cell, stage.seed, upload_bits(spec, learner.objective), at_once=at_once),
    )


def make_learner(spec: Spec, algorithm: str, method: Method) -> Learner:
    """Return what the UEs compute and how it is merged: made with the settings that the method and the merge name."""
    learning, alpha = spec.learning_of(algorithm), alpha_of(spec, algorithm).value
    known = {name: value for name, value in dict(learning).items() if value is not None} | {"alpha": alpha}
    made = call(method.make, f"the method {algorithm}", known | spec.method_settings(algorithm))
    objective, merge = parts_of(made)
    chosen = learning.merge
    if chosen is not None:
        merge = chosen.value
        if callable_to_make(merge):
            merge = call(merge, f"--merge {chosen}", known | spec.method_settings(chosen.label))
    merge = _expect_merge(merge, chosen)
    _refuse_what_does_not_fit(spec, algorithm, objective, merge)
    bits, top_k = _shortened(spec)
    return Learner(
        objective,
        learning.beta,
        learning.batch,
        learning.local_steps,
        merge,
        alpha=alpha,
        clip=learning.clip,
        bits=bits,
        top_k=top_k,
        personal_steps=learning.personal_steps or 1,
    )


def _shortened(spec: Spec) -> tuple[int | None, float | None]:
    """Return the bits of each number and the share of the numbers of an upload; None where nothing is left out."""
    bits = None if spec.radio.bits == 32 else spec.radio.bits
    return bits, None if spec.radio.top_k == 1 else spec.radio.top_k


def _refuse_what_does_not_fit(spec: Spec, algorithm: str, objective: Any, merge: Any) -> None:
    """Refuse settings that a method cannot follow."""
    (bits, top_k), learning = _shortened(spec), spec.learning_of(algorithm)
    if isinstance(objective, Scaffold):
        if learning.merge is not None:
            raise InputError(
                f"--merge {learning.merge} cannot merge SCAFFOLD, whose control variates are merged too; leave it out."
            )
        for given, does in (
            (learning.clip, f"--clip {learning.clip or 0:g} would shorten"),
            (bits, f"--bits {bits} would round"),
            (top_k, f"--top-k {top_k} would cut"),
        ):
            if given is not None:
                raise InputError(
                    f"{does} what SCAFFOLD's control variates are computed from at the server, and not at the UE; leave it out, "
                    f"or take --algorithms without {algorithm}."
                )
    if top_k is not None and isinstance(merge, Undrafted):
        raise InputError(
            f"--top-k {top_k} does not go with {algorithm}, which merges late uploads as well: a UE could not know which of them "
            f"counted; leave it out, or take --algorithms without {algorithm}."
        )


def callable_to_make(merge: Any) -> bool:
    """Whether it makes a merge; else it is one, which can be called as well."""
    return inspect.isclass(merge) or not hasattr(merge, "init")


def _expect_merge(made: Any, named: Named | None) -> Merge | OfMean:
    if not isinstance(made, Merge | OfMean):
        raise InputError(
            f"--merge {named} gave a {type(made).__name__}; expected something with init and __call__ (docs/how-to/extending.md)."
        )
    return made


@dataclass(frozen=True)
class Alpha:
    """Which α a spec means, and why."""

    value: float
    note: str | None = None


def alpha_of(spec: Spec, algorithm: str) -> Alpha:
    """An algorithm's α. ``auto`` is the task's, or 1/L where that is shorter: one number for all algorithms and seeds."""
    alpha = spec.learning_of(algorithm).alpha
    if alpha != "auto":
        return Alpha(alpha)
    return _fitting_alpha(spec.task, spec.cell.ues)  # type: ignore[arg-type]  # frozen, so it has a hash


@cache
def _fitting_alpha(task: TaskSpec, ues: int) -> Alpha:
    spec = Spec(task=task, cell=CellSpec(ues=ues))
    recipe = recipe_of(spec)
    usual = ({} if recipe is None else recipe.defaults).get("learning", {}).get("alpha", spec.learning.alpha)
    largest = smoothness_of(make_task(spec, 0))
    fitting = float(f"{1 / largest:.3g}")  # what stands in the note is what is taken
    seen = f"1/L (L = {largest:.3g} where the pilot looked)"
    if usual <= fitting:
        return Alpha(usual, f"--alpha auto: the task's {usual:g}, which is not above {seen}.")
    return Alpha(
        fitting, f"--alpha auto: {fitting:g} = {seen}; the task's {usual:g} is {usual / fitting:.2g} times too long."
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
