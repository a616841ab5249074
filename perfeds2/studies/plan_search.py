"""Find the choice that reaches the target soonest and keeps it, by successive halving.

1. Try bits, local steps and (with noise) rest on one choice, since they matter most.
2. With the best of them, simulate every A, S, schedule, bandwidth policy, stale rule and number of local steps.
   Impossible choices and those that leave a UE out need no training.
3. Train one seed of the rest for a short time (a scout), and two more if it comes near the soonest.
4. Train the soonest for the whole horizon, on a few seeds and then on all. A choice that loses the target again is
   dropped. A choice that keeps the target must do so in a longer training too, and its neighbours must not fail.
5. Vary local steps, bits, the stale rule and rest around the best. The search ends when no scout was soon enough to beat
   it. If no choice keeps the target, everything is repeated with twice the horizon.
6. Train the best with fresh seeds. It was chosen for doing well on the others, so those are too optimistic.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from perfeds2.runs.statistics import censored_median
from perfeds2.studies.plan_data import (
    Candidate,
    Choice,
    Neighbour,
    PlanRequest,
    PlanTarget,
    SeedOutcome,
    Standing,
    median_s,
    or_inf,
    too_many_fail,
)
from perfeds2.studies.plan_space import Space, around, map_of, neighbours, variants
from perfeds2.studies.plan_trials import Played, Trials
from perfeds2.studies.search import Rung, successive_halving

FEW_SEEDS = 3  # the smallest number whose median one lucky seed cannot decide
NEAR = 1.5  # length of a scout relative to the soonest choice's time; slower ones do not win on other seeds
CLOSE = 1.25  # a choice this much slower than the best on a few seeds may still beat it on all of them
BATCH = 4  # choices trained at a time: enough for the cores, and results rule out later ones
VARIATIONS = 2  # rounds of varying the best; the second reaches choices two steps away
FRESH_SEEDS = 5  # seeds after the largest given one, with which only the recommended choice is trained


@dataclass
class PlanSearch:
    """The search at one horizon, and its results so far."""

    space: Space
    trials: Trials
    request: PlanRequest
    target: PlanTarget
    scouting: float  # share of the horizon that a scout is trained for
    scouted: dict[Choice, None] = field(default_factory=dict)
    listed: dict[Choice, None] = field(default_factory=dict)  # every choice that was simulated, in order
    slower: dict[Choice, str] = field(default_factory=dict)  # slower by the clock alone, and why
    beside: dict[Choice, tuple[Neighbour, ...]] = field(default_factory=dict)

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.space.spec.run.seeds

    @property
    def few(self) -> tuple[int, ...]:
        return self.seeds[:FEW_SEEDS]

    @property
    def fresh(self) -> tuple[int, ...]:
        return tuple(max(self.seeds) + 1 + number for number in range(FRESH_SEEDS))

    @property
    def scout_s(self) -> float:
        return self.target.horizon_s * self.scouting

    # ---- search

    def run(self, base: Choice) -> Choice | None:
        """Return the best choice, or None if none stands. The first map has the bits and stale rule of ``base``."""
        choices = [*map_of(self.space, base), self.space.asked]
        whole = 20 * len(self.few) + 12 * len(self.seeds)  # typical number of trainings over the whole horizon
        self.trials.expected_s = self.scout_s * len(choices) + self.target.horizon_s * whole
        self.scout(choices)
        best = self.race(None)
        for _ in range(VARIATIONS):
            before = best
            if best is not None:
                self.scout([*variants(self.space, best), *around(self.space, best)])
                best = self.race(best)
            if best == before:
                break
        return best

    def scout(self, choices: Iterable[Choice]) -> None:
        """Train one seed of each choice for a short time, and a few seeds of those near the soonest."""

        def near(trained: Sequence[Choice], _: Rung) -> list[Choice]:
            self.scouted |= {choice: None for choice in trained if self.trials.known(choice, self.few, self.scout_s)}
            allowed = [choice for choice in self.scouted if self.breach(choice) is None]
            limit_s = NEAR * min(map(self.first_s, allowed), default=math.inf)
            return [choice for choice in allowed if self.first_s(choice) <= limit_s < math.inf]

        rungs = [Rung(self.seeds[:1], self.scout_s), Rung(self.few, self.scout_s)]
        successive_halving(self.worth_training(choices), rungs, self.trials.train, near)

    def worth_training(self, choices: Iterable[Choice]) -> list[Choice]:
        """Return the new choices worth training: possible, within the limits, and the fastest of equivalent ones.

        In planned rounds, bandwidth policies merge the same UEs in the same order and differ only in time.
        """
        choices = [choice for choice in dict.fromkeys(choices) if choice not in self.scouted]
        fastest: dict[Choice, tuple[float, Choice]] = {}
        for choice in choices:
            played = self.play(choice)
            if played.obstacle or self.breach(choice) is not None:
                continue
            alike = choice if choice.schedule == "first" else choice.with_(bandwidth="")
            pace_s = played.seconds_per_round
            if alike not in fastest or pace_s < fastest[alike][0]:
                fastest[alike] = pace_s, choice
        for choice in choices:
            found = fastest.get(choice.with_(bandwidth=""))
            if found is not None and found[1] != choice:
                self.slower[choice] = f"merges as with band {found[1].bandwidth}, later"
        return [choice for _, choice in fastest.values()]

    def play(self, choice: Choice) -> Played:
        self.listed.setdefault(choice)
        return self.trials.play(choice, self.seeds[0], self.target.horizon_s)

    def race(self, best: Choice | None) -> Choice | None:
        """Train the soonest scouts for the whole horizon until none is left that could beat the best."""
        allowed = [choice for choice in self.scouted if self.breach(choice) is None]
        new = [choice for choice in allowed if len(self.watched(choice)) < len(self.few)]
        ranked = [choice for choice in new if self.first_s(choice) < math.inf]
        ranked.sort(key=lambda choice: (self.first_s(choice), or_inf(choice.max_staleness), choice.quorum))
        while ranked:
            if best is not None:
                limit_s = CLOSE * self.first_s(best)
                ranked = [choice for choice in ranked if self.first_s(choice) <= limit_s]
            batch, ranked = ranked[:BATCH], ranked[BATCH:]
            self.watch(batch, self.few)
            best = self.settle([choice for choice in batch if self.stands(choice, self.few)], best)
        return best

    def watch(self, choices: Sequence[Choice], seeds: tuple[int, ...]) -> None:
        """Train choices for the whole horizon."""
        self.listed |= dict.fromkeys(choices)
        self.trials.train(choices, Rung(seeds, self.target.horizon_s))

    def settle(self, standing: Sequence[Choice], best: Choice | None) -> Choice | None:
        """Return the soonest choice that stands, or ``best`` if none is sooner.

        It must keep the target on all seeds and in a longer training, and none of its neighbours may fail. Neighbours
        that stand are considered too.
        """
        good = list(standing)
        seen = set(good)
        while good:
            good.sort(key=self.seconds)
            choice = good.pop(0)
            self.watch([choice], self.seeds)
            if not self.stands(choice, self.seeds) or self.seconds(choice) >= self.seconds(best):
                continue
            self.check_neighbours(choice)
            if self.has_margin(choice) and self.confirm(choice):
                best = choice
            beside = [each.choice for each in self.beside[choice] if not each.fails and each.choice not in seen]
            good += [each for each in beside if self.may_be_taken(each) and self.stands(each, self.few)]
            seen.update(beside)
        return best

    def check_neighbours(self, choice: Choice) -> None:
        """Check whether the neighbours of a choice, one step to each side, hold too.

        A neighbour fails if it leaves a UE out, or if at least a third of its seeds are unstable.
        """
        if choice in self.beside:
            return
        places, found = neighbours(self.space, choice), list[Neighbour]()
        for _, each in places:
            for seed in self.few:
                self.trials.play(each, seed, self.target.horizon_s)
        self.watch([each for _, each in places if self.left_out(each) is None], self.few)
        for axis, each in places:
            self.listed.setdefault(each)
            trials, out, fails = self.watched(each), self.left_out(each), False
            if (obstacle := self.obstacle(each)) is not None:
                why = f"not possible: {obstacle}"
            elif out is not None or too_many_fail(trials):
                fails, why = True, out or unstable(trials)
            else:
                why = "slower" if median_s(trials) is None else "holds"
            found.append(Neighbour(axis, each, fails, why))
        self.beside[choice] = tuple(found)

    def confirm(self, choice: Choice) -> bool:
        """Return whether every seed still keeps the target in a longer training."""
        self.trials.train([choice], Rung(self.seeds, self.target.confirm_s))
        trials = self.confirmed(choice)
        return len(trials) == len(self.seeds) and all(trial.state == "kept" for trial in trials)

    def may_be_taken(self, choice: Choice) -> bool:
        """Return whether a choice is in the search space or the spec's own; neighbours may lie outside."""
        return choice == self.space.asked or not self.space.lacks(choice)

    def final_choice(self, best: Choice | None) -> Choice | None:
        """Train the spec's own choice in any case, then return the soonest of all that were trained."""
        self.trials.expected_s = (len(self.seeds) + FRESH_SEEDS) * self.target.horizon_s
        self.watch([self.space.asked], self.seeds)
        if self.request.check:
            self.check_neighbours(self.space.asked)
        taken = [choice for choice in self.listed if self.may_be_taken(choice)]
        best = self.settle([choice for choice in taken if self.stands(choice, self.few)], best)
        if best is not None:
            self.watch([best], self.fresh)
        return best

    # ---- results of a choice

    def watched(self, choice: Choice) -> list[SeedOutcome]:
        return self.trials.known(choice, self.seeds, self.target.horizon_s)

    def confirmed(self, choice: Choice) -> list[SeedOutcome]:
        return self.trials.known(choice, self.seeds, self.target.confirm_s)

    def seconds(self, choice: Choice | None) -> float:
        """Return the median over seeds of when the target was kept; infinity if never."""
        return or_inf(None if choice is None else median_s(self.watched(choice)))

    def first_s(self, choice: Choice) -> float:
        """Return when the target was first reached, kept or not: the median over a few seeds."""
        known = {
            trial.seed: trial
            for at in (self.scout_s, self.target.horizon_s)
            for trial in self.trials.known(choice, self.few, at)
        }
        return or_inf(censored_median([known[seed].reached_s for seed in self.few if seed in known]))

    def clocks(self, choice: Choice) -> dict[int, Played]:
        """Return the simulations up to the horizon, by seed, as far as they were made."""
        found = {seed: self.trials.played.get((choice, seed, self.target.horizon_s)) for seed in self.seeds}
        return {seed: played for seed, played in found.items() if played is not None}

    def obstacle(self, choice: Choice) -> str | None:
        """Return why a choice is impossible with a seed that has been simulated; None if it is possible."""
        return next((played.obstacle for played in self.clocks(choice).values() if played.obstacle), None)

    def left_out(self, choice: Choice) -> str | None:
        """Return which UEs a choice never merges, according to the clock, in words; None if none."""
        if self.request.least_share == 0:
            return None
        for seed, played in self.clocks(choice).items():
            if played.starved:  # only so far? look further ahead
                played = self.trials.play(choice, seed, self.target.confirm_s)
            if played.starved:
                some = ", ".join(map(str, played.starved[:3])) + (" …" if len(played.starved) > 3 else "")
                return f"UE {some} never merged with seed {seed}"
        return None

    def breach(self, choice: Choice) -> str | None:
        """Return which limit a choice breaks, in words; None if none."""
        if (out := self.left_out(choice)) is not None:
            return out
        limits, watched, played = self.request, self.watched(choice), self.clocks(choice).get(self.seeds[0])
        shares = [trial.least_share for trial in watched]
        shares += [] if played is None or played.obstacle else [played.least_share]
        trials = [*watched, *self.trials.known(choice, self.few, self.scout_s)]
        if limits.least_share and shares and min(shares) < limits.least_share:
            return f"a UE has only {min(shares):.2%} of the merges (--least-share {limits.least_share:g})"
        late = max((trial.needs_s for trial in trials), default=0.0)
        if limits.within_s is not None and late > limits.within_s:
            return f"takes at least {late:.3g} s with a seed (--within-s {limits.within_s:g})"
        spent = max((trial.needs_j for trial in trials), default=0.0)
        if limits.joules is not None and spent > limits.joules:
            return f"takes at least {spent:.3g} J with a seed (--joules {limits.joules:g})"
        return None

    def stands(self, choice: Choice, seeds: Sequence[int]) -> bool:
        """Return whether a choice keeps the target on these seeds, within the limits.

        No seed may lose the target again, and fewer than a third may be late.
        """
        trials = self.trials.known(choice, seeds, self.target.horizon_s)
        steady = [trial for trial in trials if trial.state in ("kept", "late") and not trial.fails]
        late = sum(trial.state == "late" for trial in steady)
        if len(steady) < len(seeds) or 3 * late >= len(seeds):
            return False
        return self.breach(choice) is None and self.obstacle(choice) is None

    def has_margin(self, choice: Choice) -> bool:
        return not any(neighbour.fails for neighbour in self.beside.get(choice, ()))

    # ---- candidates

    def candidate(self, choice: Choice, best: Choice | None) -> Candidate:
        """Return everything that is known about a choice."""
        self.play(choice)
        scout = self.trials.known(choice, self.seeds[:1], self.scout_s) if choice in self.scouted else []
        return Candidate(
            choice,
            *self.verdict(choice, best),
            scouted_s=scout[0].reached_s if scout else None,
            trials=tuple(self.watched(choice)),
            neighbours=self.beside.get(choice, ()),
            confirmed=tuple(self.confirmed(choice)),
            fresh=tuple(self.trials.known(choice, self.fresh, self.target.horizon_s)) if choice == best else (),
            **self.privacy(choice),
        )

    def privacy(self, choice: Choice) -> dict[str, float]:
        """Return the largest noise and ε of a choice over the horizon, of all seeds that were simulated."""
        found = [played.privacy for played in self.clocks(choice).values() if played.privacy]
        names = ("noise", "noise_to_clip", "epsilon_worst")
        return {name: max(each[name] for each in found) for name in names if found}

    def verdict(self, choice: Choice, best: Choice | None = None) -> tuple[Standing, str]:
        """Return the verdict on a choice, and its reason."""
        trials = self.watched(choice)
        if (obstacle := self.obstacle(choice)) is not None:
            return "not possible", obstacle
        if (breach := self.breach(choice)) is not None:
            return "breaks a limit", breach
        for watched in (trials, self.confirmed(choice)):
            if losing(watched):
                return "fails" if any(trial.fails for trial in watched) else "wavers", unstable(watched)
        if any(trial.state != "kept" for trial in self.confirmed(choice)):
            return "wavers", f"not kept in every seed when trained for {self.target.confirm_s:.3g} s"
        if choice in self.slower:
            return "slower", self.slower[choice]
        if not self.has_margin(choice):
            edge = next(each for each in self.beside[choice] if each.fails)
            return "on an edge", f"beside {edge.choice} ({edge.why})"
        if choice == best:
            return "holds", ""
        if trials and self.stands(choice, [trial.seed for trial in trials]):
            return "holds", "no sooner" if self.may_be_taken(choice) else "not among what is searched"
        if not trials and choice in self.scouted:
            (scout,) = self.trials.known(choice, self.seeds[:1], self.scout_s)
            if scout.reached_s is not None:
                return "slower", f"its first seed took {scout.reached_s:.3g} s"
        return "slower", f"the target is not kept within {self.target.horizon_s / 2:.3g} s"


def losing(trials: Sequence[SeedOutcome]) -> list[SeedOutcome]:
    """Return the seeds that lose the target again, diverge or are clearly unstable."""
    return [trial for trial in trials if trial.state in ("lost", "diverged") or trial.fails]


def unstable(trials: Sequence[SeedOutcome]) -> str:
    """Return how a choice fails, in words."""
    failing = losing(trials)
    held = [trial.held for trial in failing if trial.held is not None]
    diverged = sum(trial.state == "diverged" for trial in failing)
    if diverged:
        return f"diverges in {diverged} of {len(trials)} seeds"
    if not held:
        return f"falls back and never reaches it in {len(failing)} of {len(trials)} seeds"
    span = f"{min(held):.0%}" if len(held) == 1 else f"{min(held):.0%} to {max(held):.0%}"
    return f"lost again in {len(failing)} of {len(trials)} seeds (held in {span} of later evaluations)"
