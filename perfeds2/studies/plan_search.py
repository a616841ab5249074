"""Who reaches the target soonest and keeps it, by trying few?

First bits and local steps are tried on one choice, since they change most. With the best of them the clock is asked of every A, S,
schedule, band, stale rule and number of local steps: what cannot be done, and whom it leaves out, needs no training. Of the rest one
seed is trained for a short time (a scout). Those near the soonest are trained on two more seeds for as long.
Then the soonest, by the median, are watched for the whole horizon on a few seeds, then on all. Who loses the target again is out;
who stands must still stand one step to each side, and when it is watched for longer. Then local steps, bits and the stale rule are varied
around the best. The race ends when no scout left was soon enough to beat it. If nothing stands, everything is watched for twice as long.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from perfeds2.errors import InputError
from perfeds2.runs.execute import Progress
from perfeds2.runs.statistics import censored_median
from perfeds2.spec.build import metric_of
from perfeds2.studies.plan_data import (
    Candidate,
    Choice,
    Limits,
    Neighbour,
    Target,
    Trial,
    Verdict,
    median_s,
    too_many_fail,
)
from perfeds2.studies.plan_score import judge
from perfeds2.studies.plan_space import Space, around, map_of, neighbours, value_of, variants
from perfeds2.studies.plan_trials import Played, Trials, Want

FIRST_SEEDS = 3  # a choice is watched on so many before all
SCOUTED = 1.5  # a scout looks so many times as long as the soonest took at first
WATCHED = 4.5  # the horizon is so many times as long
CONFIRMED = 3  # and what is recommended is watched for so many horizons
CLOSE = 1.25  # a choice whose scouts are up to so many times slower than the best one's may still win
NEAR = 1.5  # a scout up to so many times slower than the soonest gets more seeds
BATCH = 4  # choices watched at a time
LONGEST = 8  # the reference is trained up to so many times the spec's horizon
TURNS = 2  # of varying around the best
PATIENCE = 3  # horizons, each twice as long as the one before
Announce = Callable[[float, str, Progress | None], None]  # the share of all that is done, and what is being done


@dataclass(frozen=True)
class Request:
    """What is asked of a plan, beside the spec."""

    limits: Limits = Limits()  # noqa: RUF009 (frozen)
    keep: float = 0.9
    horizon_s: float | None = None
    check: bool = False

    def verify(self) -> None:
        """Refuse what cannot be planned, before any work."""
        if not 0.5 <= self.keep <= 1:
            raise InputError(f"--keep must be from 0.5 to 1, a share of the later looks, got {self.keep:g}.")
        positive = (
            ("--horizon-s", self.horizon_s),
            ("--within-s", self.limits.within_s),
            ("--joules", self.limits.joules),
        )
        for flag, value in positive:
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"{flag} must be a finite number above 0, got {value:g}.")
        share = self.limits.least_share
        if share is not None and not 0 <= share <= 1:
            raise InputError(f"--least-share must be from 0 to 1, a share of the merges, got {share:g}.")


@dataclass
class Race:
    """What is known so far, and the search through it."""

    space: Space
    trials: Trials
    request: Request
    announce: Announce
    target: Target
    scouting: float = SCOUTED / WATCHED  # the share of the horizon that a scout looks
    scouted: dict[Choice, tuple[Trial, ...]] = field(default_factory=dict)  # a seed, or a few
    beside: dict[Choice, tuple[Neighbour, ...]] = field(default_factory=dict)
    listed: dict[Choice, None] = field(default_factory=dict)  # in the order they were looked at
    slower: dict[Choice, str] = field(default_factory=dict)  # by the clock alone
    confirmed: dict[Choice, tuple[Trial, ...]] = field(default_factory=dict)  # watched longer

    # ---- what is known of a choice

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.space.spec.run.seeds

    @property
    def scout_s(self) -> float:
        return self.target.horizon_s * self.scouting

    def play(self, choice: Choice) -> Played | str:
        self.listed.setdefault(choice)
        return self.trials.play(choice, self.seeds[0], self.target.horizon_s)

    def watched(self, choice: Choice) -> list[Trial]:
        """Its seeds that have been watched for the whole horizon."""
        found = []
        for seed in self.seeds:
            played = self.trials.played.get((choice, seed, self.target.horizon_s))
            if isinstance(played, Played):
                curve = self.trials.curves.get((played.who, seed, self.target.horizon_s))
                found += [] if curve is None else [judge(curve, self.target.accuracy, self.target.keep)]
        return found

    def obstacle(self, choice: Choice) -> str | None:
        """Why it cannot be done, with any seed that has been asked."""
        asked = (self.trials.played.get((choice, seed, self.target.horizon_s)) for seed in self.seeds)
        return next((played for played in asked if isinstance(played, str)), None)

    def left_out(self, choice: Choice) -> str | None:
        """Whom it leaves out, by the clock."""
        if self.request.limits.least_share == 0:
            return None
        for seed in self.seeds:
            played = self.trials.played.get((choice, seed, self.target.horizon_s))
            if isinstance(played, Played) and played.starved:  # for good, or only so far?
                played = self.trials.play(choice, seed, self.target.confirm_s)
            if isinstance(played, Played) and played.starved:
                some = ", ".join(map(str, played.starved[:3])) + (" …" if len(played.starved) > 3 else "")
                return f"UE {some} never merged with seed {seed}"
        return None

    def breach(self, choice: Choice) -> str | None:
        """Which limit it breaks, in words."""
        limits, trials = self.request.limits, self.watched(choice)
        if (out := self.left_out(choice)) is not None:
            return out
        played = self.trials.played.get((choice, self.seeds[0], self.target.horizon_s))
        shares = [trial.least_share for trial in trials]
        shares += [played.facts.least_share] if isinstance(played, Played) else []
        if limits.least_share and shares and min(shares) < limits.least_share:
            return f"a UE has only {min(shares):.2%} of the merges (--least-share {limits.least_share:g})"
        late = max((trial.time_s for trial in trials if trial.time_s is not None), default=0.0)
        if limits.within_s is not None and late > limits.within_s:
            return f"takes up to {late:.3g} s (--within-s {limits.within_s:g})"
        spent = max((trial.joules for trial in trials if trial.joules is not None), default=0.0)
        if limits.joules is not None and spent > limits.joules:
            return f"takes up to {spent:.3g} J (--joules {limits.joules:g})"
        return None

    def stands(self, choice: Choice, seeds: Sequence[int]) -> bool:
        """Whether these seeds keep the target within the limits: none loses it again, and fewer than a third are late."""
        trials = [trial for trial in self.watched(choice) if trial.seed in seeds]
        states = [trial.state for trial in trials]
        kept = len(trials) == len(seeds) and set(states) <= {"kept", "late"} and states.count("late") < len(seeds) / 3
        kept = kept and not any(trial.fails for trial in trials)
        return kept and self.breach(choice) is None and self.obstacle(choice) is None

    def has_margin(self, choice: Choice) -> bool:
        return not any(neighbour.fails for neighbour in self.beside.get(choice, ()))

    # ---- the search

    def run(self, base: Choice) -> Choice | None:
        """The best choice, or none; local steps, bits and stale rule are ``base``'s at first."""
        choices = [*map_of(self.space, base), self.space.asked]
        self.scout(self._by_the_clock(choices, 0.2, 0.25), 0.25, 0.38)
        self.scout_again(0.38, 0.5)
        best = self.race(None, 0.5, 0.7)
        for turn in range(TURNS if best is not None else 0):
            assert best is not None
            before, share = best, 0.7 + 0.1 * turn
            new = [*variants(self.space, best), *around(self.space, best)]
            self.scout(self._by_the_clock(new, share, share + 0.02), share + 0.02, share + 0.03)
            self.scout_again(share + 0.03, share + 0.04)
            best = self.race(best, share + 0.04, share + 0.1)
            if best == before:
                break
        return best

    def look_at_asked(self) -> None:
        """What the spec itself says is watched in any case; with --check its neighbours are, too."""
        self.watch([self.space.asked], self.seeds, 0.92, 0.95)
        if self.request.check:
            self.look_beside(self.space.asked, 0.95, 1.0)

    def _by_the_clock(self, choices: Iterable[Choice], begin: float, end: float) -> list[Choice]:
        """Those that deserve a training: possible, nobody left out, and of bands that merge alike only the fastest."""
        choices = [choice for choice in dict.fromkeys(choices) if choice not in self.scouted]
        fastest: dict[Choice, tuple[float, Choice]] = {}
        for number, choice in enumerate(choices):
            self.announce(begin + (end - begin) * number / len(choices), f"clock A = {choice.quorum}", None)
            played = self.play(choice)
            if isinstance(played, str) or self.breach(choice) is not None:
                continue
            same = choice if choice.schedule == "first" else choice.with_(bandwidth="")
            pace = played.facts.seconds_per_round
            if same not in fastest or pace < fastest[same][0]:
                fastest[same] = pace, choice
        found = [choice for _, choice in fastest.values()]
        for choice in choices:
            best = fastest.get(choice.with_(bandwidth=""))
            if choice.schedule != "first" and best is not None and choice != best[1]:
                self.slower[choice] = f"merges as with band {best[1].bandwidth}, later"
        return found

    def scout(self, choices: Sequence[Choice], begin: float, end: float) -> None:
        """One seed of each, for a short time."""
        self._scout(choices, self.seeds[0], self._tell(begin, end, f"scouts of {len(choices)} choices"))

    def scout_again(self, begin: float, end: float) -> None:
        """Two more seeds of those that come near the soonest: no choice is to win or to lose by one."""
        soonest_s = min((self.first_s(choice) for choice in self.scouted), default=math.inf)
        near = [c for c, trials in self.scouted.items() if len(trials) == 1 and self.first_s(c) <= NEAR * soonest_s]
        for seed in self.seeds[1:FIRST_SEEDS] if soonest_s < math.inf else ():
            self._scout(near, seed, self._tell(begin, end, f"scouts of {len(near)} choices, seed {seed}"))

    def _scout(self, choices: Sequence[Choice], seed: int, tell: Callable[[float, Progress], None]) -> None:
        possible = [c for c in choices if isinstance(self.trials.play(c, seed, self.scout_s), Played)]
        curves = self.trials.train([Want(choice, seed, self.scout_s) for choice in possible], tell)
        for choice, curve in zip(possible, curves, strict=True):
            trial = judge(curve, self.target.accuracy, self.target.keep)
            self.scouted[choice] = (*self.scouted.get(choice, ()), trial)

    def race(self, best: Choice | None, begin: float, end: float) -> Choice | None:
        """Watch the soonest scouts until none is left that could beat the best that stands."""
        ranked = sorted((c for c in self.scouted if self.first_s(c) < math.inf and not self.watched(c)), key=self.rank)
        share = begin
        while ranked:
            if best is not None:
                limit = CLOSE * self.first_s(best)
                ranked = [choice for choice in ranked if self.first_s(choice) <= limit]
            batch, ranked = ranked[:BATCH], ranked[BATCH:]
            step = share + 0.3 * (end - share)
            self.watch(batch, self.seeds[:FIRST_SEEDS], share, step)
            best = self.climb([choice for choice in batch if self.stands(choice, self.seeds[:FIRST_SEEDS])], best, step)
            share = step
        return best

    def climb(self, good: list[Choice], best: Choice | None, share: float) -> Choice | None:
        """The best of some that stand on a few seeds. From one on an edge go to its neighbours that stand."""
        seen = set(good)
        while good:
            good.sort(key=lambda choice: median_s(self.watched(choice)) or math.inf)
            choice = good.pop(0)
            self.watch([choice], self.seeds, share, share)
            now, before = median_s(self.watched(choice)), None if best is None else median_s(self.watched(best))
            if not self.stands(choice, self.seeds) or now is None or (before is not None and now >= before):
                continue
            self.look_beside(choice, share, share)
            if self.has_margin(choice):
                best = choice if self.confirm(choice, share) else best
            beside = [each.choice for each in self.beside[choice] if not each.fails and each.choice not in seen]
            good += [each for each in beside if self.may_be_taken(each) and self.stands(each, self.seeds[:FIRST_SEEDS])]
            seen.update(beside)
        return best

    def may_be_taken(self, choice: Choice) -> bool:
        """Whether it is among what is searched, or what the spec says; a neighbour may lie beyond."""
        axes = self.space.axes
        return choice == self.space.asked or all(value_of(choice, axis) in values for axis, values in axes.items())

    def last_look(self, best: Choice | None) -> Choice | None:
        """Among all that has been watched by the way there may be one that is sooner."""
        first = self.seeds[:FIRST_SEEDS]
        return self.climb([c for c in self.listed if self.may_be_taken(c) and self.stands(c, first)], best, 0.97)

    def first_s(self, choice: Choice) -> float:
        """When it first reached the target, kept or not: the median of the first seeds, as far as they have been looked at."""
        known = {trial.seed: trial for trial in (*self.scouted.get(choice, ()), *self.watched(choice))}
        times = [known[seed].reached_s for seed in self.seeds[:FIRST_SEEDS] if seed in known]
        median = censored_median(times) if times else None
        return math.inf if median is None else median

    def rank(self, choice: Choice) -> tuple[float, float, int]:
        return self.first_s(choice), math.inf if choice.max_staleness is None else choice.max_staleness, choice.quorum

    def watch(self, choices: Sequence[Choice], seeds: Sequence[int], begin: float, end: float) -> None:
        """Train choices for the whole horizon; what turns out to be impossible with a seed is left out."""
        wants = [
            Want(choice, seed, self.target.horizon_s)
            for choice in choices
            if all(isinstance(self.trials.play(choice, seed, self.target.horizon_s), Played) for seed in seeds)
            for seed in seeds
        ]
        for choice in choices:
            self.listed.setdefault(choice)
        self.trials.train(wants, self._tell(begin, end, "watching"))

    def look_beside(self, choice: Choice, begin: float, end: float) -> None:
        """Does it still stand one step to each side? As soon as a third of a neighbour's seeds are unstable it does not."""
        if choice in self.beside:
            return
        seeds, found = self.seeds[:FIRST_SEEDS], list[Neighbour]()
        places = neighbours(self.space, choice)
        for _, each in places:
            for seed in seeds:
                self.trials.play(each, seed, self.target.horizon_s)
        self.watch([each for _, each in places if self.left_out(each) is None], seeds, begin, end)
        for axis, each in places:
            self.listed.setdefault(each)
            trials = self.watched(each)
            if (obstacle := self.obstacle(each)) is not None:
                found.append(Neighbour(axis, each, False, f"not possible: {obstacle}"))
            elif (out := self.left_out(each)) is not None:
                found.append(Neighbour(axis, each, True, out))
            elif too_many_fail(trials):
                found.append(Neighbour(axis, each, True, unstable(trials)))
            else:
                found.append(Neighbour(axis, each, False, "holds" if median_s(trials) is not None else "slower"))
        self.beside[choice] = tuple(found)

    def confirm(self, choice: Choice, share: float) -> bool:
        """Whether it still keeps the target when it is watched for longer, in every seed."""
        if choice not in self.confirmed:
            confirm_s = self.target.confirm_s
            wants = [
                Want(choice, seed, confirm_s)
                for seed in self.seeds
                if isinstance(self.trials.play(choice, seed, confirm_s), Played)
            ]
            curves = self.trials.train(wants, self._tell(share, share, f"confirming A = {choice.quorum}"))
            self.confirmed[choice] = tuple(judge(curve, self.target.accuracy, self.target.keep) for curve in curves)
        trials = self.confirmed[choice]
        return len(trials) == len(self.seeds) and all(trial.state == "kept" for trial in trials)

    def _tell(self, begin: float, end: float, what: str) -> Callable[[float, Progress], None]:
        def tell(share: float, now: Progress) -> None:
            self.announce(begin + share * (end - begin), what, now)

        return tell

    # ---- what came out

    def candidates(self, best: Choice | None) -> tuple[Candidate, ...]:
        return tuple(self._candidate(choice, choice == best) for choice in self.listed)

    def _candidate(self, choice: Choice, is_best: bool) -> Candidate:
        trials, played = tuple(self.watched(choice)), self.play(choice)
        verdict, why = self.verdict(choice, is_best)
        scout = self.scouted.get(choice)
        return Candidate(
            choice,
            verdict,
            why,
            played.facts if isinstance(played, Played) else None,
            None if scout is None else scout[0].reached_s,
            trials,
            self.beside.get(choice, ()),
            self.confirmed.get(choice, ()),
        )

    def verdict(self, choice: Choice, is_best: bool = False) -> tuple[Verdict, str]:
        trials = self.watched(choice)
        if (obstacle := self.obstacle(choice)) is not None:
            return "not possible", obstacle
        if (breach := self.breach(choice)) is not None:
            return "breaks a limit", breach
        for watched in (trials, self.confirmed.get(choice, ())):
            if any(trial.state in ("lost", "diverged") or trial.fails for trial in watched):
                return "fails" if any(trial.fails for trial in watched) else "wavers", unstable(watched)
        if choice in self.slower:
            return "slower", self.slower[choice]
        if not self.has_margin(choice):
            edges = [f"{each.choice} ({each.why})" for each in self.beside[choice] if each.fails]
            return "on an edge", f"beside {edges[0]}"
        if is_best or (trials and self.stands(choice, [trial.seed for trial in trials])):
            return "holds", "" if is_best else "no sooner" if self.may_be_taken(
                choice
            ) else "not among what is searched"
        scout = self.scouted.get(choice)
        if not trials and scout is not None and scout[0].reached_s is not None:
            return "slower", f"its first seed took {scout[0].reached_s:.3g} s"
        return "slower", f"the target is not kept within {self.target.horizon_s / 2:.3g} s"


