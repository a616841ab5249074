"""A run's folder as a comparison leaves it: real timelines, made-up learning."""

import base64
import json
import re
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from perfeds2.network.cell import Cell
from perfeds2.runs.statistics import censored_median, statistic
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline, save_timelines
from perfeds2.timeline.simulate import simulate

ALGORITHMS = [  # name, objective, mode
    ("FedAvg-SYN", "FedAvg", "SYN"),
    ("FedProx-SYN", "FedProx", "SYN"),
    ("PerFed-SYN", "PerFed", "SYN"),
    ("FedAvgS2", "FedAvg", "S2"),
    ("FedProxS2", "FedProx", "S2"),
    ("PerFedS2", "PerFed", "S2"),
    ("FedAvg-ASY", "FedAvg", "ASY"),
    ("FedProx-ASY", "FedProx", "ASY"),
    ("PerFed-ASY", "PerFed", "ASY"),
]
FINAL = {"FedAvg": 0.83, "FedProx": 0.85, "PerFed": 0.93}  # made-up personalised accuracy
SLOW_S = {"SYN": 12.0, "S2": 5.0, "ASY": 7.0}
SPEC = '[compare]\ntask = "digits"\nues = 12\nquorum = 5\nmax_staleness = 5\nhorizon_s = 60.0\nseeds = [0, 1, 2]\n'

MakeRun = Callable[..., Path]


@pytest.fixture(scope="session")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """Build a folder; ``algorithms`` are (name, objective, mode)."""

    def build(
        algorithms: Sequence[tuple[str, str, str]] = tuple(ALGORITHMS),
        seeds: Sequence[int] = (0, 1, 2),
        ues: int = 12,
        horizon_s: float = 60.0,
        target: float | None = 0.8,
        command: str = "compare",
        spec: str = SPEC,
        diverged: Sequence[tuple[str, int]] = (),  # (algorithm, seed)
        notes: Sequence[str] = (),
    ) -> Path:
        folder = tmp_path_factory.mktemp("run")
        timelines = _timelines(algorithms, seeds, ues, horizon_s)
        metrics = pd.DataFrame(_metrics(algorithms, seeds, timelines, horizon_s, diverged))
        rows = [_row(algorithm, seeds, timelines, metrics, target, diverged) for algorithm in algorithms]
        if command == "simulate":
            learned = {"time_to_target_s", "diverged", *(c for c in rows[0] if c.startswith(("train_", "test_")))}
            rows = [{key: value for key, value in row.items() if key not in learned} for row in rows]
        else:
            metrics.to_csv(folder / "metrics.csv", index=False)
            pd.DataFrame(_ue_metrics(algorithms, seeds, timelines)).to_csv(folder / "ue_metrics.csv", index=False)
        single = command == "simulate" and len(timelines) == 1
        save_timelines(folder / "timeline.npz", {"": next(iter(timelines.values()))} if single else timelines)
        (folder / "spec.toml").write_text(spec)
        (folder / "events.log").write_text("")
        summary = {
            "perfeds2": "0.1.0",
            "command": command,
            "task": None if command == "simulate" else "digits",
            "ues": ues,
            "horizon_s": horizon_s,
            "rounds": None,
            "seeds": list(seeds),
            "target_accuracy": None if command == "simulate" else target,
            "notes": list(notes),
            "algorithms": rows,
        }
        (folder / "summary.json").write_text(json.dumps(summary))
        return folder

    return build


