"""Write the notes of a run: settings without effect, early ends, starved UEs, diverged models."""

import math
from collections.abc import Mapping, Sequence

from perfeds2.privacy.accounting import ASSUMPTIONS, DELTA
from perfeds2.runs.store import Facts, Row
from perfeds2.spec.fields import Spec

LOST = 0.5  # share of the decrease in loss that is lost again
RISEN, EXPLODED = 1.1, 2.0  # times the initial loss
KRUM = (
    "krum keeps one upload of a round. Among 20 honest UEs with 2 labels each it lost 8, 6 and 52 points of accuracy at A = 3, "
    "5 and 10, and clipped-mean less than one (python benchmarks/attacks.py --only honest); use --merge clipped-mean."
)

OfSeeds = Mapping[str, Sequence[Facts]]  # facts of each seed, by algorithm
Rows = Mapping[tuple[str, int], Sequence[Row]]  # by algorithm and seed


def notes_of(spec: Spec, facts: OfSeeds, rows: Rows | None, ue_rows: Rows | None = None) -> list[str]:
    """Return the notes of a run. ``rows`` and ``ue_rows`` are None if nothing was trained."""
    from perfeds2.spec.build import fixed_settings
    from perfeds2.spec.fleet_warnings import fleet_warnings
    from perfeds2.spec.tasks import recipe_of

    notes, recipe = fleet_warnings(spec), recipe_of(spec)
    if has_ties(spec):
        notes.append(
            "With --bandwidth equal_finish all UEs arrive at the same moment, so without a plan their numbers decide who is "
            "merged (erratum 12): add --schedule deficit, or use --bandwidth equal_share."
        )
    for name, flags in fixed_settings(spec).items():
        if flags:
            notes.append(f"{name} fixes {', '.join(flags)} itself, unlike the other algorithms.")
    if recipe is not None and recipe.said:
        task = spec.task
        split = f"--labels-per-ue {task.labels_per_ue}" if task.split is None else f"--split {task.split}"
        notes.append(f"{task.name}: {recipe.said}; {split} --loss {task.loss} --metric {task.metric}.")
    if rows is not None and any(
        name.startswith("FedProx") and own[0]["local_steps"] == 1 for name, own in facts.items()
    ):
        notes.append("With one local step FedProx's proximal term is zero, so it equals FedAvg; see --local-steps.")
    if spec.cell.payload_bits is not None and (spec.radio.bits is not None or spec.radio.top_k is not None):
        notes.append(
            f"--payload-bits {spec.cell.payload_bits:g} is the size of every upload; --bits and --top-k change only its values."
        )
    if rows is not None and ue_rows is not None:
        notes += _evaluations(spec, facts, rows, ue_rows)
    if "FedBN" in facts and not _is_normalised(spec):
        notes.append("FedBN equals FedAvg here: the model has no normalisation layer; see --model mlp-norm.")
    notes += [note for name, own in facts.items() for note in robustness(spec, name, own[0]["quorum"])]
    if any("noise" in own[0] for own in facts.values()):
        notes += [
            privacy_note(spec),
            *(f"{name}: {said}" for name, own in facts.items() if (said := noise_warning(own[0]["quorum"], own[0]))),
        ]
    for name, own in facts.items():
        if own[0]["mode"] == "none":  # a baseline without rounds
            continue
        if any(each["rounds"] == 0 for each in own):
            notes.append(f"{name}: no round closed in time in at least one seed; try a longer --horizon-s.")
            continue
        notes += [*_ended_by_budget(spec, name, own), *_starved(name, own), *_failed(name, own)]
        if rows is not None:
            notes += _learned(spec, name, own[0], [rows[name, seed] for seed in spec.run.seeds])
    return notes


def has_ties(spec: Spec) -> bool:
    """Return whether rounds close on the first arrivals of UEs that all arrive together."""
    from perfeds2.spec.methods import method_of

    found = [method_of(named) for named in spec.algorithms]
    follow = any(each is None or (each[1].mode == "S2" and not each[1].has_own_rounds) for each in found)
    is_race = spec.protocol.schedule.value is None and (spec.protocol.quorum or 0) < spec.cell.ues // spec.edges
    return follow and is_race and spec.protocol.bandwidth.text == "equal_finish"


