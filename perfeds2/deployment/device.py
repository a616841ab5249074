"""Execute jobs on a device, and keep its state between jobs.

A job of a stateful device yields an upload and a new state. The device learns whether the upload was merged from its
next job, which names its last merged ticket. Before it uploads, it therefore stores the new state under the job's
ticket, next to the states before it. If the next job names that ticket, the new state counts. A lost job is never
named and leaves no trace.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np
from jaxtyping import PyTree

from perfeds2.deployment.merging import StartModel, uploaded
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.transport import Arrays, Reply, Request
from perfeds2.errors import InputError
from perfeds2.files import clear_unfinished
from perfeds2.learning.evaluate import View, evaluate_ue
from perfeds2.learning.job import Kept, Known, Program, local_update
from perfeds2.learning.learner import Learner
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.task import Task
from perfeds2.runs.leaves import from_leaves, named_leaves
from perfeds2.runs.store import load_arrays, save_arrays

MOST_RUNS = 16  # runs whose state a device keeps; the oldest is deleted first
MOST_PAST = 3  # states after earlier merges that a device keeps, one for each checkpoint of the server
SLACK_BYTES = 64 * 1024  # by how much a file may exceed its arrays
NOTHING = None  # ticket of the state before the first job


def do_job(
    setup: Setup,
    task: Task,
    request: Request,
    start: StartModel,
    kept: Kept | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[Reply, Kept | None]:
    """Execute a job and return the reply, and the device's state if the update is merged.

    Args:
        setup: The federation's settings.
        task: The model and this device's data.
        request: The job.
        start: The model to start from, and what the merge sent along.
        kept: The device's state before the job; None if it keeps none.
        pause: Sleeps for seconds; may raise to abandon the job.

    Returns:
        The reply and the new state. The reply holds the encoded update, if the job is to train, and the metrics
        of the received model on this device's data.
    """
    update, left, compute_s, ue = None, kept, 0.0, setup.ue_of(request.ue)
    if request.kind == "train":
        started_s = time.monotonic()
        update, left = compute_job(setup, task, start, ue, request.version, kept)
        pause(setup.own.slow.get(request.ue, 0.0))
        compute_s = time.monotonic() - started_s  # calibration needs it
    metrics = evaluate_here(setup, task, start.params, ue, kept)
    if update is not None and setup.encoding is not None:
        update = setup.encoding.encode(update, request)
    return Reply(request.ue, request.ticket, request.version, update, metrics, compute_s), left


def upload_s(setup: Setup, device: int, arrays: Arrays) -> float:
    """Return how long a device waits before it sends arrays, to imitate its uplink."""
    return 8 * sum(values.nbytes for values in arrays.values()) / setup.own.uplink_bps.get(device, math.inf)


def compute_job(
    setup: Setup, task: Task, start: StartModel, ue: int, version: int, kept: Kept | None = None
) -> tuple[Arrays, Kept]:
    """Return the update and the new state that the simulator would compute for the same UE and version.

    The update lacks the arrays that the device keeps to itself.
    """
    broadcast, params = None if start.broadcast is None else dict(start.broadcast), dict(start.params)
    program, known, first = _inputs(setup, task, params)
    update, left = _update(program, known, params, ue, version, broadcast, first if kept is None else kept)
    sent = uploaded({name: np.asarray(values) for name, values in update.items()}, setup.algorithm.learner)
    return sent, jax.tree.map(np.asarray, left)


def _inputs(setup: Setup, task: Task, params: Arrays) -> tuple[Program, Known, Kept]:
    """Return the inputs of a job that do not depend on it, and what a device without state keeps.

    Making them takes longer than a small job, so they are made once for a setup.
    """
    if task.model not in setup.job_inputs:
        learner = setup.algorithm.learner
        known = replace(Known.of(task, learner, setup.seed, setup.ues), data=None)
        first = jax.eval_shape(learner.objective.init, params), _unsent(learner, params)
        setup.job_inputs[task.model] = Program.of(task.model, learner), known, first
    program, known, first = setup.job_inputs[task.model]
    return program, replace(known, data=task.data), first


def kept_at_first(learner: Learner, first_params: Arrays) -> Kept | None:
    """Return a device's state before its first job; None if it keeps none."""
    uploaded(first_params, learner)  # raises if the model lacks the part to keep
    state = learner.objective.init(jax.device_put(dict(first_params)))
    first = jax.tree.map(np.asarray, (state, _unsent(learner, first_params)))
    return first if jax.tree.leaves(first) else None


