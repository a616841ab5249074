"""Build the objects that a spec describes for a seed: task, cell, algorithms and their timelines.

The user's own functions are called with those of the known values that their parameters name:

- a task: a ``Task``, or a function of any of (ues, labels_per_ue, split, seed, data_dir) that returns one;
- a split: a function of any of (labels, owners, is_test, ues, seed) that returns the UE of each sample, or each UE's share;
- a loss: a function of outputs and targets; a metric: a function of outputs, targets and a mask;
- a model: a ``Model``, a PyTorch module, or a function or class of any of (inputs, classes, dtype) that returns one;
- a cell: FILE.csv, a ``Cell``, a subclass of it, or a function of any of (ues, seed) and the cell's settings;
- a radio: a ``Radio``, or a function of any of (distance_m, x_m, y_m, carrier_hz, bs_height_m, ue_height_m, seed) that
  returns the path loss of each UE in dB;
- a schedule: a function of ``round_`` or of a ``moment``, or a function of any of (cell, shares, quorum, rounds, seed,
  payload_bits, samples) that returns rows of UEs or such a function;
- shares: a function of any of (cell, ues, quorum, payload_bits, samples, seed);
- a bandwidth policy: a function of an ``Uplink``;
- a merge: a ``Merge``, or a function or class of its own settings and any of the learning settings that returns one;
- an algorithm: an ``Algorithm``, a function of any of (cell, seed, spec) that returns one, or a method: an
  ``Objective``, a ``Merge``, or a ``Method`` that names one of each. It runs in the spec's semi-synchronous rounds
  unless its ``mode`` says otherwise or it plans its ``rounds``.
"""

import inspect
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np

from perfeds2.allocation.bandwidth import Policy, between, equal_finish, equal_share, in_each_cell
from perfeds2.allocation.joint import LeastEnergy, TimeAndEnergy
from perfeds2.errors import InputError, refuse_twice
from perfeds2.learning.feedback import REPORTS
from perfeds2.learning.learner import Learner
from perfeds2.learning.method import Method, World
from perfeds2.privacy import MESSAGES
from perfeds2.spec.baselines import alone_in, rounds_of, without_others
from perfeds2.spec.cells import (
    cloud_protocol,
    cycles_per_sample,
    limits_energy,
    make_budget,
    make_energy,
    model_bits,
    seconds_a_step,
    upload_bits,
    upload_bits_by_ue,
    work_by_ue,
)
from perfeds2.spec.edge_servers import ByEdge, EdgePlan, has_own_rounds, join_rounds, plan_edges, refuse_at_edges
from perfeds2.spec.fields import Spec
from perfeds2.spec.jobs import in_epochs, job_samples
from perfeds2.spec.learners import learner_of, learner_settings, make_method, refuse_what_does_not_fit
from perfeds2.spec.methods import method_of
from perfeds2.spec.names import Named, Values, call, expect, user_errors
from perfeds2.spec.privacy import has_noise, refuse_unless_summable
from perfeds2.spec.ranks import ranks_of
from perfeds2.spec.rounds import bound_of, protocol_of
from perfeds2.spec.stage import FROM_SETTINGS, Algorithm, Stage, settings_bandwidth
from perfeds2.spec.tasks import check_model, make_task, model_of
from perfeds2.timeline.cells import conditions_of_edges, network_of, simulate_cells
from perfeds2.timeline.chunks import CHUNK, ChunkedPlay
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import conditions_of, simulate

# ---- algorithms


def clock_key(spec: Spec) -> Hashable:
    """Return a key that is equal for specs with the same cells, schedules and timelines."""
    load = (upload_bits(spec), cycles_per_sample(spec), seconds_a_step(spec), ranks_of(spec))
    joint = isinstance(spec.protocol.bandwidth.value, LeastEnergy | TimeAndEnergy)
    energy = spec.energy if joint or limits_energy(spec) else None
    return spec.cell, spec.cells, spec.radio, energy, spec.protocol, load, spec.run.rounds, spec.run.horizon_s