def unstable(trials: Sequence[Trial]) -> str:
    """How it fails, in words."""
    failing = [trial for trial in trials if trial.state in ("lost", "diverged") or trial.fails]
    held = [trial.held for trial in failing if trial.held is not None]
    if any(trial.state == "diverged" for trial in failing):
        return f"diverges in {sum(trial.state == 'diverged' for trial in failing)} of {len(trials)} seeds"
    if not held:
        return f"falls back and never reaches it in {len(failing)} of {len(trials)} seeds"
    span = f"{min(held):.0%}" if len(held) == 1 else f"{min(held):.0%} to {max(held):.0%}"
    return f"lost again in {len(failing)} of {len(trials)} seeds (held in {span} of later looks)"


# ---- for how long, and with which bits and local steps?


@dataclass(frozen=True)
class Start:
    """Where a search begins."""

    base: Choice  # whose bits, local steps and stale rule the first map has
    target: Target


def begin(space: Space, trials: Trials, request: Request, announce: Announce) -> Start:
    """How long must choices be watched, by what one takes, with the bits and local steps that suit it best?

    Without a horizon that was given it is a few times as long as the soonest of those takes; of a spec that is to be checked, three
    times as long as its own choice takes, if that is longer.
    """
    spec, keep = space.spec, request.keep
    accuracy, metric = spec.run.target_accuracy, metric_of(spec)
    first, took_s, asked_s = _reference(space, trials, request, announce)
    scout_s, seed = 1.2 * took_s, spec.run.seeds[0]
    best, best_s = first, took_s
    for axis in ("bits", "local_steps"):
        tried = [best.with_(**{axis: value}) for value in space.axes[axis]]
        tried = [each for each in tried if isinstance(trials.play(each, seed, scout_s), Played)]

        def tell(share: float, now: Progress, axis: str = axis) -> None:
            announce(0.1 + 0.05 * share, f"which {axis.replace('_', ' ')}?", now)

        curves = trials.train([Want(each, seed, scout_s) for each in tried], tell)
        for each, curve in zip(tried, curves, strict=True):
            trial = judge(curve, accuracy, keep)
            if trial.reached_s is not None and trial.reached_s < best_s:
                best, best_s = each, trial.reached_s
    listed = {axis: values for axis, values in space.axes.items() if axis in ("stale", "bits", "local_steps")}
    best = best.with_(**{axis: values[0] for axis, values in listed.items() if value_of(best, axis) not in values})
    if request.horizon_s is not None:
        horizon_s, why = request.horizon_s, "as given"
    else:
        horizon_s, why = WATCHED * best_s, f"{WATCHED:g} times as long as the soonest of a few took at first"
        if request.check and asked_s is not None and 3 * asked_s > horizon_s:
            horizon_s, why = 3 * asked_s, "three times as long as what you asked for takes"
    horizon_s = float(f"{horizon_s:.2g}")
    return Start(best, Target(accuracy, metric, keep, horizon_s, CONFIRMED * horizon_s, why))


