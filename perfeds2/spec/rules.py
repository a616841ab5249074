"""Fill in defaults that depend on other settings, and list the rules that settings obey together."""

from collections.abc import Iterator

from perfeds2.errors import InputError
from perfeds2.spec.fields import ProtocolSpec, Spec
from perfeds2.spec.names import Named, Value, Values, method_name
from perfeds2.spec.values import ALGORITHM, POLICY, SCHEDULE, SHARES

HORIZON_S = 30.0
MOST_EVALUATIONS = 1_000_000

# ---- defaults


def with_usual(spec: Spec) -> Spec:
    """Return a spec with the defaults of its rounds, quorum, horizon and evaluations."""
    task, run = spec.task, spec.run
    if task.split is not None:
        task = task.with_(labels_per_ue=None)
    horizon_s = HORIZON_S if run.rounds is None and run.horizon_s is None else run.horizon_s
    every_s = run.eval_every_s if run.eval_every_s or horizon_s is None else horizon_s / 60
    run = run.with_(horizon_s=horizon_s, eval_every_s=every_s, seeds=tuple(dict.fromkeys(run.seeds)))
    return spec.with_(task=task, protocol=usual_rounds(spec).with_(quorum=quorum_of(spec)), run=run)


def quorum_of(spec: Spec) -> int:
    """Return the updates that close a semi-synchronous round: by default those of a quarter of a server's UEs."""
    return spec.protocol.quorum or max(1, round(spec.cell.ues // spec.edges / 4))


def usual_rounds(spec: Spec) -> ProtocolSpec:
    """Return the rounds with the defaults of their schedule, shares and bandwidth.

    By default they are the paper's: planned by deficit, with shares by distance, and the UEs of a round finish together.
    Such a plan needs one server and A·S ≥ n, and UEs that restart when stale, never rest and have no energy budget.
    Without these, rounds close on the first arrivals. Without a plan, UEs have equal shares and equal bandwidth.
    """
    protocol, given = spec.protocol, spec.protocol.model_fields_set
    fleet: Value = None if spec.cell.kind is None else spec.cell.kind.value
    has_budget = spec.energy.budget is not None or getattr(fleet, "has_energy_budgets", False)
    is_free = protocol.stale == "restart" and (protocol.rest_rounds or 1) == 1 and not has_budget
    bound = "unbounded" if protocol.unplanned == "rest" else protocol.max_staleness
    is_bounded = bound == "unbounded" or quorum_of(spec) * max(bound, 1) >= spec.cell.ues
    can_plan = spec.edges == 1 and is_free and is_bounded
    schedule = protocol.schedule if "schedule" in given or can_plan else SCHEDULE.find("first")
    is_planned = schedule.value is not None
    usual: Values = {"schedule": schedule}
    if not (is_planned and can_plan):
        usual["shares"] = SHARES.find("equal")
    if not is_planned:
        usual["bandwidth"] = POLICY.find("equal_share")
    return protocol.with_(**{key: value for key, value in usual.items() if key not in given})


def usual_algorithms(spec: Spec) -> tuple[Named, ...]:
    """Return the default algorithms: PerFed and FedAvg in every mode, and FedProx where it differs from FedAvg."""

    def is_usual(name: str) -> bool:
        several_steps = spec.learning_of(name).local_steps > 1
        objective = method_name(name)
        return objective in ("FedAvg", "PerFed") or (objective == "FedProx" and several_steps)

    return tuple(ALGORITHM.find(name) for name in ALGORITHM.table() if is_usual(name))


# ---- rules


def refuse_unless_possible(spec: Spec) -> None:
    """Refuse settings that contradict each other.

    Raises:
        InputError: If one of the rules is broken.
    """
    for rule in RULES:
        for broken in rule(spec):
            raise InputError(broken)


def target_can_be_reached(spec: Spec) -> Iterator[str]:
    target = spec.run.target_accuracy
    if str(spec.task.metric or "accuracy") in ("accuracy", "r2") and not 0 < target <= 1:
        limit = "greater than 0" if target <= 0 else "at most 1"
        yield f"--target-accuracy must be {limit}, got {target:g}."


def every_ue_has_a_distance(spec: Spec) -> Iterator[str]:
    distances, ues = spec.cell.distance_m, spec.cell.ues
    if distances is not None and len(distances) != ues:
        yield f"--distance-m has {len(distances)} distances, but there are {ues} UEs (--ues)."


def cells_have_equal_sizes(spec: Spec) -> Iterator[str]:
    if spec.cell.ues % spec.edges:
        yield f"--ues {spec.cell.ues} must be a multiple of the number of cells, {spec.edges} (--cells), or add --merge-at cloud."


def _members(spec: Spec) -> tuple[int, str]:
    """Return the number of UEs of a server, and what to call it."""
    return spec.cell.ues // spec.edges, "the number of UEs" + " of a cell" * (spec.edges > 1)


def quorum_can_be_met(spec: Spec) -> Iterator[str]:
    members, of = _members(spec)
    if quorum_of(spec) > members:
        yield f"--quorum must be from 1 to {of}, {members} (--ues), got {quorum_of(spec)}."


def enough_ues_are_rested(spec: Spec) -> Iterator[str]:
    (members, of), quorum, resting = _members(spec), quorum_of(spec), spec.protocol.rest_rounds or 1
    if quorum * resting > members:
        yield f"--quorum {quorum} times --rest-rounds {resting} must be at most {of}, {members} (--ues); lower one."


def no_round_waits_for_rest(spec: Spec) -> Iterator[str]:
    protocol = spec.protocol
    waits = protocol.schedule.value is not None or protocol.stale == "ignore" or spec.energy.budget is not None
    if (protocol.rest_rounds or 1) > 1 and waits:
        yield (
            f"--rest-rounds {protocol.rest_rounds} cannot be combined with --schedule, --stale ignore or --energy-budget: a "
            f"round might wait for UEs that rest. Leave one out."
        )


def every_ue_has_a_share(spec: Spec) -> Iterator[str]:
    shares, ues = spec.protocol.shares, spec.cell.ues
    if isinstance(shares, tuple) and len(shares) != ues:
        yield f"--shares has {len(shares)} numbers, but there are {ues} UEs (--ues)."


def run_has_one_end(spec: Spec) -> Iterator[str]:
    run = spec.run
    if run.rounds is not None and run.horizon_s is not None:
        yield f"--horizon-s {run.horizon_s:g} and --rounds {run.rounds} were both given; give one of them."


def evaluations_can_be_counted(spec: Spec) -> Iterator[str]:
    horizon_s, every_s = spec.run.horizon_s, spec.run.eval_every_s
    if horizon_s is not None and every_s is not None and horizon_s / every_s > MOST_EVALUATIONS:
        yield (
            f"--eval-every-s {every_s:g} over {horizon_s:g} s (--horizon-s) is more than {MOST_EVALUATIONS} evaluations; "
            f"evaluate less often."
        )


RULES = (  # each yields what is wrong, if anything; the first is reported
    target_can_be_reached,
    every_ue_has_a_distance,
    cells_have_equal_sizes,
    quorum_can_be_met,
    enough_ues_are_rested,
    no_round_waits_for_rest,
    every_ue_has_a_share,
    run_has_one_end,
    evaluations_can_be_counted,
)
