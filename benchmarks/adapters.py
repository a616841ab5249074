"""Adapt a transformer to roles of Shakespeare that it never saw: all weights, low-rank adapters, or the last layer.

    perfeds2 data fetch shakespeare
    python benchmarks/adapters.py --out adapters

The transformer is trained in one place on half of the roles. The others adapt it in semi-synchronous rounds over
``umi``, with clipped uploads and noise. Each kind has the step size β that was best for it on a seed that is not
evaluated. ``adapters.md`` in --out says what half of the largest improvement of the training loss costs: seconds, bits,
joules and the ε of the worst UE; ``adapters.png`` shows the curves. The defaults are small enough for two cores. Their ε
is large, because a round has few uploads: compare ratios.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from safetensors.numpy import save_file

from perfeds2 import compare
from perfeds2.files import write_text
from perfeds2.learning.data import Chosen, split_off
from perfeds2.learning.datasets.shakespeare import shakespeare
from perfeds2.learning.models.model import Params, mean_loss
from perfeds2.learning.models.transformer import Transformer
from perfeds2.learning.task import Task, parameters
from perfeds2.runs.statistics import mean_and_interval
from perfeds2.spec.resolve import spec_from
from perfeds2.spec.tasks import model_of

KINDS = {"all weights": None, **{f"rank {rank}": f"lora:{rank}" for rank in (2, 8, 32)}, "last layer": "head"}
COSTS = {"time_s": "seconds", "merged_bits": "Mbit", "joules": "joules", "epsilon": "ε of the worst UE"}
TUNED_ON = 1000  # a seed that is not evaluated
Rows = list[dict[str, Any]]


def half(ues: int, data_dir: str | None, *, other: bool) -> Task:
    """Return the task of half of 2·ues roles; both halves are the same for every seed."""
    whole = shakespeare(2 * ues, 1, 0, data_dir)  # a role has all its letters
    halves: tuple[Chosen, Chosen] = split_off(whole.data, ues, 0)
    return Task("roles", whole.model, halves[other])


def unseen(ues: int, data_dir: str | None) -> Task:
    """Return the roles that the body was not trained on."""
    return half(ues, data_dir, other=True)


def pretrained(task: Task, model: Transformer, steps: int, batch: int = 32) -> Params:
    """Train on all roles of a task in one place, with Adam."""
    rule = optax.adam(3e-3)

    @jax.jit
    def step(number: jax.Array, carry: tuple[Params, Any]) -> tuple[Params, Any]:
        params, state = carry
        key = jax.random.fold_in(jax.random.key(1), number)
        ue = jax.random.randint(key, (), 0, task.ues)
        x, y = task.data.batches(jax.random.fold_in(key, 1), ue, (batch,))
        slope = jax.grad(lambda w: mean_loss(model, w, x, y))(params)
        change, state = rule.update(slope, state, params)
        return jax.tree.map(lambda w, c: w + c, params, change), state

    first = model.init(jax.random.key(0))
    return jax.lax.fori_loop(0, steps, step, (first, rule.init(first)))[0]


@dataclass(frozen=True)
class Bench:
    """What all kinds have in common."""

    out: Path
    settings: dict[str, Any]
    seeds: tuple[int, ...]
    betas: Sequence[float]

    def rows(self, adapter: str | None, beta: float, seeds: Sequence[int]) -> Rows:
        """Return the evaluations of some seeds."""
        return compare(**self.settings, adapter=adapter, beta=beta, seeds=list(seeds)).rows

    def trained(self, adapter: str | None) -> tuple[float, list[Rows]]:
        """Return the β that ends with the least loss on the tuning seed, and each evaluated seed's evaluations."""
        ends = {beta: self.rows(adapter, beta, [TUNED_ON])[-1]["train_loss"] for beta in self.betas}
        beta = min(ends, key=lambda each: ends[each] if np.isfinite(ends[each]) else np.inf)
        rows = self.rows(adapter, beta, self.seeds)
        return beta, [[row for row in rows if row["seed"] == seed] for seed in self.seeds]

    def size(self, adapter: str | None) -> int:
        return parameters(model_of(spec_from(**self.settings, adapter=adapter)))