def _reference(
    space: Space, trials: Trials, request: Request, announce: Announce
) -> tuple[Choice, float, float | None]:
    """A choice that gets there, what it takes, and what the spec's own takes, if that does.

    It is the spec's own; where that does not keep the target, a gentle one: a quarter of the UEs or more, no bound.
    """
    spec, asked = space.spec, space.asked
    n, seed, accuracy = spec.cell.ues, spec.run.seeds[0], spec.run.target_accuracy
    gentle = asked.with_(quorum=max(asked.quorum, round(n / 4), 1), max_staleness=None, schedule="first")
    gentle = gentle.with_(bandwidth="equal_share") if ("bandwidth", "equal_share") in space.named else gentle
    horizon_s, best = request.horizon_s or spec.run.horizon_s or 30.0, 0.0
    for longer in range(round(math.log2(LONGEST)) + 1 if request.horizon_s is None else 1):
        until_s = 2**longer * horizon_s
        found: list[tuple[bool, float, Choice]] = []
        for choice in dict.fromkeys((asked, gentle)):
            if isinstance(trials.play(choice, seed, until_s), str):
                continue

            def tell(share: float, now: Progress, until_s: float = until_s) -> None:
                announce(0.1 * share, f"how long does it take? ({until_s:.4g} s)", now)

            (curve,) = trials.train([Want(choice, seed, until_s)], tell)
            trial = judge(curve, accuracy, request.keep)
            best = max([best, *(score for score in curve.score if score is not None)])
            if trial.state == "kept" and trial.time_s is not None:
                return choice, trial.time_s, trial.time_s if choice == asked else None
            if trial.reached_s is not None:
                found.append((trial.state == "late", trial.reached_s, choice))
        if found and (longer > 0 or request.horizon_s is not None):
            _, took_s, choice = max(found, key=lambda each: each[:2])
            return choice, took_s, None
    raise InputError(
        f"--target-accuracy {accuracy:g} is not reached within {until_s:g} simulated seconds by {asked}, nor by "
        f"{gentle} (their best look: {best:.4g}); lower it, tune the step sizes (perfeds2 tune), or give --horizon-s."
    )


def search(space: Space, trials: Trials, request: Request, announce: Announce) -> tuple[Race, Choice | None]:
    """The whole search. Where nothing stands, all is watched for twice as long; or, with a given horizon, scouts look longer."""
    start = begin(space, trials, request, announce)
    race, best = Race(space, trials, request, announce, start.target), None
    for patience in range(PATIENCE):
        if patience > 0 and request.horizon_s is not None:
            race = Race(space, trials, request, announce, start.target, scouting=0.5)  # nothing later can be kept
        elif patience > 0:
            horizon_s = 2**patience * start.target.horizon_s
            target = replace(start.target, horizon_s=horizon_s, confirm_s=CONFIRMED * horizon_s)
            race = Race(space, trials, request, announce, target)
        best = race.run(start.base)
        if best is not None or (patience > 0 and request.horizon_s is not None):
            break
    race.look_at_asked()
    return race, race.last_look(best)
