"""How fast is it, against the plainest way to do the same work?

Rivals take turns in one run, so a busy machine slows all of them, and a ratio is the median of the turns' ratios. The
rivals are here to be read: a bare NumPy loop, a bare compiled JAX loop, a process-per-UE model, a convex solver. A
target that is missed is shown as missed.
"""

import json
import os
import platform
import subprocess  # only ever starts this very Python
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from perfeds2 import __version__
from perfeds2.allocation.bandwidth import Policy, Uplink, equal_finish, equal_share
from perfeds2.allocation.schedule import as_schedule, deficit
from perfeds2.allocation.shares import distance_shares, equal_shares, nearest_feasible
from perfeds2.errors import InputError
from perfeds2.learning.data import Shards
from perfeds2.learning.datasets import digits
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.objectives import FedAvg, Objective, PerFed
from perfeds2.learning.partition import Partition
from perfeds2.learning.replay import Learner, replay
from perfeds2.learning.task import Task, cycles_per_sample, payload_bits
from perfeds2.learning.train import evaluation_points, train
from perfeds2.network.cell import Cell
from perfeds2.network.link import rate_bps
from perfeds2.runs.summary import statistic, time_to_target
from perfeds2.timeline.rounds import Protocol
from perfeds2.timeline.simulate import Schedule, simulate
from perfeds2.timeline.timeline import Timeline

Tell = Callable[[str], None]
Seconds = Float[np.ndarray, " turns"]


@dataclass(frozen=True)
class Result:
    """One line of the benchmark."""

    name: str  # group/what
    what: str
    value: float | None  # the median of the turns, or the mean over seeds; None if not measured, ``what`` says why
    unit: str
    target: str | None = None
    ok: bool | None = None  # None where there is no target
    low: float | None = None  # of all turns, or of the 95 % interval over seeds
    high: float | None = None


def bench(
    only: Sequence[str] | None = None, repeats: int = 5, *, seed: int = 0, tell: Tell | None = None
) -> list[Result]:
    """Measure the given groups, or all of them. ``tell`` hears what takes a while before it begins."""
    unknown = [name for name in only or () if name not in GROUPS]
    if unknown:
        raise InputError(f"--only {unknown[0]} is no group of the benchmark; expected one of {', '.join(GROUPS)}.")
    if repeats < 1:
        raise InputError(f"repeats must be at least 1, got {repeats}.")
    tell = tell or (lambda _: None)
    return [row for name, group in GROUPS.items() if not only or name in only for row in group(repeats, seed, tell)]


