"""What is a federation told? The simulator's spec, and what only a deployment needs.

It travels to the server and to every device as Flower's run configuration: flat keys, named as the command line's flags.
An empty text stands for the default.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from perfeds2.deployment.transport import Arrays
from perfeds2.learning.datasets import TASKS
from perfeds2.learning.models.model import Model
from perfeds2.learning.task import Task
from perfeds2.spec.build import Algorithm, make_learner
from perfeds2.spec.fields import ALGORITHMS, OWN_FLAGS, InputError, Spec, put, resolve

SPEC_KEYS: dict[str, tuple[str, str]] = {
    "devices": ("cell", "ues"),
    "bandwidth-hz": ("cell", "bandwidth_hz"),
    "hessian": ("learning", "hessian"),
    "proximal": ("learning", "proximal"),
} | {
    flag.removeprefix("--"): place
    for place, flag in OWN_FLAGS.items()
    if flag.removeprefix("--")
    in ("task", "labels-per-ue", "data-dir", "quorum", "max-staleness", "stale", "alpha", "beta", "batch",
        "local-steps", "rounds", "target-accuracy")
}  # fmt: skip
ROUNDS = 10


@dataclass(frozen=True)
class Settings:
    """Everything that decides a federation."""

    spec: Spec
    out: Path | None = None  # the run's folder, on the server
    app_module: Path | None = None  # a user's own model and data
    norm_bound: float | None = None
    set_aside_after: int = 3
    gather_s: float = 60.0  # wait so long for all devices before round 0; then begin with those that are there
    evaluate_s: float = 120.0  # wait so long for the last evaluation
    slow: tuple[tuple[int, float], ...] = ()  # (device, seconds): sleeps so long in every job, for experiments

    @property
    def seed(self) -> int:
        return self.spec.run.seeds[0]

    @property
    def rounds(self) -> int:
        assert self.spec.run.rounds is not None
        return self.spec.run.rounds

    @property
    def algorithm(self) -> Algorithm:
        name = self.spec.run.algorithms[0]
        mode = ALGORITHMS[name][1]
        return Algorithm(name, make_learner(self.spec, name), self.spec.protocol_of(mode), mode=mode)

    def to_run_config(self) -> dict[str, str]:
        """Flat texts, which ``from_run_config`` reads back."""
        values = self.spec.model_dump(mode="json")
        config = {key: values[section][name] for key, (section, name) in SPEC_KEYS.items()}
        config |= {"algorithm": self.spec.run.algorithms[0], "seed": self.seed}
        config |= {
            "out": self.out,
            "app-module": self.app_module,
            "norm-bound": self.norm_bound,
            "set-aside-after": self.set_aside_after,
            "gather-s": self.gather_s,
            "evaluate-s": self.evaluate_s,
            "slow": ",".join(f"{device}={seconds:g}" for device, seconds in self.slow),
        }
        return {key: "" if value is None else str(value) for key, value in config.items()}

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> "Settings":
        given = {key: value for key, value in config.items() if value not in ("", None)}
        values: dict[str, Any] = {"run": {"rounds": ROUNDS, "algorithms": [given.pop("algorithm", "PerFedS2")]}}
        values["run"]["seeds"] = [given.pop("seed", 0)]
        for key in [key for key in given if key in SPEC_KEYS]:
            put(values, *SPEC_KEYS[key], given.pop(key))
        out, module = given.pop("out", None), given.pop("app-module", None)
        try:
            settings = cls(
                resolve(values),
                None if out is None else Path(str(out)),
                None if module is None else Path(str(module)),
                None if "norm-bound" not in given else float(given.pop("norm-bound")),
                int(given.pop("set-aside-after", 3)),
                float(given.pop("gather-s", 60.0)),
                float(given.pop("evaluate-s", 120.0)),
                parse_slow(str(given.pop("slow", ""))),
            )
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"the run configuration has a value that is not a number: {error}.") from None
        if given:
            raise InputError(f"{sorted(given)[0]} is not a setting of a federation.")
        return settings

    def model(self) -> Model:
        """What is trained; the server needs no data."""
        if self.app_module is not None:
            return load_module(self.app_module).model
        return TASKS[self.spec.task.name].model

    def task(self, device: int, data_folder: Path | None = None) -> Task:
        """What one device trains on: its part of a built-in task, or its own data."""
        if self.app_module is not None:
            module = load_module(self.app_module)
            return Task(self.app_module.stem, module.model, module.load_data(data_folder, device))
        spec = self.spec
        folder = data_folder or spec.task.data_dir
        return TASKS[spec.task.name](spec.cell.ues, spec.task.labels_per_ue, self.seed, folder)

    def first_params(self) -> Arrays:
        """w_0, as a replay makes it."""
        import jax
        import numpy as np

        from perfeds2.learning.replay import as_int32

        params = jax.jit(self.model().init)(jax.random.fold_in(jax.random.key(as_int32(self.seed)), 0))
        return {name: np.asarray(values) for name, values in params.items()}


def parse_slow(text: str) -> tuple[tuple[int, float], ...]:
    """``5=20,2=3.5``: device 5 sleeps 20 seconds in every job, device 2 sleeps 3.5."""
    pairs = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        device, equals, seconds = part.partition("=")
        try:
            pairs.append((int(device), float(seconds)))
        except ValueError:
            raise InputError(f"--slow takes DEVICE=SECONDS, such as 5=20, got {text!r}.") from None
        if not equals or pairs[-1][1] < 0:
            raise InputError(f"--slow takes DEVICE=SECONDS, such as 5=20, got {text!r}.")
    return tuple(pairs)


@cache
def load_module(path: Path) -> Any:
    """A user's own file: ``model``, and ``load_data(folder, device)``. Read once, so that programs are compiled once."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.exists():
        raise InputError(f"--app-module {path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("model", "load_data"):
        if not hasattr(module, name):
            raise InputError(f"--app-module {path} has no {name}; expected a model and load_data(folder, device).")
    return module