def _unsent(learner: Learner, params: Arrays) -> PyTree:
    """Return what a device has not sent before its first job."""
    chain = learner.chain
    return chain.init(jax.device_put(dict(uploaded(params, learner)))) if chain.has_feedback else None


def evaluate_here(setup: Setup, task: Task, params: Arrays, ue: int, kept: Kept | None = None) -> dict[str, float]:
    """Return the metrics of a model on one device, before and after personalisation.

    The personal model is the device's own if its objective makes one, otherwise the model after its personal steps.
    This is ``learning/evaluate.py`` for one UE.
    """
    learner = setup.algorithm.learner
    view = View(task.model, task.data.lengths(), steps=learner.personal_steps)
    make, ours = learner.objective.personal, dict(params)
    own = None if make is None or kept is None else make(*jax.device_put((ours, kept[0])))  # jnp.asarray would compile
    values = _evaluate(view, ours, task.data, np.float32(learner.personal_step), ue, own)
    return {name: float(value) for name, value in zip(METRICS, np.asarray(values), strict=True)}


_update = jax.jit(local_update, static_argnames="program")
_evaluate = jax.jit(evaluate_ue, static_argnames="view")


@dataclass(frozen=True)
class Memory:
    """The state that one device keeps in one run, in a small file.

    The file is replaced atomically, so the device may be killed at any time. It never leaves the device. Its size,
    checksum and structure are checked before its content is used.
    """

    folder: Path  # this device's own
    run: str
    first: PyTree  # state before the first job, as arrays

    @property
    def file(self) -> Path:
        return self.folder / f"{self.run}.safetensors"

    @property
    def lost(self) -> Path:
        """An empty file by which the owner gives up the state that was kept."""
        return self.file.with_suffix(".lost")

    def _error(self, why: str) -> InputError:
        return InputError(
            f"{self.file} {why}. Restore the file, or create {self.lost} to continue with fresh state; a replay then "
            f"differs."
        )

    def after(self, ticket: int | None) -> PyTree:
        """Return the state after the job with this ticket, the last one merged; None means that none was merged.

        Raises:
            InputError: The file does not hold that state.
        """
        if ticket is NOTHING or self.lost.exists():
            return self.first
        known = self._read()
        if ticket not in known:
            raise self._error(f"does not have the state of this device after ticket {ticket}, its last merged job")
        return known[ticket]

    def keep(self, merged: int | None, before: PyTree, ticket: int, left: PyTree) -> None:
        """Store the state that a job left next to the states before it, and delete the files of the oldest runs.

        The states after earlier merges are for a server that has lost its newest checkpoints.
        """
        past = dict[int, PyTree]()
        with suppress(InputError):  # given up by the owner
            past = self._read()
        if merged is not None:
            past[merged] = before
        tickets = [each for each in past if merged is not None and each <= merged][-MOST_PAST:]
        arrays = named_leaves("left", left)
        for each in tickets:
            arrays |= named_leaves(f"before-{each}", past[each])
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        clear_unfinished(self.folder)
        save_arrays(self.file, arrays, {"left": ticket, "before": tickets})
        self.lost.unlink(missing_ok=True)
        others = [file for file in self.folder.glob("*.safetensors") if file != self.file]
        too_many = max(0, len(others) + 1 - MOST_RUNS)
        for file in sorted(others, key=lambda each: each.stat().st_mtime)[:too_many]:
            with suppress(OSError):
                file.unlink()

    def _read(self) -> dict[int, PyTree]:
        """Return the stored states by ticket, oldest first; empty if there is no file."""
        try:
            size = self.file.stat().st_size
        except OSError:
            return {}
        if size > (MOST_PAST + 1) * sum(leaf.nbytes for leaf in jax.tree.leaves(self.first)) + SLACK_BYTES:
            raise self._error(f"has {size:,} bytes, more than this device can have stored")
        try:
            arrays, facts = load_arrays(self.file)
        except InputError:
            raise self._error("is corrupt") from None
        known = {}
        for ticket, name in [*((each, f"before-{each}") for each in facts["before"]), (facts["left"], "left")]:
            kept = from_leaves(name, arrays, self.first)
            if type(ticket) is not int or kept is None:
                raise self._error("does not fit the state of this run's devices")
            known[ticket] = kept
        return known