def until(rows: Rows, loss: float, what: str) -> float:
    """Return what the first evaluation at a loss has cost; NaN if it is never reached."""
    return next((float(row[what]) for row in rows if row["train_loss"] <= loss), np.nan)


def table(bench: Bench, found: dict[str, tuple[float, list[Rows]]]) -> str:
    """Return the costs of the same loss as Markdown, with 95 % intervals over seeds."""
    start = float(np.mean([rows[0]["train_loss"] for rows in found["all weights"][1]]))
    ends = [float(np.mean([rows[-1]["train_loss"] for rows in of_seeds])) for _, of_seeds in found.values()]
    target = (start + min(end for end in ends if np.isfinite(end))) / 2
    lines = [f"| trained | numbers | β | loss at the end | {' | '.join(COSTS.values())} |", f"|---|{'--:|' * 7}"]
    for name, (beta, of_seeds) in found.items():
        costs = [[until(rows, target, what) for rows in of_seeds] for what in COSTS]
        costs[1] = [bits / 1e6 for bits in costs[1]]
        last = [rows[-1]["train_loss"] for rows in of_seeds]
        cells = [name, f"{bench.size(KINDS[name]):,}", f"{beta:g}", shown(last, ".3f"), *map(shown, costs)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([f"Loss at the start: {start:.3f}. To a loss of {target:.3f}:", "", *lines, ""])


def shown(values: Sequence[float], form: str = ".3g") -> str:
    """Format a mean with half of its interval, and how many seeds there are if some never got there."""
    reached = np.array([value for value in values if np.isfinite(value)])
    if not reached.size:
        return "never"
    mean, low, high = mean_and_interval(reached)
    spread = "" if low is None or high is None else f" ± {(high - low) / 2:{form}}"
    return f"{mean:{form}}{spread}" + f" ({reached.size} of {len(values)})" * (reached.size < len(values))


def draw(path: Path, found: dict[str, tuple[float, list[Rows]]]) -> None:
    """Draw the training loss over each cost."""
    figure, panels = plt.subplots(1, len(COSTS), figsize=(14, 3.2), sharey=True, layout="constrained")
    for axes, (what, label) in zip(panels, COSTS.items(), strict=True):
        for name, (_, of_seeds) in found.items():
            x, y = (np.mean([[row[key] for row in rows] for rows in of_seeds], axis=0) for key in (what, "train_loss"))
            axes.plot(x / (1e6 if what == "merged_bits" else 1), y, label=name)
        axes.set_xlabel(label)
    panels[0].set_ylabel("training loss")
    panels[0].legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(given: Sequence[str] | None = None) -> str:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-dir")
    parser.add_argument("--ues", type=int, default=10, help="roles of each half")
    parser.add_argument("--width", type=int, default=16, help="of the transformer's one layer")
    parser.add_argument("--steps", type=int, default=600, help="of training the body")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--betas", type=float, nargs="+", default=[0.1, 0.3, 1.0])
    told = parser.parse_args(given)
    told.out.mkdir(parents=True, exist_ok=True)
    model, body = Transformer(width=told.width, heads=2, layers=1), told.out / "body.safetensors"
    weights = pretrained(half(told.ues, told.data_dir, other=False), model, told.steps)
    save_file({name: np.asarray(values) for name, values in weights.items()}, body)
    settings = {"task": unseen, "ues": told.ues, "data_dir": told.data_dir, "init": str(body), "rounds": told.rounds}
    settings |= {"model": f"transformer:width={told.width},heads=2,layers=1", "radio": "umi", "batch": 10}
    settings |= {"algorithms": ["FedAvgS2"], "quorum": max(1, told.ues // 2), "clip": 1.0, "dp_noise": 0.02}
    bench = Bench(told.out, settings, tuple(range(told.seeds)), told.betas)
    found = {name: bench.trained(adapter) for name, adapter in KINDS.items()}
    draw(told.out / "adapters.png", found)
    text = table(bench, found)
    write_text(told.out / "adapters.md", text)
    return text


if __name__ == "__main__":
    print(main())
