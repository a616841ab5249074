"""The settings of a federation: the simulator's spec, and settings that only a deployment has.

They travel to the server and to every device as one text, which the run's folder stores as ``federation.toml``: flat
TOML with one key per setting (``fields.py``). A missing or empty setting has its default.
"""

import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tomli_w
from jaxtyping import Float

from perfeds2.deployment.crew import asks
from perfeds2.deployment.encoding import Encoding
from perfeds2.deployment.fields import DEFAULTS, FILES, ONE_OF_MANY, RENAMED, SETTINGS, DeploymentSpec, OwnSections
from perfeds2.deployment.merging import uploaded
from perfeds2.deployment.transport import Arrays
from perfeds2.deployment.validate import Form, bits_of, form_of
from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.learning.data import Data
from perfeds2.learning.learner import Learner
from perfeds2.learning.merges import MEAN
from perfeds2.learning.models.model import Model
from perfeds2.learning.task import Task
from perfeds2.network.cell import Cell
from perfeds2.spec.build import Algorithm, asking
from perfeds2.spec.cells import cloud_protocol
from perfeds2.spec.fields import CellsSpec, LearningSpec, Spec
from perfeds2.spec.learners import make_learner
from perfeds2.spec.methods import ListedMethod
from perfeds2.spec.names import Kind, Named, load_source
from perfeds2.spec.privacy import losses_by_merges, refuse_unless_summable, with_noise_before
from perfeds2.spec.resolve import EACH, place_of, put, resolve, validated
from perfeds2.spec.rounds import plan_rounds, protocol_of
from perfeds2.spec.tasks import make_task, model_of, of_torch, with_adapter
from perfeds2.spec.values import INIT, MERGE, TASK, is_data_path
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.state import Schedule

FILE = "federation.toml"
END = "# end\n"  # missing if the file was truncated
WITH_OWN_DEFAULT = [name for name, each in SETTINGS.items() if (each.section, each.key) in RENAMED]


