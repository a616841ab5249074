"""What is a federation told? The simulator's spec, and what only a deployment needs.

It travels to the server and to every device as one text, and lies in the run's folder as ``federation.toml``: flat TOML, each
setting under its name (``fields.py``). What is left out, or empty, has its default.
"""

import importlib.util
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pydantic
import tomli_w

from perfeds2.deployment.fields import DEFAULTS, ONE_OF_MANY, RENAMED, SETTINGS, DeploymentSpec
from perfeds2.deployment.transport import Arrays
from perfeds2.files import write_text
from perfeds2.learning.models.model import Model
from perfeds2.learning.task import MODELS, Task, make_task
from perfeds2.spec.build import Algorithm, make_learner
from perfeds2.spec.fields import ALGORITHMS, InputError, Spec, put, resolve

FILE = "federation.toml"


@dataclass(frozen=True)
class Setup:
    """Everything that decides a federation."""

    spec: Spec
    own: DeploymentSpec = DEFAULTS

    @property
    def seed(self) -> int:
        return self.spec.run.seeds[0]

    @property
    def ues(self) -> int:
        return self.spec.cell.ues

    @property
    def rounds(self) -> int:
        assert self.spec.run.rounds is not None
        return self.spec.run.rounds

    @property
    def algorithm(self) -> Algorithm:
        name = self.spec.run.algorithms[0]
        mode = ALGORITHMS[name][1]
        return Algorithm(name, make_learner(self.spec, name), self.spec.protocol_of(mode), mode=mode)

    def texts(self) -> dict[str, str]:
        """Every setting that is not left out, by its name; ``from_texts`` reads them back."""
        values = self.spec.model_dump(mode="json") | {"deployment": self.own.model_dump(mode="json")}
        given = {name: values[section][key] for name, (section, key) in SETTINGS.items()}
        given |= {name: given[name][0] for name in ONE_OF_MANY}
        return {
            name: json.dumps(value) if isinstance(value, list) else str(value)
            for name, value in given.items()
            if value not in (None, "")
        }

    @classmethod
    def from_texts(cls, texts: Mapping[str, Any]) -> "Setup":
        given = {name: default for name, default, _ in RENAMED.values()}
        given |= {name: value for name, value in texts.items() if value not in (None, "")}
        values: dict[str, Any] = {"deployment": {}}
        for name, value in given.items():
            if name not in SETTINGS:
                raise InputError(f"{name} is not a setting of a federation.")
            put(values, *SETTINGS[name], [value] if name in ONE_OF_MANY else _listed(name, value))
        own = values.pop("deployment")
        try:
            return cls(resolve(values), DeploymentSpec.model_validate(own))
        except pydantic.ValidationError as error:
            raise InputError(_sentence(error.errors()[0])) from None

    def to_toml(self) -> str:
        return tomli_w.dumps(self.texts())

    @classmethod
    def from_toml(cls, text: str) -> "Setup":
        try:
            return cls.from_texts(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"the settings of a federation are not readable TOML: {error}.") from None

    @classmethod
    def read(cls, folder: Path) -> "Setup":
        """What a run's folder was told; ``resume`` and ``replay`` need it."""
        if not (folder / FILE).exists():
            raise InputError(f"{folder} holds no federation (no {FILE}).")
        return cls.from_toml((folder / FILE).read_text(encoding="utf-8"))

    def write(self, folder: Path) -> None:
        write_text(folder / FILE, self.to_toml())

    def model(self) -> Model:
        """What is trained; the server needs no data, unless the task is a user's own, which makes both."""
        if self.own.app_module is not None:
            return load_module(self.own.app_module).model
        return MODELS[self.spec.task.name] if self.spec.task.name in MODELS else self.task(0).model

    def task(self, device: int, data_folder: Path | None = None) -> Task:
        """What one device trains on: its part of a built-in task, or its own data."""
        if self.own.app_module is not None:
            module = load_module(self.own.app_module)
            return Task(self.own.app_module.stem, module.model, module.load_data(data_folder, device))
        task = self.spec.task
        return make_task(task.name, self.ues, task.labels_per_ue, self.seed, data_folder or task.data_dir)

    def first_params(self) -> Arrays:
        """w_0, as a replay makes it."""
        import jax
        import numpy as np

        from perfeds2.learning.replay import as_int32

        params = jax.jit(self.model().init)(jax.random.fold_in(jax.random.key(as_int32(self.seed)), 0))
        return {name: np.asarray(values) for name, values in params.items()}


def _listed(name: str, value: Any) -> Any:
    """``[1.0, 2.0]`` as a list; anything else is read by its field."""
    try:
        return json.loads(value) if isinstance(value, str) and value.startswith("[") else value
    except ValueError:
        raise InputError(f"{name} must be a list such as [1.0, 2.0], got {value!r}.") from None


def _sentence(error: Any) -> str:
    flag, came = "--" + str(error["loc"][0]).replace("_", "-"), error["input"]
    if error["type"] == "value_error":
        return f"{flag} {error['ctx']['error']}, got {came!r}."
    return f"{flag} must be {error['msg'].removeprefix('Input should be ').partition(',')[0]}, got {came!r}."


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
