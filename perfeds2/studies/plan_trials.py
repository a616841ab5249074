"""What does the clock show of a choice, and how does it learn? Nothing is simulated or trained twice, nor after a kill.

A trial is a run like any other, of one choice and one seed, in a folder of its own as long as it is at work. What it showed
is kept. Choices that merge the same UEs at the same seconds, and compute alike, are one trial.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.runs.comparison import Comparison, load_comparison
from perfeds2.runs.execute import Progress, execute_all
from perfeds2.runs.folder import Folder, open_folder
from perfeds2.runs.live import Live
from perfeds2.spec.build import Stage, make_algorithms, make_timelines
from perfeds2.spec.fields import Spec
from perfeds2.studies.plan_data import Choice, ClockFacts
from perfeds2.studies.plan_score import Curve
from perfeds2.studies.plan_space import Space
from perfeds2.timeline.record import Timeline

LOOKS = 60  # in a horizon
Tell = Callable[[float, Progress], None]  # the share of a batch that is done, and what is being done


@dataclass(frozen=True)
class Played:
    """What the clock showed of a choice, with one seed."""

    facts: ClockFacts
    who: str  # equal where the same UEs are merged at the same seconds until the horizon, and compute alike
    starved: tuple[int, ...]


@dataclass(frozen=True)
class Want:
    """One training."""

    choice: Choice
    seed: int
    horizon_s: float


@dataclass
class Trials:
    """All that has been simulated and trained so far."""

    space: Space
    folder: Path | None  # None: nothing is written
    looks: int = LOOKS  # in the time that is wanted
    played: dict[tuple[Choice, int, float], Played | str] = field(default_factory=dict)
    timelines: dict[tuple[Choice, int], tuple[float, Timeline | str]] = field(default_factory=dict)  # the longest
    curves: dict[tuple[str, int, float], Curve] = field(default_factory=dict)  # by who is merged when
    trained: int = 0
    live: Live | None = None  # where others see how far it is

    def play(self, choice: Choice, seed: int, horizon_s: float) -> Played | str:
        """What the clock shows until the horizon; or why it cannot be done. A shorter time is the beginning of a longer one."""
        key = choice, seed, horizon_s
        if key not in self.played:
            known_s, known = self.timelines.get((choice, seed), (0.0, ""))
            if known_s < horizon_s:
                known = _timeline(self.space.spec_of(choice, [seed], horizon_s, self.looks), seed)
                self.timelines[choice, seed] = horizon_s, known
            self.played[key] = known if isinstance(known, str) else _until(known, choice, horizon_s)
        return self.played[key]

    def train(self, wants: Sequence[Want], tell: Tell | None = None) -> list[Curve]:
        """What each of them showed. All can be done: the clock has been asked."""
        keys = []
        missing: dict[tuple[str, int, float], Spec] = {}
        labels: dict[tuple[str, int, float], str] = {}
        for want in wants:
            played = self.play(want.choice, want.seed, want.horizon_s)
            if isinstance(played, str):
                raise InputError(f"{want.choice}: {played}")
            keys.append((played.who, want.seed, want.horizon_s))
            if keys[-1] not in self.curves:
                missing[keys[-1]] = self.space.spec_of(want.choice, [want.seed], want.horizon_s, self.looks)
                labels[keys[-1]] = f"{want.choice}, {want.horizon_s:.4g} s"
        self._train(missing, labels, tell)
        return [self.curves[key] for key in keys]

    def _train(
        self,
        missing: dict[tuple[str, int, float], Spec],
        labels: dict[tuple[str, int, float], str],
        tell: Tell | None,
    ) -> None:
        places = {} if self.folder is None else {key: self.folder / _name(spec) for key, spec in missing.items()}
        for key, place in places.items():
            if (known := _read(place)) is not None:
                self.curves[key] = known
                self.trained += 1
        left = [key for key in missing if key not in self.curves]
        folders = {key: open_folder(places[key], missing[key]) for key in left if key in places}
        for key, folder in folders.items():
            if folder.finished:  # and was not read before the command was killed
                self._keep(key, load_comparison(missing[key], folder), folder)
        left = [key for key in left if key not in self.curves]
        if not left:
            return

        def watch(now: Progress) -> None:
            if tell is not None:
                tell(now.share, now)

        with_folders = [folders[key] for key in left] if folders else None
        shown = [labels[key] for key in left]
        specs = [missing[key] for key in left]
        done = execute_all(specs, "plan", with_folders, watch=watch, live=self.live, labels=shown)
        for key, comparison in zip(left, done, strict=True):
            self._keep(key, comparison, folders.get(key))

    def _keep(self, key: tuple[str, int, float], comparison: Comparison, folder: Folder | None) -> None:
        (timeline,) = comparison.timelines.values()
        curve = Curve.of_rows(key[1], comparison.rows, float(timeline.shares.min()))
        self.curves[key] = curve
        self.trained += 1
        if folder is not None:
            write_text(_file(folder.path), json.dumps(asdict(curve)) + "\n")
            shutil.rmtree(folder.path)


def _timeline(spec: Spec, seed: int) -> Timeline | str:
    try:
        stage = Stage.of(spec, seed)
        (algorithm,) = make_algorithms(spec, stage)
        (timeline,) = make_timelines(spec, stage, [algorithm])
    except ValueError as error:  # also what a user causes: this choice cannot be done
        return str(error)
    return timeline


def _until(timeline: Timeline, choice: Choice, horizon_s: float) -> Played | str:
    """What a timeline shows until a second."""
    rounds = int(np.searchsorted(timeline.time_s, horizon_s, side="right"))
    if rounds == 0:
        return f"no round closes within {horizon_s:.4g} s"
    ues, staleness, time_s = timeline.ues[:rounds], timeline.staleness[:rounds], timeline.time_s[:rounds]
    merges = np.bincount(ues.ravel(), minlength=timeline.population)
    digest = hashlib.sha256(f"{choice.local_steps} {choice.bits} {ues.shape}".encode())
    for column in (ues, staleness, time_s):
        digest.update(np.ascontiguousarray(column).tobytes())
    facts = ClockFacts(
        seconds_per_round=float(time_s[-1]) / rounds,
        merges_per_s=ues.size / float(time_s[-1]),
        staleness_mean=float(staleness.mean()),
        staleness_max=int(staleness.max()),
        waiting_share=timeline.waiting_share,
        least_share=float(merges.min() / ues.size),
    )
    return Played(facts, digest.hexdigest(), tuple(map(int, np.flatnonzero(merges == 0))))


# ---- in a folder


def _name(spec: Spec) -> str:
    return hashlib.sha256(spec.to_toml().encode()).hexdigest()[:20]


def _file(place: Path) -> Path:
    return place.with_name(f"{place.name}.json")


def _read(place: Path) -> Curve | None:
    """What a trial showed before the command was interrupted; None if it did not come to its end, or the file is damaged."""
    try:
        found = json.loads(_file(place).read_text(encoding="utf-8"))
        lists: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in found.items()
        }
        curve = Curve(**lists)
        return curve if len(curve.time_s) == len(curve.score) == len(curve.joules) > 1 else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None