@dataclass(frozen=True)
class Setup:
    """All settings of a federation."""

    spec: Spec
    own: DeploymentSpec = DEFAULTS

    @property
    def seed(self) -> int:
        return self.spec.run.seeds[0]

    @property
    def cells(self) -> int | None:
        """Return the number of edge servers below a cloud; None if there is no cloud."""
        return self.spec.cells.sites if isinstance(self.spec.cells.sites, int) else None

    @property
    def is_cloud(self) -> bool:
        """Return whether the server's devices are edge servers."""
        return self.cells is not None and self.own.edge is None

    @property
    def ues(self) -> int:
        """Return the number of the server's devices: all, those of an edge, or the edges of a cloud."""
        cells = self.cells or 1
        return cells if self.is_cloud else self.spec.cell.ues // cells

    @property
    def server_spec(self) -> Spec:
        """Return the spec of this server's own rounds, with its devices as the UEs."""
        spec, cells, protocol = self.spec, self.spec.cells, self.spec.protocol
        if self.is_cloud:
            bound = "unbounded" if cells.cloud_staleness is None else cells.cloud_staleness
            protocol = protocol.with_(quorum=cells.cloud_quorum or self.ues, max_staleness=bound, stale="wait")
        return spec.with_(cell=spec.cell.with_(ues=self.ues), protocol=protocol, cells=CellsSpec())

    def ue_of(self, device: int) -> int:
        """Return a device's UE number in the whole federation."""
        return device + (self.own.edge or 0) * self.ues

    @property
    def edges(self) -> list["Setup"]:
        """Return the setups of a cloud's edges."""
        size, own = self.spec.cell.ues // (self.cells or 1), self.own

        def part(values: dict[int, float], edge: int) -> dict[int, float]:
            return {ue % size: value for ue, value in values.items() if ue // size == edge}

        return [
            self.with_own(edge=edge, slow=part(own.slow, edge), uplink_bps=part(own.uplink_bps, edge))
            for edge in range(self.cells or 0)
        ]

    @property
    def rounds(self) -> int:
        """Return how many rounds the server closes. A cloud merges as many rounds of its edges, or a few more."""
        rounds, cells = self.spec.run.rounds, self.spec.cells
        assert rounds is not None
        merged = (cells.edge_rounds or 1) * (cells.cloud_quorum or self.ues) if self.is_cloud else 1
        return -(-rounds // merged)

    @property
    def name(self) -> str:
        """Return what is learned: the name of the task, or of the user's own file."""
        return self.spec.task.name.label if self.own.app_module is None else self.own.app_module.stem

    @property
    def own_model(self) -> bool:
        """Return whether the model is the user's own code, which every machine must have."""
        return self.own.app_module is not None or "model" in self.files

    @property
    def files(self) -> dict[str, Named]:
        """Return what the user's own files define, by setting. Every machine must have these files."""
        task, radio = self.spec.task, self.spec.radio
        chosen = {"model": task.model, "compress": radio.compress, "init": task.init}
        return {name: named for name, named in chosen.items() if named is not None and named.source}

    @cached_property
    def encoding(self) -> Encoding | None:
        """Return how devices write their uploads; None if these are sent as they are.

        Raises:
            InputError: The compression has no encoding.
        """
        learner = self.algorithm.learner
        return Encoding(learner, self._form, self.seed, self.ue_of(0)) if learner.chain.compression else None

    @property
    def upload_bits(self) -> int:
        """Return the size of an upload."""
        return bits_of(self._form if self.encoding is None else self.encoding.encoded_form)

    @cached_property
    def _form(self) -> Form:
        return form_of(uploaded(self.first_params(), self.algorithm.learner))

    @cached_property
    def job_inputs(self) -> dict[Any, Any]:
        """Inputs of jobs that are the same for all of them, by model, as ``device.compute_job`` makes them."""
        return {}

    @cached_property
    def algorithm(self) -> Algorithm:
        named = self.spec.algorithms[0]
        method: ListedMethod = named.value
        learner = make_learner(self.spec, named.text, method)
        if self.is_cloud:  # it merges differences between models
            return Algorithm(named.text, Learner(learner.objective, beta=1.0), cloud_protocol(self.spec))
        protocol = protocol_of(self.server_spec, method.mode)
        learner = with_noise_before(self.spec.privacy, learner, protocol, self.rounds)
        refuse_unless_summable(self.spec.privacy, named.text, learner, protocol.quorum)
        return Algorithm(named.text, learner, protocol, mode=method.mode)

    @property
    def schedule(self) -> Schedule | None:
        """Return the devices of each round, by its number or by losses; None if rounds close on the first arrivals.

        Raises:
            InputError: The schedule looks at what the server does not know, or the algorithm has no use for it.
        """
        named, algorithm = self.spec.protocol.schedule, self.algorithm
        if named.value is None:
            return None
        if algorithm.mode != "S2":
            raise InputError(
                f"--schedule {named} has no effect on {algorithm.name}; use an algorithm such as FedAvgS2."
            )
        _, schedule = plan_rounds(self.spec, Cell.draw(self.ues, self.seed), self.seed, algorithm.learner.samples)
        if asks(schedule):
            return asking(self.spec, replace(algorithm, schedule=schedule)).schedule
        if schedule is not None and "moment" in inspect.signature(schedule).parameters:
            raise InputError(
                f"--schedule {named} looks at channels or hours, which the server of a federation does not know; use first, "
                f"deficit, printed, printed_fixed, round_robin, random, oort, power_of_choice:D or tifl_adaptive."
            )
        return schedule

    @property
    def losses(self) -> Float[np.ndarray, " m"] | None:
        """Return the largest ε of a device after 0, 1, 2, … merges, whatever happens; None without noise.

        Raises:
            InputError: The privacy settings do not fit together.
        """
        algorithm, budget = self.algorithm, self.own.epsilon_budget
        losses = losses_by_merges(self.spec.privacy, algorithm.learner, algorithm.protocol, self.rounds)
        if budget is None:
            return losses
        if losses is None:
            raise InputError(
                "--epsilon-budget has no effect without noise; add --dp-noise or --epsilon, or leave it out."
            )
        if losses[1] > budget:
            raise InputError(
                f"--epsilon-budget {budget:g} allows no merge: the first costs ε = {losses[1]:.3g}. Add noise (--dp-noise)."
            )
        return losses

    def with_robust_merge(self) -> "Setup":
        """Return a copy that merges by ``clipped-mean`` instead of a mean, which one device could destroy.

        A chosen merge stays. So does the mean of fewer than three updates, with noise, and with secure aggregation.
        """
        from perfeds2.learning.robust import LEAST

        of_devices = self.with_own(edge=0) if self.is_cloud else self
        algorithm, learning = of_devices.algorithm, self.spec.learning_of(self.spec.algorithms[0].text)
        learner, private = (
            algorithm.learner,
            self.spec.privacy.secure_aggregation or algorithm.learner.noise is not None,
        )
        needs_mean = private or learner.objective.keeps_uploads or algorithm.protocol.quorum < LEAST
        if learning.merge is not None or learner.merge != MEAN or needs_mean:
            return self
        merge = MERGE.find("clipped-mean")
        return replace(self, spec=self.spec.with_(learning=self.spec.learning.with_(merge=merge)))

    def with_own(self, **changed: Any) -> "Setup":
        """Return a copy with other deployment settings."""
        return replace(self, own=self.own.with_(**changed))

    @classmethod
    def from_texts(cls, texts: Mapping[str, Any], files: Mapping[str, str] | None = None) -> "Setup":
        """Build a setup from settings by name.

        They may be untrusted, so none may refer to a file. ``files`` may: they come from this machine's user.
        """
        given = {name: SETTINGS[name].default for name in WITH_OWN_DEFAULT}
        given |= {name: value for name, value in texts.items() if value not in (None, "")}
        values: dict[str, Any] = {}
        for name, value in given.items():
            if _is_a_methods_own(name):
                put(values, *place_of(name), value)
                continue
            if name not in SETTINGS:
                raise InputError(f"{name} is not a setting of a federation.")
            each = SETTINGS[name]
            if each.kind is not None and (each.kind is INIT or each.kind.is_reference(str(value))):
                raise InputError(
                    f"{each.flag} {value} refers to a file or module, which a federation does not run; give one of "
                    f"{', '.join(each.kind.table()) or 'none'}, and your own model and data by --app-module."
                )
            if each.kind is TASK and str(value) not in TASK.table() and is_data_path(str(value)):
                raise InputError(
                    f"--task {value} names data files, but in a federation every device has its own; use "
                    f"--app-module (docs/how-to/deploy.md)."
                )
            put(values, each.section, each.key, [value] if name in ONE_OF_MANY else value)
        for name, value in (files or {}).items():
            put(values, SETTINGS[name].section, SETTINGS[name].key, value)
        own = {"deployment": values.pop("deployment", {})}
        put(values, "protocol", "shares", "equal")  # a server does not know where its devices are
        if given["schedule"] != "first":
            put(values, "protocol", "unplanned", "rest")
        spec = resolve(values)
        if spec.algorithms[0].value.has_own_rounds:
            raise InputError(
                f"--algorithm {spec.algorithms[0]} has rounds of its own, which a federation does not support; use it with perfeds2 compare."
            )
        setup = cls(spec, validated(OwnSections, own).deployment)
        setup.check_cells()
        return setup

    def check_cells(self) -> None:
        """Check that the settings fit edge servers below a cloud, if there are any.

        Raises:
            InputError: They do not.
        """
        edge, cells = self.own.edge, self.cells
        if edge is not None and edge >= (cells or 0):
            raise InputError(f"--edge {edge} must be below the number of edges, {cells or 0} (--cells).")
        if cells is None:
            return
        algorithm = self.with_own(edge=0).algorithm
        refused = {
            "noise (--dp-noise, --epsilon)": algorithm.learner.noise is not None,
            "--secure-aggregation": self.spec.privacy.secure_aggregation,
            f"--schedule {self.spec.protocol.schedule}": self.spec.protocol.schedule.value is not None,
            f"the merge of {algorithm.name}": algorithm.learner.merge_keeps(self.model()),
        }
        for what, is_given in refused.items():
            if is_given:
                raise InputError(f"{what} does not work with --cells; leave one of them out.")
        cloud_protocol(self.spec)

    def to_toml(self) -> str:
        """Return every setting that has a value, as TOML."""
        values = self.spec.model_dump(mode="json") | {"deployment": self.own.model_dump(mode="json")}
        given = {name: values[each.section][each.key] for name, each in SETTINGS.items()}
        given |= {name: given[name][0] for name in ONE_OF_MANY}
        given |= {f"{name}.{key}": value for name, own in values[EACH].items() for key, value in own.items()}
        return tomli_w.dumps({name: value for name, value in given.items() if value not in (None, "")})

    @classmethod
    def from_toml(cls, text: str, files: Mapping[str, str] | None = None) -> "Setup":
        return cls.from_texts(settings_in(text), files)

    @classmethod
    def read(cls, folder: Path) -> "Setup":
        """Read the setup from a run's folder."""
        if not (folder / FILE).exists():
            raise InputError(f"{folder} is not the folder of a federation: it has no {FILE}.")
        text = (folder / FILE).read_text(encoding="utf-8", errors="replace")
        if not text.endswith(END):
            raise InputError(
                f"{folder / FILE} is damaged: its last line is not {END.strip()!r}. Restore the file from a backup, or "
                f"start a new run in another folder."
            )
        texts = settings_in(text)
        files = {name: texts.pop(name) for name in FILES if name in texts}  # this machine's own folder may name files
        return cls.from_texts(texts, files)

    def write(self, folder: Path) -> None:
        write_text(folder / FILE, self.to_toml() + END)

    def model(self) -> Model:
        """Return the model to train. Needs no data."""
        return model_of(self.spec) if self.own.app_module is None else self._of_module(self.own.app_module)[0]

    def task(self, device: int, data_folder: Path | None = None) -> Task:
        """Return what one device trains on: its part of a built-in task, or its own data."""
        if (module := self.own.app_module) is not None:
            model, load_data = self._of_module(module)
            return Task(self.name, model, load_data(data_folder, device))
        where = {} if data_folder is None else {"data_dir": str(data_folder)}
        return make_task(self.spec.with_(task=self.spec.task.with_(**where)), self.seed)

    def _of_module(self, module: Path) -> tuple[Model, Callable[[Path | None, int], Data]]:
        model, load_data = load_module(module)
        return with_adapter(self.spec, model), load_data

    def first_params(self) -> Arrays:
        """Return the initial weights, w_0, exactly as a replay draws them."""
        from perfeds2.learning.job import as_int32
        from perfeds2.learning.replay import first_weights

        params = first_weights(self.model(), as_int32(self.seed))
        return {name: np.asarray(values) for name, values in params.items()}


def _is_a_methods_own(name: str) -> bool:
    """Return whether a name is a method's own setting, such as Ditto.pull; Ditto.merge could name code to run."""
    if "." not in name:
        return False
    section, key = place_of(name)
    return section == EACH and key.rpartition(".")[2] not in LearningSpec.model_fields


def settings_in(toml: str) -> dict[str, Any]:
    """Parse TOML into settings by name."""
    try:
        return tomllib.loads(toml)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the settings of a federation are not readable TOML: {error}.") from None


def read_timeline(run: Path) -> Timeline:
    """Read the timeline of a finished federation."""
    try:
        return Timeline.load(run / "timeline.npz")
    except (ValueError, FileNotFoundError) as error:
        raise InputError(f"{run}: {error}") from None


def load_module(path: Path) -> tuple[Model, Callable[[Path | None, int], Data]]:
    """Return ``model`` and ``load_data(folder, device)`` from a user's file. A PyTorch model is converted."""
    try:
        load_data, model = (Kind(name).find(f"{path}:{name}").value for name in ("load_data", "model"))
    except ValueError as error:
        raise InputError(f"--app-module {path} {error}.") from None
    if inspect.isclass(model) or not isinstance(model, Model):
        shape = getattr(load_source(str(path))[0], "sample_shape", None)
        if shape is None:
            raise InputError(
                f"--app-module {path}: a PyTorch model needs the shape of a sample; add sample_shape = (1, 28, 28)."
            )
        model = _of_torch(model, tuple(shape), f"--app-module {path}")
    return model, load_data


@lru_cache(maxsize=16)  # converting takes seconds
def _of_torch(model: Any, shape: tuple[int, ...], flag: str) -> Model:
    return of_torch(model, jax.ShapeDtypeStruct(shape, np.float32), flag)


def data_folder(flag: str, pattern: str | None, device: int) -> Path | None:
    """Return a device's data folder; {} in the pattern is its number.

    Raises:
        InputError: The folder does not exist.
    """
    if pattern is None:
        return None
    folder = Path(pattern.replace("{}", str(device))).resolve()
    if not folder.exists():
        raise InputError(f"{flag} {pattern}: {folder} of device {device} does not exist; make it, or correct the flag.")
    return folder
