"""What devices learn of a run, and how they prepare for it.

A device runs only code that is installed on it. From the network it takes settings, which it validates, and arrays.
The file with the model and the folder with the data are given by the owner's flags only.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tomli_w
from jaxtyping import PyTree
from safetensors.numpy import save

from perfeds2.deployment.authority import Authority
from perfeds2.deployment.device import do_job, kept_at_first
from perfeds2.deployment.fields import SETTINGS
from perfeds2.deployment.merging import start_model
from perfeds2.deployment.messages import Run
from perfeds2.deployment.setup import Setup, settings_in
from perfeds2.deployment.transport import Request
from perfeds2.errors import InputError
from perfeds2.learning.task import Task

IMPOSED = ("slow", "uplink-bps", "edge")  # deployment settings that devices get
NOT_FROM_THE_NETWORK = ("app-module", "data-dir", "init")


@dataclass(frozen=True)
class Owner:
    """What only the device's owner decides."""

    app_module: Path | None = None  # file with the model and the data
    files: Mapping[str, str] = field(default_factory=dict)  # FILE.py:NAME or FILE.safetensors, by flag
    data_folder: Path | None = None
    state: Path | None = None  # folder for what it keeps between jobs
    job_s: float = 3600.0  # time limit of a job; 0 is none
    memory_bytes: int = 2**30  # largest model
    secure_only: bool = False  # take part in runs with secure aggregation only
    least_quorum: int = 1
    clip_at_most: float = math.inf

    def check(self, setup: Setup) -> None:
        """Raise InputError if a run protects this device less than its owner requires."""
        learner, quorum = setup.algorithm.learner, setup.algorithm.protocol.quorum
        if self.secure_only and not setup.spec.privacy.secure_aggregation:
            raise InputError("this device requires secure aggregation (--require-secure-aggregation)")
        if quorum < self.least_quorum:
            raise InputError(
                f"a round has {quorum} updates, and this device requires {self.least_quorum} (--least-quorum)"
            )
        if math.isfinite(self.clip_at_most) and (learner.clip is None or learner.clip > self.clip_at_most):
            raise InputError(
                f"the run clips to {learner.clip}, and this device requires at most {self.clip_at_most:g} (--clip-at-most)"
            )


@dataclass(frozen=True)
class Ready:
    """A run, and everything that its jobs need."""

    run: str
    setup: Setup
    task: Task | None  # None in an edge, which has no data
    model_bytes: int
    first: PyTree | None = None  # state before the first job; None if devices keep none


def prepare(run: Run, owner: Owner, number: int) -> Ready:
    """Validate the settings, load the data, and compile what jobs will need."""
    for name in NOT_FROM_THE_NETWORK:
        if name in settings_in(run.settings):
            raise InputError(
                f"the server sent the setting {name}, which only this device's owner may choose; its operator must leave it out"
            )
    if (run.authority is not None) != settings_in(run.settings).get("secure-aggregation", False):
        raise InputError(
            "the server did not say which authority signed the devices' certificates; its operator must upgrade it"
        )
    if run.own_model and owner.app_module is None and "model" not in owner.files:
        raise InputError("this run uses a model of your own; start this device with --app-module FILE or --model")
    digests = run.files or {}
    if missing := digests.keys() - owner.files.keys():
        raise InputError(f"this run uses a file of your own; start this device with --{min(missing)} FILE")
    named = {*digests, *["model"] * run.own_model} & owner.files.keys()
    setup = Setup.from_toml(run.settings, {name: owner.files[name] for name in named})
    for name, digest in digests.items():
        if name not in setup.files or setup.files[name].digest != digest:
            raise InputError(f"--{name} {owner.files[name]} has another content than the server's file; copy that one")
    if run.own_model:
        setup = setup.with_own(app_module=owner.app_module)
    if not 0 <= number < setup.ues:
        raise InputError(f"the run has devices 0 to {setup.ues - 1}; this is device {number}")
    owner.check(setup)
    task = setup.task(number, owner.data_folder)
    params, learner = setup.first_params(), setup.algorithm.learner
    if (size := sum(values.nbytes for values in params.values())) > owner.memory_bytes:
        allowed = f"{owner.memory_bytes / 2**20:g} MB (--memory-mb)"
        raise InputError(f"the model has {size / 2**20:.1f} MB, and this device accepts {allowed}")
    first = kept_at_first(learner, params)
    if first is not None and owner.state is None:
        raise InputError("devices of this run keep state between jobs; start this device with --state DIR")
    start = start_model(params, learner, learner.merge.init(dict(params), setup.ues))
    do_job(setup.with_own(slow={}), task, Request(0, number, 0), start, first)  # compiles
    return Ready(run.run, setup, task, len(save(dict(start.packed()))), first)


def replaces(new: Run, old: Run) -> bool:
    """Return whether an announcement is that of the same run, perhaps with newer authorities."""
    changed = new.model_copy(update={"authority": old.authority})
    return changed == old and (new.authority is None) == (old.authority is None)


def travelling(setup: Setup, run_id: str, since_s: float = 0.0, authority: Authority | None = None) -> Run:
    """Return a run's announcement to devices, without settings that concern only the server, or name its files."""
    trusted = None
    if authority is not None and setup.spec.privacy.secure_aggregation:
        trusted = authority.trust().decode("ascii")
    sent = {name: value for name, value in settings_in(setup.to_toml()).items() if not _is_the_servers(name)}
    text = tomli_w.dumps({name: value for name, value in sent.items() if name not in setup.files})
    digests = {name: named.digest for name, named in setup.files.items() if name != "model"}
    facts = {"own_model": setup.own_model, "files": digests or None, "authority": trusted}
    return Run(run=run_id, settings=text, since_s=since_s, **facts)


def _is_the_servers(name: str) -> bool:
    """Return whether a setting is a path on the server's machine, or about how the server runs rounds."""
    known = SETTINGS.get(name)  # None for a method's own setting
    return name == "data-dir" or (known is not None and known.section == "deployment" and name not in IMPOSED)