def make_algorithms(spec: Spec, stage: Stage) -> list[Algorithm]:
    """Make the algorithms of a spec in a stage.

    Raises:
        InputError: If two have the same name, or an energy budget is combined with a schedule.
    """
    algorithms = [asking(spec, _make_algorithm(spec, stage, named)) for named in spec.algorithms]
    for named, each in zip(spec.algorithms, algorithms, strict=True):
        refuse_unless_summable(spec.privacy, each.name, each.learner, each.protocol.quorum)
        if spec.edges > 1:
            terms = {"name": each.name, "mode": each.mode, "learner": each.learner, "schedule": each.schedule}
            refuse_at_edges(spec, stage.cells, **terms, own_rounds=has_own_rounds(named))
    refuse_twice("--algorithms has", [algorithm.name for algorithm in algorithms])
    planned = next((each.name for each in algorithms if each.schedule is not None), None)
    if planned is not None and limits_energy(spec):
        raise InputError(
            f"an energy budget cannot be combined with the schedule of {planned}, which would wait for UEs that have left. "
            f"Use --schedule first, or --algorithms without it."
        )
    return algorithms


def asking(spec: Spec, algorithm: Algorithm) -> Algorithm:
    """Let UEs report what the schedule of an algorithm asks for."""
    asked = getattr(algorithm.schedule, "feedback", None)
    if asked is None:
        return algorithm
    if asked not in REPORTS:
        raise InputError(f"the schedule of {algorithm.name} asks for feedback {asked!r}; use {', '.join(REPORTS)}.")
    privacy = spec.privacy
    if has_noise(privacy) or privacy.secure_aggregation:
        raise InputError(
            f"the schedule of {algorithm.name} asks UEs for their {asked}, which noise on uploads does not hide. "
            f"Use another --schedule, or no --dp-noise, --epsilon and --secure-aggregation."
        )
    if "undrafted" in algorithm.learner.merge.needs:
        raise InputError(
            f"{algorithm.name} merges late uploads as well, so its schedule cannot ask for feedback; choose another --schedule."
        )
    return replace(algorithm, learner=replace(algorithm.learner, feedback=asked))


def _make_algorithm(spec: Spec, stage: Stage, named: Named) -> Algorithm:
    """Make the algorithm with a given name.

    The schedule and the shares apply to S2 algorithms only; the bandwidth policy applies to all. As an exception, an
    algorithm whose own rounds close on the first of several arrivals (ASY and SAFA) uses equal_share
    in place of policies that let UEs finish together: the order of simultaneous arrivals would be rounding noise (erratum 12).
    """
    found = method_of(named)
    if found is None:
        made = named.value
        if not isinstance(made, Algorithm):
            _refuse_underived(named)
            made = call(made, f"--algorithms {named}", {"cell": stage.cell, "seed": stage.seed, "spec": spec})
        return _follow_settings(spec, stage, expect(made, Algorithm, "--algorithms", named))
    name, own = found
    method = make_method(spec, name, own)
    learner = in_epochs(spec, stage.seed, name, without_others(spec, name, learner_of(spec, name, method)))
    if method.has_own_rounds:
        return _in_own_rounds(spec, stage, Algorithm(name, learner, mode=own.mode), method)
    bandwidth = _bandwidth(spec, races=own.mode == "ASY")
    algorithm = Algorithm(name, learner, protocol_of(spec, own.mode), bandwidth, mode=own.mode)
    if own.mode == "S2":
        shares, schedule = stage.plan(job_samples(spec, learner))
        return replace(algorithm, shares=shares, schedule=schedule)
    return algorithm