def _evaluations(spec: Spec, facts: OfSeeds, rows: Rows, ue_rows: Rows) -> list[str]:
    """Note that only some UEs were evaluated, and that evaluations took most of the time.

    Time is counted in samples, not measured, so that the same spec gives the same notes. A gradient counts thrice.
    """
    from perfeds2.learning.data import MOST_SAMPLES
    from perfeds2.learning.evaluate import MOST_UES

    notes, found = list[str](), next(iter(ue_rows.values()))
    if len(found) == MOST_UES < spec.cell.ues:
        notes.append(f"Metrics are means over {MOST_UES:,} of {spec.cell.ues:,} UEs, at equal distances.")
    every_fact = [each for of_seeds in facts.values() for each in of_seeds]
    steps = [each["merges"] * each["local_steps"] * (3 if each["objective"] == "PerFed" else 1) for each in every_fact]
    trained = 3 * spec.learning.batch * sum(steps)
    looks = 4 * sum(min(row["samples"], MOST_SAMPLES) for row in found)  # a gradient, and a loss after the step
    evaluated = looks * sum(len(of) for of in rows.values())
    if evaluated > 2 * trained > 0:
        notes.append(
            f"Evaluations computed on {evaluated / trained:.2g} times as many samples as training, so they took most of "
            f"the time; --eval-every-s sets how often."
        )
    return notes


def robustness(spec: Spec, name: str, quorum: int, *, always: bool = False) -> list[str]:
    """Return notes on robust merges: too few uploads per round, or what Krum costs.

    With ``always``, the number of uploads alone counts.
    """
    from perfeds2.learning.methods import ROBUST
    from perfeds2.learning.robust import LEAST

    learning = spec.learning_of(name)
    merge = None if learning.merge is None else learning.merge.text
    if quorum >= LEAST:
        return [f"{name}: {KRUM}"] if merge == "krum" else []
    if not (always or learning.attack or merge in ROBUST):
        return []
    return [
        f"{name}: with A = {quorum} no merge can tell a hostile upload from an honest one; use at least --quorum {LEAST}."
    ]


def _is_normalised(spec: Spec) -> bool:
    """Return whether the model has layers that UEs of FedBN keep."""
    from perfeds2.learning.methods import FedBN
    from perfeds2.learning.task import weight_shapes
    from perfeds2.spec.tasks import model_of

    return bool(FedBN(**spec.method_settings("FedBN")).withheld(dict(weight_shapes(model_of(spec)))))


def _ended_by_budget(spec: Spec, name: str, of_seeds: Sequence[Facts]) -> list[str]:
    """Note that a run ended because too few UEs had energy left."""
    from perfeds2.spec.cells import limits_energy

    ends = [each for each in of_seeds if each["is_out_of_energy"]]
    if not limits_energy(spec) or not ends:
        return []
    first = min(ends, key=lambda each: each["end_s"])
    return [
        f"{name}: after {first['end_s']:.3g} s and {first['rounds']:,} rounds fewer than {first['quorum']} UEs had energy left, so "
        f"the run ended (the earliest of {len(ends)} such seeds, of {len(of_seeds)})."
    ]


def _failed(name: str, of_seeds: Sequence[Facts]) -> list[str]:
    """Note how many transmissions failed, what they cost, and which UEs were merged less because of it."""
    if "errors_failed" not in of_seeds[0]:
        return []
    share, joules, weakest = (
        sum(facts[f"errors_{key}"] for facts in of_seeds) / len(of_seeds)
        for key in ("share", "joules", "weakest_merges")
    )
    return [
        f"{name}: {share:.1%} of the transmissions failed and took {joules:.3g} J; the quarter of the UEs with the weakest "
        f"signals has {weakest:.1%} of the merges."
    ]


def privacy_note(spec: Spec) -> str:
    """Return what an ε covers. It is shown wherever an ε is."""
    return f"Privacy at δ = {spec.privacy.delta or DELTA:g}: {ASSUMPTIONS}"