def to_json(results: Sequence[Result]) -> str:
    """The results, and what they were measured on."""
    machine = {
        "perfeds2": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "jax": jax.__version__,
        "device": jax.default_backend(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }
    return json.dumps({**machine, "results": [asdict(result) for result in results]}, indent=1, allow_nan=False) + "\n"


def print_results(results: Sequence[Result]) -> None:
    """A row per result; a missed target is red."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=150)
    table = Table(
        box=None,
        header_style="bold",
        pad_edge=False,
        caption="The median of the turns, and their range. Under joint: the mean over seeds and its 95 % interval.",
    )
    for head, side in (("what", "left"), ("value", "right"), ("", "left"), ("range", "right"), ("target", "left")):
        table.add_column(head, justify=side, no_wrap=head != "what")  # type: ignore[arg-type]  # rich wants a literal
    for result in results:
        mark = {None: "", True: " ✓", False: " [red]missed[/red]"}[result.ok]
        spread = "" if result.low is None or result.high is None else f"{result.low:.3g} to {result.high:.3g}"
        value = (
            "–"
            if result.value is None
            else f"{result.value:.3g}"
            if abs(result.value) < 1000
            else f"{result.value:,.0f}"
        )
        table.add_row(
            f"[dim]{result.name}[/dim] {result.what}", value, result.unit, spread, (result.target or "") + mark
        )
    console.print(table)


# Replay: one compiled loop against two bare ones.

NETWORK = MLP((784, 100, 10))
BETA, BATCH, QUORUM, STALENESS = 0.07, 40, 5, 5
Draw = Callable[..., Int[np.ndarray, " b"] | Int[jax.Array, " b"]]  # (UE, version) -> which samples its job looks at
Weights = tuple[Any, ...]  # arrays of two layers: weight, bias, weight, bias


def replay_group(
    repeats: int,
    seed: int,
    tell: Tell,
    *,
    rounds: int = 200,
    samples: int = 60_000,
    populations: Sequence[int] = (20, 200, 2_000),
    model: MLP = NETWORK,
) -> Iterator[Result]:
    """Rounds a second at A = 5 and batch 40, without evaluations, on data with MNIST's shape."""
    tell(f"replay: {rounds} rounds for each of {6 + len(populations) - 1} loops, {repeats} turns …")
    tasks = random_tasks(model, samples, populations, seed)
    lines = [bench_timeline(model, ues, rounds, seed) for ues in populations]
    task, line = tasks[0], lines[0]

    def ours(objective: Objective, task: Task = task, line: Timeline = line) -> Callable[[], object]:
        return lambda: jax.block_until_ready(replay(task, line, Learner(objective, BETA, BATCH), seed))

    drawn = jax_draw(task.data, seed)
    seconds = take_turns(
        {
            "plain": ours(FedAvg()),
            "numpy": partial(numpy_replay, *_numpy_task(task, seed), line, _numpy_draw(task.data, seed)),
            "jax": lambda: jax.block_until_ready(jax_replay(task, line, drawn, seed)),
            "exact": ours(PerFed(0.03)),
            "fo": ours(PerFed(0.03, "fo")),
            "hf": ours(PerFed(0.03, "hf")),
        }
        | {f"n={t.ues}": ours(FedAvg(), t, line) for t, line in zip(tasks[1:], lines[1:], strict=True)},
        repeats,
    )
    plain = seconds["plain"]
    size = "-".join(map(str, model.sizes))
    yield _result("replay/plain", f"plain gradients, {size} network, {task.ues} UEs", rounds / plain, "rounds/s")
    yield _result("replay/numpy", "times as fast as a bare NumPy loop", seconds["numpy"] / plain, "×", at_least=1)
    yield _result(
        "replay/jax", "times the seconds of a bare compiled JAX loop", plain / seconds["jax"], "×", at_most=1.15
    )
    for name, words, most in (
        ("exact", "exact Hessian", 4.5),
        ("fo", "first order", None),
        ("hf", "Hessian-free", None),
    ):
        what = f"PerFed, {words}: times the seconds of plain rounds"
        yield _result(f"replay/{name}", what, seconds[name] / plain, "×", at_most=most)
    for task in tasks[1:]:
        what = f"plain rounds among {task.ues:,} UEs: times the seconds among {tasks[0].ues}"
        yield _result(f"replay/n={task.ues}", what, seconds[f"n={task.ues}"] / plain, "×", at_most=1.15)


def random_tasks(model: MLP, samples: int, populations: Sequence[int], seed: int) -> list[Task]:
    """The same random samples in the hands of so many UEs each, in equal parts."""
    random = np.random.default_rng(seed)
    x, y = random.random((samples, model.sizes[0]), np.float32), random.integers(0, model.sizes[-1], samples)
    nobody = np.zeros(1, int)
    data = Shards.of(x, y, Partition(np.arange(samples), nobody, nobody, nobody))
    tasks = []
    for ues in populations:
        each = samples // ues
        start, train, test = np.arange(ues) * each, np.full(ues, each - each // 6), np.full(ues, each // 6)
        parts = [jnp.asarray(column, jnp.int32) for column in (start, train, test)]
        tasks.append(Task("random", model, replace(data, start=parts[0], train=parts[1], test=parts[2])))
    return tasks


def bench_timeline(model: MLP, ues: int, rounds: int, seed: int) -> Timeline:
    protocol = Protocol(min(QUORUM, ues), STALENESS)
    return simulate(Cell.draw(ues, seed), protocol, payload_bits=payload_bits(model), samples=BATCH, rounds=rounds)


def numpy_replay(weights: Weights, x: np.ndarray, y: np.ndarray, line: Timeline, draw: Draw) -> Weights:
    """What one would write in NumPy: round after round, UE after UE, with a ring of the models still needed."""
    ring = [weights] * line.depth
    for k, (ues, versions) in enumerate(zip(line.ues.tolist(), line.versions.tolist(), strict=True)):
        total: list[np.ndarray] = []
        for ue, version in zip(ues, versions, strict=True):
            at = draw(ue, version)
            gradient = _numpy_gradient(ring[version % line.depth], x[at], y[at])
            if total:
                for so_far, more in zip(total, gradient, strict=True):
                    so_far += more
            else:
                total = gradient
        step = np.float32(BETA / line.quorum)
        ring[(k + 1) % line.depth] = tuple(w - step * g for w, g in zip(ring[k % line.depth], total, strict=True))
    return ring[line.rounds % line.depth]


def _numpy_gradient(weights: Weights, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    weight1, bias1, weight2, bias2 = weights
    before = x @ weight1 + bias1
    hidden = np.maximum(before, 0)
    logits = hidden @ weight2 + bias2
    logits -= logits.max(axis=1, keepdims=True)
    error = np.exp(logits)
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(y.size), y] -= 1
    error /= y.size
    behind = (error @ weight2.T) * (before > 0)
    return [x.T @ behind, behind.sum(axis=0), hidden.T @ error, error.sum(axis=0)]


def _numpy_task(task: Task, seed: int) -> tuple[Weights, np.ndarray, np.ndarray]:
    assert isinstance(task.data, Shards)
    weights = tuple(np.asarray(w) for w in initial_weights(task, seed))
    return weights, np.asarray(task.data.x), np.asarray(task.data.y)


def _numpy_draw(data: object, seed: int) -> Draw:
    assert isinstance(data, Shards)
    start, train, random = np.asarray(data.start), np.asarray(data.train_count), np.random.default_rng(seed)
    return lambda ue, _: start[ue] + random.integers(0, train[ue], BATCH)


def jax_replay(task: Task, line: Timeline, draw: Draw, seed: int) -> Weights:
    """What one would write in JAX: a scan over rounds, in it a scan over UEs, and the same ring."""
    assert isinstance(task.data, Shards)
    jobs = jnp.arange(line.rounds), jnp.asarray(line.ues, jnp.int32), jnp.asarray(line.versions, jnp.int32)
    return _jax_rounds(initial_weights(task, seed), *jobs, task.data.x, task.data.y, draw=draw, depth=line.depth)


@partial(jax.jit, static_argnames=("draw", "depth"))
def _jax_rounds(
    weights: Weights,
    rounds: Int[jax.Array, " K"],
    ues: Int[jax.Array, "K A"],
    versions: Int[jax.Array, "K A"],
    x: jax.Array,
    y: jax.Array,
    *,
    draw: Draw,
    depth: int,
) -> Weights:
    def one_round(carry: tuple[Weights, Weights], job: tuple) -> tuple[tuple[Weights, Weights], None]:
        weights, ring = carry
        k, ues, versions = job

        def one_ue(total: Weights, job: tuple) -> tuple[Weights, None]:
            ue, version = job
            at = draw(ue, version)
            gradient = _jax_gradient(tuple(w[version % depth] for w in ring), x[at], y[at])
            return tuple(t + g for t, g in zip(total, gradient, strict=True)), None

        total, _ = jax.lax.scan(one_ue, tuple(jnp.zeros_like(w) for w in weights), (ues, versions))
        weights = tuple(w - BETA / ues.size * g for w, g in zip(weights, total, strict=True))
        ring = tuple(r.at[(k + 1) % depth].set(w) for r, w in zip(ring, weights, strict=True))
        return (weights, ring), None

    ring = tuple(jnp.zeros((depth, *w.shape), w.dtype).at[0].set(w) for w in weights)
    return jax.lax.scan(one_round, (weights, ring), (rounds, ues, versions))[0][0]


def _jax_gradient(weights: Weights, x: jax.Array, y: jax.Array) -> Weights:
    weight1, bias1, weight2, bias2 = weights
    before = x @ weight1 + bias1
    hidden = jnp.maximum(before, 0)
    error = (jax.nn.softmax(hidden @ weight2 + bias2) - jax.nn.one_hot(y, bias2.size)) / y.size
    behind = (error @ weight2.T) * (before > 0)
    return x.T @ behind, behind.sum(axis=0), hidden.T @ error, error.sum(axis=0)


def jax_draw(data: object, seed: int) -> Draw:
    """Drawn inside the loop, with a key of (UE, version), as replay does."""
    assert isinstance(data, Shards)
    start, train = data.start, data.train_count

    def draw(ue: jax.Array, version: jax.Array) -> Int[jax.Array, " b"]:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), ue), version)
        return start[ue] + jax.random.randint(key, (BATCH,), 0, train[ue])

    return draw