def _refuse_underived(named: Named) -> None:
    """Refuse a class that is no method, with the line that mends it."""
    own: Any = named.value
    kind = own if inspect.isclass(own) else type(own)
    if issubclass(kind, Algorithm) or inspect.isroutine(own):
        return
    raise InputError(
        f"--algorithms {named}: {kind.__name__} is not a method. Write class {kind.__name__}(Objective): after from perfeds2 "
        f"import Objective, or derive it from Merge or Method (docs/how-to/own-methods.md)."
    )


def _in_own_rounds(spec: Spec, stage: Stage, algorithm: Algorithm, method: Method) -> Algorithm:
    """Return an algorithm in the rounds that its method plans, with the parts that know them."""
    learner, protocol = algorithm.learner, spec.protocol
    assert protocol.quorum is not None
    load = (upload_bits_by_ue(spec, learner.objective), job_samples(spec, learner), learner.local_steps)
    world = World(stage.cell, *load, protocol.quorum, bound_of(spec), protocol.tiers, stage.seed)
    if spec.edges == 1 or stage.cells is None:
        rounds = method.rounds(world)
    else:  # an edge plans for its own UEs
        edges = [method.rounds(world._replace(cell=stage.cells.alone(edge))) for edge in range(spec.edges)]
        rounds = join_rounds(edges, stage.cells.members)
    if rounds.objective is not None:
        learner = replace(learner, objective=rounds.objective)
    if rounds.merge is not None and spec.learning_of(algorithm.name).merge is None:
        learner = replace(learner, merge=rounds.merge)
    bandwidth = _bandwidth(spec, races=algorithm.mode == "ASY" or rounds.protocol.drafts)
    own = {"protocol": rounds.protocol, "schedule": rounds.schedule, "bandwidth": bandwidth}
    return replace(algorithm, learner=learner, **own)


def _bandwidth(spec: Spec, *, races: bool) -> Policy:
    """Return the bandwidth policy; ``races`` says that rounds close on the first of several arrivals."""
    named = spec.protocol.bandwidth
    joint = isinstance(named.value, LeastEnergy | TimeAndEnergy)
    if races and (joint or named.value is equal_finish or named.text.startswith(f"{between.__name__}:")):
        return equal_share
    return replace(named.value, energy=make_energy(spec)) if joint else named.value


def _follow_settings(spec: Spec, stage: Stage, own: Algorithm) -> Algorithm:
    """Return a user's algorithm with the settings of the spec wherever it has a default."""
    defaults, given = {each.name: each.default for each in fields(Learner)}, learner_settings(spec, own.name)
    if own.learner.objective.alpha is not None:
        del given["alpha"]  # its own step is the objective's
    follows = {key: value for key, value in given.items() if vars(own.learner)[key] == defaults[key]}
    algorithm = replace(own, learner=replace(own.learner, **follows))
    refuse_what_does_not_fit(
        spec.privacy, own.name, algorithm.learner, spec.learning.merge if "merge" in follows else None
    )
    if own.protocol is FROM_SETTINGS:
        algorithm = replace(algorithm, protocol=protocol_of(spec, "S2"))
        if own.schedule is None:
            shares, schedule = stage.plan(job_samples(spec, algorithm.learner))
            algorithm = replace(algorithm, shares=shares, schedule=schedule)
    if own.bandwidth is settings_bandwidth:
        races = own.protocol is not FROM_SETTINGS and own.schedule is None and own.protocol.quorum < stage.cell.ues
        algorithm = replace(algorithm, bandwidth=_bandwidth(spec, races=races))
    return algorithm


def fixed_settings(spec: Spec) -> dict[str, list[str]]:
    """Return the settings, as flags, in which each ``Algorithm`` of the user differs from the spec, for its first seed."""
    owned = [named for named in spec.algorithms if method_of(named) is None]
    if not owned:
        return {}
    stage, found = Stage.of(spec, spec.run.seeds[0]), dict[str, list[str]]()
    for own in (_make_algorithm(spec, stage, named) for named in owned):
        usual = _terms(_follow_settings(spec, stage, Algorithm(own.name, Learner(own.learner.objective))))
        differ = {
            key: value for key, value in _terms(own).items() if value != (usual | {"alpha": spec.learning.alpha})[key]
        }
        found[own.name] = [f"--{key.replace('_', '-')} {value}" for key, value in differ.items()]
    return found