def noise_warning(quorum: int, privacy: Facts) -> str:
    """Return a warning if the model is too large for the fleet at this noise."""
    if privacy.get("noise_to_clip", 0.0) <= 1:
        return ""
    return (
        f"the model is too large for this fleet. The noise on a mean update is {privacy['noise_to_clip']:.3g} times as long as any "
        f"upload (√d·σ/A with σ = {privacy['noise']:.3g}, A = {quorum}), so a single step is mostly noise, and only many rounds average it out. Use a larger --quorum, a "
        f"smaller model, fewer rounds or a larger ε."
    )


def _starved(name: str, of_seeds: Sequence[Facts]) -> list[str]:
    starved = sorted({ue for each in of_seeds for ue in each["starved_ues"]})
    if not starved:
        return []
    wait = "--stale wait, a larger --max-staleness or " if of_seeds[0]["max_staleness"] is not None else ""
    ues = ", ".join(map(str, starved[:5])) + (" …" if len(starved) > 5 else "")
    return [
        f"{name}: UE{'s' * (len(starved) > 1)} {ues} never merged (in at least one seed); try {wait}a longer horizon."
    ]


def _learned(spec: Spec, name: str, facts: Facts, of_seeds: Sequence[Sequence[Row]]) -> list[str]:
    notes, seeds = list[str](), len(of_seeds)
    diverged = sum(map(has_diverged, of_seeds))
    if diverged:
        notes.append(
            f"{name}: training diverged in {diverged} of {seeds} seeds: the final loss is near or above its initial "
            f"value. The step size is too large; try a third: --set {name}.beta={facts['beta'] / 3:.2g}."
        )
    risen = sum(not has_diverged(rows) and has_risen(rows) for rows in of_seeds)
    if risen:
        notes.append(
            f"{name}: has not learned yet in {risen} of {seeds} seeds: the final loss is above its initial value. "
            f"Run it longer; if the loss keeps rising, try a smaller step size."
        )
    is_share = str(spec.task.metric or "accuracy") == "accuracy"  # half of any other metric means nothing
    is_for_personal_step = facts["objective"] not in ("FedAvg", "FedProx") and not facts["is_personal"]
    collapsed = sum(map(has_collapsed, of_seeds)) if is_share and is_for_personal_step else 0
    if collapsed:
        notes.append(
            f"{name}: in {collapsed} of {seeds} seeds the global model lost more than half of its best accuracy, while the "
            f"personalised models are fine. {name} trains the model only for use after the personal step; "
            f"see docs/explanation/personalisation.md."
        )
    return notes


def has_collapsed(rows: Sequence[Row]) -> bool:
    """Return whether the global model lost over half of its best accuracy while personalised models are fine.

    Fine means at least as accurate as the global model ever was.
    ``rows`` are the evaluations of one seed. A diverged model (accuracy NaN) does not count.
    """
    best = max(row["test_accuracy"] for row in rows)
    return rows[-1]["test_accuracy"] < best / 2 and rows[-1]["test_accuracy_personal"] >= best


def has_diverged(rows: Sequence[Row]) -> bool:
    """Return whether training diverged in one seed.

    It did if both losses end NaN, or are over twice their initial value in the whole last quarter of the evaluations, or
    have lost over half of their decrease there. The last case covers ReLU units that die from too large a step: the loss
    stays finite, near its initial value. A loss that only oscillates has lower values in between.
    """
    return all(_is_diverging([row[name] for row in rows]) for name in ("train_loss", "train_loss_personal"))


def has_risen(rows: Sequence[Row]) -> bool:
    """Return whether both losses end more than 10 % above their initial values, as may be in a short run."""
    return all(0 < RISEN * rows[0][name] < rows[-1][name] for name in ("train_loss", "train_loss_personal"))


def _is_diverging(losses: Sequence[float]) -> bool:
    first, least, lately = float(losses[0]), float(min(losses)), float(min(losses[-math.ceil(len(losses) / 4) :]))
    if not math.isfinite(losses[-1]):
        return True
    learned = first - least
    rose, fell_back = lately > EXPLODED * first, learned > 0.1 * first and lately - least > LOST * learned
    return first > 0 and (rose or fell_back)  # a custom loss below 0 has no scale to compare with
