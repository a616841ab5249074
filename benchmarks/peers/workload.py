"""Define and time the work that all peers do.

Uses only NumPy and the standard library, so that every environment can import it.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

UES, SAMPLES, FEATURES, HIDDEN, CLASSES = 20, 600, 784, 100, 10  # MNIST's shape, split over 20 UEs
QUORUM, BATCH, BETA, ALPHA = 5, 40, 0.07, 0.03
WARM_UP = 30  # untimed rounds; every peer's loss is evaluated after exactly these

Layers = Sequence[np.ndarray]  # weight1 (784, 100), bias1, weight2 (100, 10), bias2


def data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return samples (UES, SAMPLES, FEATURES) and labels (UES, SAMPLES): ten grey images with strong noise."""
    return _pictures(seed, (UES, SAMPLES), 1)


def loss(weights: Layers, seed: int) -> float:
    """Return the mean cross-entropy over 1,000 further samples, by which every framework is judged."""
    x, y = _pictures(seed, (1_000,), 2)
    weight1, bias1, weight2, bias2 = (np.asarray(w, np.float64) for w in weights)
    logits = np.maximum(x @ weight1 + bias1, 0.0) @ weight2 + bias2
    logits -= logits.max(axis=1, keepdims=True)
    return float((np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(y.size), y]).mean())


def _pictures(seed: int, shape: tuple[int, ...], which: int) -> tuple[np.ndarray, np.ndarray]:
    pictures = np.random.default_rng([seed, 0]).random((CLASSES, FEATURES), np.float32)
    random = np.random.default_rng([seed, which])
    y = random.integers(0, CLASSES, shape)
    x = 0.3 * pictures[y] + 0.7 * random.random((*shape, FEATURES), np.float32)
    return x - np.float32(0.5), y  # centred, as usual for pixels


def options() -> argparse.Namespace:
    """Parse the arguments that all scripts share."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--exact", action="store_true", help="meta-gradients with the exact Hessian, where there are any"
    )
    parser.add_argument(
        "--replay", action="store_true", help="perfeds2 without its clock: the timeline is there before"
    )
    parser.add_argument("--turns", type=int, default=1, help="repetitions in one process")
    return parser.parse_args()


def measure(
    peer: str,
    packages: Sequence[str],
    play: Callable[[int], object],
    weights: Callable[[], Layers],
    rounds: int,
    seed: int,
    shim: str = "",
) -> None:
    """Warm up, evaluate the loss, then time ``rounds`` more rounds per turn. ``play(n)`` runs n rounds."""
    play(WARM_UP)
    learned = loss(weights(), seed)
    for _ in range(options().turns):
        began = time.perf_counter(), cpu_s()
        play(rounds)
        say(peer, packages, rounds, time.perf_counter() - began[0], cpu_s() - began[1], learned, shim)


def say(
    peer: str, packages: Sequence[str], rounds: int, wall_s: float, cpu_s: float, learned: float, shim: str = ""
) -> None:
    """Print one line of JSON for ``run.py``."""
    line = {
        "peer": peer,
        "version": ", ".join(f"{package} {_version(package)}" for package in packages),
        "rounds": rounds,
        "rounds_per_s": rounds / wall_s,
        "cpu_rounds_per_s": rounds / cpu_s,
        "final_loss": learned,
        "shim": shim,
    }
    print(json.dumps(line), flush=True)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "from its sources"


def cpu_s() -> float:
    """Return the CPU seconds of this process and its running descendants (Ray's workers)."""
    return time.process_time() + sum(_cpu_s(pid) for pid in _descendants(os.getpid()))


def _descendants(ancestor: int) -> list[int]:
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(folder.name))
        if fields:
            parents[int(folder.name)] = int(fields[1])
    found, new = [], [ancestor]
    while new:
        new = [pid for pid, parent in parents.items() if parent in new]
        found += new
    return found


def _cpu_s(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat after the name, which may contain spaces; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
