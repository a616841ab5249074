"""Compare the counted multiply-adds of a sample's gradient with the measured time on one core of this machine.

    python benchmarks/computing_time.py --out computing.png
    python benchmarks/computing_time.py --memory

If counted cycles are true, all models lie on one line. Cycles per parameter are drawn beside them. With --memory, it prints
the counted memory of a UE's job on batches of --batch, and what XLA's own analysis of the compiled job says.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

# One core, as the clock's devices have. To be set before JAX starts.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot

from perfeds2.learning.gradients import MeanLoss
from perfeds2.learning.learner import Learner
from perfeds2.learning.models.lenet import CNN, LENET
from perfeds2.learning.models.lstm import LSTM
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import Model
from perfeds2.learning.models.resnet import resnet18_gn
from perfeds2.learning.models.transformer import transformer
from perfeds2.learning.objectives import Context, FedAvg, Objective, PerFed
from perfeds2.learning.operations import job_bytes, multiply_adds
from perfeds2.learning.task import parameters

BYTES = np.dtype(np.uint8)
MODELS: dict[str, tuple[Model, int]] = {  # and the length of a sample
    "MLP 784-100-10": (MLP((784, 100, 10), input_scale=255), 784),
    "MLP 3072-1000-100": (MLP((3072, 1000, 100), input_scale=255), 3072),
    "LeNet-5": (LENET, 3072),
    "CNN": (CNN, 3072),
    "LSTM": (LSTM(), 80),
    "transformer": (transformer(80, 80, BYTES), 80),
    "ResNet-18": (resnet18_gn(3072, 10, BYTES), 3072),
}


def seconds_of(model: Model, length: int, batch: int, turns: int) -> float:
    """Return the median seconds of one sample's gradient."""
    params = model.init(jax.random.key(0))
    x = jnp.asarray(np.random.default_rng(0).integers(0, 80, (batch, length)), jnp.uint8)
    gradient = jax.jit(jax.grad(lambda w, x: jnp.square(model(w, x)).mean()))
    jax.block_until_ready(gradient(params, x))
    took = []
    for _ in range(turns):
        began = time.process_time()
        jax.block_until_ready(gradient(params, x))
        took.append(time.process_time() - began)
    return float(np.median(took)) / batch


def megabytes(model: Model, length: int, objective: Objective, batch: int) -> tuple[float, float]:
    """Return the counted memory of a job of one step, and XLA's."""
    params, shape = jax.eval_shape(lambda: model.init(jax.random.key(0))), (objective.batches, batch)
    batches = jax.ShapeDtypeStruct((*shape, length), np.uint8), jax.ShapeDtypeStruct(shape, np.int32)
    context = Context(MeanLoss(model), jnp.float32(0.07), jnp.int32(0), jnp.int32(0), jax.random.key(0))
    job = jax.jit(lambda w, b: objective.gradient(w, w, b, context))
    used: Any = job.lower(params, batches).compile().memory_analysis()
    xlas = used.temp_size_in_bytes + used.argument_size_in_bytes + used.output_size_in_bytes
    counted = job_bytes(model, jax.ShapeDtypeStruct((length,), np.uint8), Learner(objective, batch=batch))
    return counted / 1e6, xlas / 1e6


def print_memory(batch: int) -> None:
    print(f"{'model':<20}{'FedAvg, MB':>12}{'XLA':>10}{'PerFed, MB':>12}{'XLA':>10}")
    small: dict[str, tuple[Model, int]] = {"MLP 64-32-10": (MLP((64, 32, 10), input_scale=255), 64)}
    for name, (model, length) in (small | MODELS).items():
        found = [*megabytes(model, length, FedAvg(), batch), *megabytes(model, length, PerFed(0.03), batch)]
        print(f"{name:<20}{found[0]:>12.3g}{found[1]:>10.3g}{found[2]:>12.3g}{found[3]:>10.3g}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("computing.png"))
    parser.add_argument("--memory", action="store_true")
    given = parser.parse_args()
    if given.memory:
        print_memory(given.batch)
        return
    rows: list[tuple[str, int, int, float]] = []
    print(f"{'model':<20}{'parameters':>12}{'multiply-adds':>16}{'ms a sample':>13}{'ns a multiply-add':>19}")
    for name, (model, length) in MODELS.items():
        sample = jax.ShapeDtypeStruct((length,), np.uint8)
        seconds = seconds_of(model, length, given.batch, given.turns)
        rows.append((name, parameters(model), multiply_adds(model, sample), seconds))
        _, numbers, counted, _ = rows[-1]
        print(
            f"{name:<20}{numbers:>12,}{counted:>16,}{1e3 * seconds:>13.3f}{1e9 * seconds / counted:>19.3f}", flush=True
        )
    draw(rows, given.out)


def draw(rows: list[tuple[str, int, int, float]], path: Path) -> None:
    """Draw measured milliseconds over counted multiply-adds, and over 2 per parameter."""
    figure, axes = pyplot.subplots(figsize=(6.5, 4.2), layout="constrained")
    names, numbers, counted, seconds = zip(*rows, strict=True)
    milliseconds = 1e3 * np.asarray(seconds)
    axes.loglog(counted, milliseconds, "o", color="#0b5394", label="multiply-adds, counted")
    axes.loglog(2 * np.asarray(numbers), milliseconds, "x", color="#b45f06", label="2 per parameter (earlier rule)")
    rate = float(np.exp(np.mean(np.log(milliseconds / np.asarray(counted)))))
    ends = np.array([min(counted), max(counted)], float)
    axes.loglog(ends, rate * ends, color="#0b5394", linewidth=0.8)
    marks: Any = zip(names, counted, milliseconds, strict=True)
    for name, x, y in marks:
        axes.annotate(name, (x, y), xytext=(6, -9), textcoords="offset points", fontsize=8)
    axes.set(xlabel="multiply-adds of one sample's gradient", ylabel="measured on one core, ms")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