def _terms(algorithm: Algorithm) -> dict[str, object]:
    """Return the settings of an algorithm that it may fix or follow."""
    learner, protocol = dict(vars(algorithm.learner)), algorithm.protocol
    del learner["objective"], learner["feedback"]
    return learner | {
        "alpha": algorithm.learner.personal_step,
        "quorum": protocol.quorum,
        "max_staleness": "unbounded" if protocol.max_staleness is None else protocol.max_staleness,
        "stale": protocol.stale,
        "schedule": "first" if algorithm.schedule is None else "planned",
        "bandwidth": getattr(algorithm.bandwidth, "__name__", "own"),
    }


# ---- timelines


def make_timelines(
    spec: Spec,
    stage: Stage,
    algorithms: Sequence[Algorithm],
    tell: Callable[[Algorithm, int, float], None] | None = None,
    *,
    guess: bool = False,
) -> Iterator[Timeline]:
    """Yield the timeline of each algorithm; algorithms that differ only in what they learn share one.

    Args:
        spec: The settings.
        stage: The cell and the cache of timelines.
        algorithms: The algorithms to simulate.
        tell: Called with the algorithm, the rounds closed and the simulated second reached.
        guess: Simulate a schedule that asks for feedback as if nothing was ever reported.

    Raises:
        InputError: If a schedule asks for feedback, which only training gives, and ``guess`` is false.
    """
    known = stage.timelines
    for algorithm in algorithms:
        if algorithm.learner.feedback is not None and not guess:
            raise InputError(
                f"the schedule of {algorithm.name} asks for the {algorithm.learner.feedback} of UEs, which only training "
                f"measures. Use compare, run, sweep, arena or plan, or another --schedule."
            )
        load = _load(spec, stage, algorithm)
        shares = None if algorithm.shares is None else algorithm.shares.tobytes()
        rounds = (algorithm.protocol, algorithm.bandwidth, algorithm.schedule, shares)
        limit = rounds_of(spec, algorithm.learner)
        same = (rounds, np.asarray(load["samples"]).tobytes(), np.asarray(load["payload_bits"]).tobytes())
        same = (*same, load["cell"].downlink, limit)
        if same not in known:
            told = None if tell is None else partial(tell, algorithm)
            with _own_errors(stage, algorithm):
                until = {"rounds": limit, "horizon_s": spec.run.horizon_s, "tell": told}
                if spec.edges == 1:
                    known[same] = simulate(**load, **until)
                else:
                    known[same] = simulate_cells(**_at_edges(spec, stage, algorithm), **until)
        yield known[same]


def _at_edges(spec: Spec, stage: Stage, algorithm: Algorithm) -> Values:
    """Return what the rounds of edges below a cloud depend on, by the parameters of ``simulate_cells``."""
    assert stage.cells is not None
    load = _load(spec, stage, algorithm)
    own = {name: load[name] for name in ("protocol", "payload_bits", "samples", "bandwidth")}
    plans: list[EdgePlan] = [(None, algorithm.schedule)] * spec.edges  # a user's own, for each edge
    planned = algorithm.shares is not None or algorithm.schedule is not None
    if isinstance(algorithm.schedule, ByEdge):
        plans = [(None, schedule) for schedule in algorithm.schedule.schedules]
    elif planned and algorithm.schedule is stage.plan(algorithm.learner.samples)[1]:
        plans = plan_edges(spec, stage.cells, stage.seed, algorithm.learner.samples)
    own |= {"shares": [plan[0] for plan in plans], "schedules": [plan[1] for plan in plans]}
    samples = np.broadcast_to(np.asarray(load["samples"], float), stage.cells.population)
    members = zip(stage.cells.cells, stage.cells.ues, strict=True)
    own["budgets"] = [make_budget(spec, cell, samples[ues]) for cell, ues in members]
    return own | {
        "cells": stage.cells,
        "cloud": cloud_protocol(spec),
        "model_bits": model_bits(spec),
        "edge_rounds": spec.cells.edge_rounds or 1,
        "reshare": load["reshare"],
    }