def initial_weights(task: Task, seed: int) -> Weights:
    """Replay's w_0, layer after layer."""
    params = task.model.init(jax.random.fold_in(jax.random.key(seed), 0))
    return tuple(params[name] for name in ("dense1.weight", "dense1.bias", "dense2.weight", "dense2.bias"))


# Clock: the timeline against a model with a process for every UE.


def clock_group(repeats: int, seed: int, tell: Tell, *, ues: int = 188, rounds: int = 2_000) -> Iterator[Result]:
    """Seconds for a timeline, and a round's seconds against the slow twin's (which plays a fiftieth of the rounds)."""
    tell(f"clock: {rounds:,} rounds of {ues} UEs, {repeats} turns …")
    cell, payload, samples, few = Cell.draw(ues, seed), 1e6, 120.0, max(rounds // 50, 1)
    quarter, everybody = Protocol(max(ues // 4, 1), STALENESS), Protocol(ues)

    def ours(protocol: Protocol) -> Callable[[], object]:
        return lambda: simulate(cell, protocol, payload_bits=payload, samples=samples, rounds=rounds)

    rivals = {"quarter": ours(quarter), "everybody": ours(everybody)}
    if with_twin := find_spec("simpy") is not None:
        from perfeds2.timeline.twin import Radio, RoundRules, play_with_processes

        def slowly(protocol: Protocol) -> Callable[[], object]:
            radio = Radio(cell.signal_hz, cell.bandwidth_hz, equal_share)
            rules = RoundRules(protocol.quorum, protocol.max_staleness, protocol.stale)
            return lambda: play_with_processes(radio, rules, cell.compute_s(samples), payload, few)

        rivals |= {"slow quarter": slowly(quarter), "slow everybody": slowly(everybody)}
    seconds = take_turns(rivals, repeats)
    what = f"{ues} UEs × {rounds:,} rounds, A = {quarter.quorum}, S = {STALENESS}"
    yield _result("clock/simulate", what, seconds["quarter"], "s", at_most=1)
    for name, protocol in (("quarter", quarter), ("everybody", everybody)):
        what = f"times as fast as SimPy, a process per UE, A = {protocol.quorum}"
        if with_twin:
            ratio = seconds[f"slow {name}"] / few / (seconds[name] / rounds)
            yield _result(f"clock/simpy-{name}", what, ratio, "×", at_least=50)
        else:
            yield _left_out(f"clock/simpy-{name}", what, "simpy")


# Start-up: how long until a user sees something?


def start_up_group(repeats: int, seed: int, tell: Tell) -> Iterator[Result]:  # noqa: ARG001 (nothing is random here)
    """Whole processes, the interpreter's own start included."""
    tell(f"start-up: three fresh processes, {repeats} turns …")
    seconds = take_turns(
        {
            "nothing": partial(_python, "-c", "pass"),
            "import": partial(_python, "-c", "import perfeds2"),
            "help": partial(_python, "-m", "perfeds2.cli", "--help"),
        },
        repeats,
    )
    yield _result("start-up/python", "python -c pass, for comparison", seconds["nothing"], "s")
    yield _result("start-up/import", "python -c 'import perfeds2'", seconds["import"], "s", at_most=0.3)
    yield _result("start-up/help", "perfeds2 --help", seconds["help"], "s", at_most=0.6)
    loaded = _python("-c", "import sys, perfeds2.cli; print(sum(name == 'jax' for name in sys.modules))")
    yield _result(
        "start-up/jax", "times the command line loads JAX to print its help", np.array([float(loaded)]), "", at_most=0
    )


def _python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True)  # noqa: S603
    return done.stdout


# Allocation: closed forms against a convex solver.


def allocation_group(
    repeats: int,
    seed: int,
    tell: Tell,
    *,
    many: int = 1_000_000,
    few: int = 200,
    scheduled: int = 100_000,
    rounds: int = 1_000,
    quorum: int = 1_000,
) -> Iterator[Result]:
    """Theorem 2's bandwidths and the schedule, for as many UEs as anybody has."""
    tell(f"allocation: {many:,} UEs, then a solver for {few}, {repeats} turns …")
    million, couple, calls = opening(many, seed), opening(few, seed), 20
    rivals: dict[str, Callable[[], object]] = {
        "many": lambda: equal_finish(million),
        "few": lambda: [equal_finish(couple) for _ in range(calls)],
    }
    if with_solver := find_spec("cvxpy") is not None:
        rivals |= {"at once": lambda: solver_finish_s(couple), "each": lambda: solver_finish_s(couple, one_by_one=True)}
    seconds = take_turns(rivals, repeats)
    yield _result("allocation/many", f"equal_finish, {many:,} UEs", seconds["many"], "s", at_most=0.5)
    yield _result("allocation/few", f"equal_finish, {few} UEs", 1e3 * seconds["few"] / calls, "ms")
    for name, words in (("at once", "vectorised, its best form"), ("each", "one constraint per UE")):
        row = f"allocation/cvxpy-{name.replace(' ', '-')}"
        what = f"times as fast as cvxpy (Clarabel), {words}, {few} UEs"
        if with_solver:
            yield _result(row, what, seconds[name] / (seconds["few"] / calls), "×", at_least=1_000)
        else:
            yield _left_out(row, what, "cvxpy")
    if with_solver:
        ours_s = (couple.compute_s + couple.bits / rate_bps(equal_finish(couple), couple.signal_hz)).max()
        apart = abs(solver_finish_s(couple) / ours_s - 1)
        yield _result("allocation/same", "how far the solver's T is from ours", np.array([apart]), "", at_most=1e-6)
    tell(f"allocation: a schedule for {scheduled:,} UEs × {rounds:,} rounds, {repeats} turns …")
    wish = np.random.default_rng(seed).dirichlet(np.full(scheduled, 3.0))
    shares = nearest_feasible(wish, quorum, None)
    seconds = take_turns({"deficit": lambda: deficit(shares, quorum, rounds)}, repeats)
    what = f"deficit schedule, {scheduled:,} UEs × {rounds:,} rounds, A = {quorum:,}"
    yield _result("allocation/deficit", what, seconds["deficit"], "s", at_most=30)


def opening(ues: int, seed: int) -> Uplink:
    """The first round of a cell: everybody computes, then sends a million bits or less."""
    cell = Cell.draw(ues, seed)
    bits = 1e6 * np.random.default_rng(seed).random(ues)
    return Uplink(0, cell.bandwidth_hz, cell.signal_hz(0), cell.compute_s(40.0), bits, equal_shares(ues), None)


def solver_finish_s(uplink: Uplink, *, one_by_one: bool = False) -> float:
    """The T of ``equal_finish`` by a general convex solver: min T, bits_i·ln2/(T − compute_i) ≤ b_i·ln(1 + g_i/b_i), Σb ≤ B.

    The rate is concave in b: with β = b/B and γ = g/B it is β·ln γ − rel_entr(β, β/γ + 1), since
    β·ln(1 + γ/β) = β·ln(γ·(β/γ + 1)/β). As one vector constraint, or as one would on paper: a constraint per UE.
    """
    import cvxpy as cp

    signal, nats = uplink.signal_hz / uplink.bandwidth_hz, uplink.bits * np.log(2) / uplink.bandwidth_hz
    unit_s = nats.sum() / 10 + uplink.compute_s.max()  # of T, to keep the solver's numbers near 1
    work, compute = nats / unit_s, uplink.compute_s / unit_s
    part, end = cp.Variable(signal.size, nonneg=True), cp.Variable()
    if one_by_one:
        arrive = [
            work[ue] * cp.inv_pos(end - compute[ue])
            <= part[ue] * np.log(signal[ue]) - cp.rel_entr(part[ue], part[ue] / signal[ue] + 1)
            for ue in range(signal.size)
        ]
    else:
        rate = cp.multiply(part, np.log(signal)) - cp.rel_entr(part, cp.multiply(part, 1 / signal) + 1)
        arrive = [cp.multiply(work, cp.inv_pos(end - compute)) <= rate]
    constraints: list[Any] = [*arrive, cp.sum(part) <= 1]
    cp.Problem(cp.Minimize(end), constraints).solve(solver=cp.CLARABEL)
    assert end.value is not None
    return float(end.value) * unit_s


# Joint: does planning who is merged, and giving them the band, pay?


@dataclass(frozen=True)
class Plan:
    """One way to run the rounds."""

    name: str
    words: str
    bandwidth: Policy
    shares: Callable[[Cell, float, float], Float[np.ndarray, " n"]] | None  # None: the first A arrivals close a round


PLANS = (
    Plan("first", "equal_share, first A arrivals", equal_share, None),
    Plan(
        "equal", "equal_finish, deficit schedule, equal shares", equal_finish, lambda cell, *_: equal_shares(cell.ues)
    ),
    Plan("distance", "equal_finish, deficit schedule, distance shares", equal_finish, distance_shares),
)


def joint_group(
    repeats: int,
    seed: int,
    tell: Tell,
    *,
    ues: int = 20,
    horizon_s: float = 15.0,
    every_s: float = 0.1,
    target: float = 0.9,
) -> Iterator[Result]:
    """Seconds a round and seconds to an accuracy, over as many seeds as there are repeats; differences are paired.

    The paper's cell with distances uniform in [0, 200 m], A = 5, S = 5, restart; the digits; PerFed with exact Hessian.
    """
    seeds = range(seed, seed + repeats)
    tell(f"joint: {len(PLANS)} ways to run the rounds, {repeats} seeds …")
    pace: dict[str, list[float]] = {plan.name: [] for plan in PLANS}
    reach: dict[str, list[float | None]] = {plan.name: [] for plan in PLANS}
    for each in seeds:
        for plan in PLANS:
            a_round_s, reached_s = run_plan(plan, ues, each, horizon_s, every_s, target)
            pace[plan.name].append(a_round_s)
            reach[plan.name].append(reached_s)
    base = PLANS[0]
    for kind, unit, values in (("a-round", "s/round", pace), (f"to-{target:.0%}".rstrip("%"), "s", reach)):
        for plan in PLANS:
            yield _over_seeds(f"joint/{kind}-{plan.name}", plan.words, values[plan.name], unit)
        for plan in PLANS[1:]:
            saved = [
                None if ours is None or theirs is None else theirs - ours
                for ours, theirs in zip(values[plan.name], values[base.name], strict=True)
            ]
            words = f"{plan.name} shares save against first A, paired by seed"
            yield _over_seeds(f"joint/{kind}-saved-{plan.name}", words, saved, unit)


def run_plan(
    plan: Plan, ues: int, seed: int, horizon_s: float, every_s: float, target: float
) -> tuple[float, float | None]:
    """Seconds a round, and the first evaluated second at the target (None if it is not reached)."""
    task, learner, quorum = digits(ues, 3, seed), Learner(PerFed(0.03), BETA, BATCH), min(QUORUM, ues)
    cell = Cell.draw(ues, seed, layout="uniform", cycles_per_sample=cycles_per_sample(task.model))
    payload = payload_bits(task.model)
    schedule: Schedule | None = None
    if plan.shares is not None:
        shares = nearest_feasible(plan.shares(cell, payload, learner.samples), quorum, STALENESS)
        schedule = as_schedule(deficit(shares, quorum, 2_000))
    line = simulate(
        cell,
        Protocol(quorum, STALENESS),
        payload_bits=payload,
        samples=learner.samples,
        horizon_s=horizon_s,
        bandwidth=plan.bandwidth,
        schedule=schedule,
    )
    points = evaluation_points(line, horizon_s=horizon_s, every_s=every_s)
    reached_s = None
    for training in train(task, line, learner, points, seed=seed):
        reached_s = time_to_target([training.values[-1] | {"time_s": points[len(training.values) - 1].time_s}], target)
        if reached_s is not None:
            break
    return line.end_s / max(line.rounds, 1), reached_s


def _over_seeds(name: str, what: str, values: Sequence[float | None], unit: str) -> Result:
    """Mean and 95 % Student-t interval over seeds; none where a seed has no value."""
    known = statistic(values)
    missing = sum(value is None for value in values)
    some = f" ({len(values) - missing} of {len(values)} seeds got there)" if missing else ""
    return Result(name, what + some, known["mean"], unit, low=known["low"], high=known["high"])


# How everything is timed.


def take_turns(rivals: dict[str, Callable[[], object]], repeats: int) -> dict[str, Seconds]:
    """Wall-clock seconds of each rival in each turn. A turn before the first warms up, and compiles what is compiled."""
    seconds = {name: np.empty(repeats) for name in rivals}
    for turn in range(-1, repeats):
        for name, work in rivals.items():
            begun = time.perf_counter()
            work()
            if turn >= 0:
                seconds[name][turn] = time.perf_counter() - begun
    return seconds


def _result(
    name: str,
    what: str,
    values: Float[np.ndarray, " turns"],
    unit: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Result:
    value = float(np.median(values))
    target, ok = None, None
    if at_most is not None:
        target, ok = f"≤ {at_most:g}", value <= at_most
    if at_least is not None:
        target, ok = f"≥ {at_least:,g}", value >= at_least
    return Result(name, what, value, unit, target, ok, float(values.min()), float(values.max()))


def _left_out(name: str, what: str, package: str) -> Result:
    return Result(name, f"{what}: left out, {package} is not installed", None, "")


GROUPS: dict[str, Callable[[int, int, Tell], Iterator[Result]]] = {
    "replay": replay_group,
    "clock": clock_group,
    "start-up": start_up_group,
    "allocation": allocation_group,
    "joint": joint_group,
}