@pytest.fixture
def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Called, it makes output go to a terminal of this many columns."""

    def be(width: int = 120) -> None:
        for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", str(width))):
            monkeypatch.setenv(name, value)

    return be


@pytest.fixture(scope="session")
def compared(make_run: MakeRun) -> Path:
    """All nine algorithms over three seeds; one run diverged. Read it, do not write to it."""
    return make_run(diverged=[("FedProx-ASY", 1)], notes=["Made-up learning: for tests only."])


def _timelines(
    algorithms: Sequence[tuple[str, str, str]], seeds: Sequence[int], ues: int, horizon_s: float
) -> dict[str, Timeline]:
    return {f"{name}/{seed}": _played(mode, seed, ues, horizon_s) for name, _, mode in algorithms for seed in seeds}


@cache
def _played(mode: str, seed: int, ues: int, horizon_s: float) -> Timeline:
    protocol = {"SYN": Protocol(ues), "ASY": Protocol(1)}.get(mode, Protocol(min(5, ues), 5))
    return simulate(Cell.draw(ues, seed), protocol, payload_bits=1.2e6, samples=4000.0, horizon_s=horizon_s)


def _metrics(
    algorithms: Sequence[tuple[str, str, str]],
    seeds: Sequence[int],
    timelines: dict[str, Timeline],
    horizon_s: float,
    diverged: Sequence[tuple[str, int]],
) -> list[dict[str, float | str]]:
    rows = []
    for name, objective, mode in algorithms:
        for seed in seeds:
            noise = np.random.default_rng([seed, len(name)])
            for time_s in np.linspace(0.0, horizon_s, 25):
                gone = (name, seed) in diverged and time_s > horizon_s / 2
                about = {"algorithm": name, "seed": seed, "round": timelines[f"{name}/{seed}"].until(time_s)}
                learned = made_up_metrics(objective, time_s / SLOW_S.get(mode, 6.0), noise, gone)
                rows.append(about | {"time_s": time_s} | learned)
    return rows


def made_up_metrics(objective: str, progress: float, noise: np.random.Generator, diverged: bool) -> dict[str, float]:
    """What an evaluation finds after this many times the time it takes to learn."""
    learned, final = 1 - np.exp(-progress), FINAL.get(objective, 0.8)
    accuracy = 0.1 + (final - 0.1) * learned + noise.normal(0, 0.01)
    loss = 2.3 - 2.0 * learned * final + noise.normal(0, 0.02)
    loss = np.inf if diverged else loss
    return {
        "train_loss": loss + 0.2,
        "train_loss_personal": loss,
        "test_accuracy": accuracy - 0.08 * learned,
        "test_accuracy_personal": accuracy,
    }


def _row(
    algorithm: tuple[str, str, str],
    seeds: Sequence[int],
    timelines: dict[str, Timeline],
    metrics: pd.DataFrame,
    target: float | None,
    diverged: Sequence[tuple[str, int]],
) -> dict[str, object]:
    name, objective, mode = algorithm
    mine = [timelines[f"{name}/{seed}"] for seed in seeds]
    of = [metrics[(metrics["algorithm"] == name) & (metrics["seed"] == seed)] for seed in seeds]
    reached = [table.loc[table["test_accuracy_personal"] >= (target or 2.0), "time_s"] for table in of]
    times = [float(found.iloc[0]) if len(found) else None for found in reached]
    known = [time for time in times if time is not None]
    return {
        "algorithm": name,
        "objective": objective,
        "mode": mode,
        "quorum": mine[0].quorum,
        "max_staleness": 5 if mode == "S2" else None,
        "stale": "restart",
        "rounds": statistic([t.rounds for t in mine]),
        "merges": statistic([t.ues.size for t in mine]),
        "staleness_mean": statistic([float(t.staleness.mean()) for t in mine]),
        "staleness_max": statistic([int(t.staleness.max()) for t in mine]),
        "waiting_share": statistic([t.waiting_share for t in mine]),
        "wasted_share": statistic([t.wasted_share for t in mine]),
        "starved": statistic([t.starved.size for t in mine]),
        "time_to_target_s": {"values": times, "reached": len(known), "median": censored_median(times)},
        **{
            column: statistic([float(np.asarray(table[column])[-1]) for table in of])
            for column in ("train_loss", "train_loss_personal", "test_accuracy", "test_accuracy_personal")
        },
        "diverged": sum((name, seed) in diverged for seed in seeds),
    }


def _ue_metrics(
    algorithms: Sequence[tuple[str, str, str]], seeds: Sequence[int], timelines: dict[str, Timeline]
) -> list[dict[str, float | str]]:
    rows = []
    for name, objective, _ in algorithms:
        for seed in seeds:
            timeline, noise = timelines[f"{name}/{seed}"], np.random.default_rng([seed, len(name), 1])
            for ue in range(timeline.population):
                accuracy = float(np.clip(FINAL.get(objective, 0.8) + noise.normal(0, 0.05), 0, 1))
                rows.append(
                    {
                        "algorithm": name,
                        "seed": seed,
                        "ue": ue,
                        "samples": 60 + ue,
                        "merges": int(timeline.merges[ue]),
                        "train_loss": 0.6,
                        "train_loss_personal": 0.4,
                        "test_accuracy": accuracy - 0.05,
                        "test_accuracy_personal": accuracy,
                    }
                )
    return rows


def charts_of(page: str) -> dict[str, dict]:
    """Return the charts of a page by name."""
    found = re.search(r'<script type="text/plain" id="charts" data-bytes="(\d+)">(.*?)</script>', page)
    assert found
    return json.loads(zlib.decompress(base64.b85decode(found[2].replace('"', "<"))[: int(found[1])]))