def open_play(spec: Spec, stage: Stage, algorithm: Algorithm) -> ChunkedPlay:
    """Return the timeline of an algorithm whose schedule asks for feedback, before its first round."""
    with _own_errors(stage, algorithm):
        if spec.edges == 1:
            conditions = conditions_of(**_load(spec, stage, algorithm))
        else:
            conditions = conditions_of_edges(**_at_edges(spec, stage, algorithm))
        return ChunkedPlay(conditions, spec.run.rounds, spec.run.horizon_s, spec.protocol.feedback_rounds or CHUNK)


def _own_errors(stage: Stage, algorithm: Algorithm) -> AbstractContextManager[None]:
    return user_errors(algorithm.name, type(stage.cell), algorithm.bandwidth, algorithm.schedule)


def _load(spec: Spec, stage: Stage, algorithm: Algorithm) -> Values:
    """Return what the rounds of an algorithm depend on, by the parameters of ``simulate``."""
    cell, learner = stage.cell, algorithm.learner
    if cell.downlink is not None:
        times = learner.broadcast_size(model_of(spec))
        cell = replace(cell, downlink=replace(cell.downlink, model_bits=times * cell.downlink.model_bits))
    cell = alone_in(cell, learner)
    bandwidth, bits = algorithm.bandwidth, upload_bits_by_ue(spec, learner.objective, algorithm.protocol.quorum)
    network = None
    if stage.cells is not None and spec.edges == 1:
        assert not isinstance(bits, np.ndarray)  # many cells have uploads of one size
        if stage.cells.joint:
            network = network_of(stage.cells, bits, one_server=True)
        else:
            bandwidth = in_each_cell(bandwidth, stage.cells.ues, [each.bandwidth_hz for each in stage.cells.cells])
        trip_s = stage.cells.transfer_s(model_bits(spec)) + stage.cells.transfer_s(bits)
        if np.ptp(trip_s) > 0:
            raise InputError(
                "--merge-at cloud needs the same backhaul in every cell; use --backhaul-bps and --backhaul-s."
            )
        cell = replace(cell, downlink_s=cell.downlink_s + float(trip_s[0]))
    samples = job_samples(spec, learner) * learner.objective.work * work_by_ue(spec)
    if (
        spec.privacy.secure_aggregation and not algorithm.protocol.rests
    ):  # otherwise the list of members comes with the model
        cell = replace(cell, downlink_s=MESSAGES * cell.downlink_s)
    return {
        "cell": cell,
        "protocol": algorithm.protocol,
        "payload_bits": bits,
        "samples": samples,
        "bandwidth": bandwidth,
        "schedule": algorithm.schedule,
        "shares": algorithm.shares,
        "budget": make_budget(spec, cell, samples) if spec.edges == 1 else None,
        "network": network,
        "reshare": spec.protocol.reshare or "round",
    }


def check(spec: Spec, *, trains: bool) -> tuple[Stage, list[Algorithm]]:
    """Raise InputError for settings that cannot work. Return the first seed's stage and its algorithms, not yet played."""
    seed = spec.run.seeds[0]
    check_model(spec)
    stage = Stage.of(spec, seed)
    algorithms = make_algorithms(spec, stage)
    for algorithm in algorithms:
        upload_bits_by_ue(spec, algorithm.learner.objective)
    if trains:
        make_task(spec, seed)
    return stage, algorithms
