"""Run a device: stay connected, prepare for the current run, and answer jobs.

A device runs only code that is installed on it. From the network it takes settings, which it validates, and arrays.
The file with the model and the folder with the data are given by the owner's flags only.

The connection's thread (``DeviceClient``) collects a job and its model, and queues both for a ``Worker``, which
computes. So a device stays connected while it computes, and many devices can share a worker (``many.py``).
"""

import math
import queue
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import tomli_w
from jaxtyping import PyTree

from perfeds2.deployment.authority import Authority
from perfeds2.deployment.credentials import Credentials
from perfeds2.deployment.device import Memory, do_job, kept_at_first
from perfeds2.deployment.encoding import encoded
from perfeds2.deployment.fields import SETTINGS
from perfeds2.deployment.masking import Identity, KeyRefusedError, Keyring, MaskedUpdate
from perfeds2.deployment.merging import handed_out, unpacked
from perfeds2.deployment.mqtt import wire
from perfeds2.deployment.mqtt.link import Link
from perfeds2.deployment.mqtt.wire import Assembly, Head, Here, JobMessage, Parcel, Run, Topics
from perfeds2.deployment.setup import Setup, settings_in
from perfeds2.deployment.transport import STEPS, Arrays, Request
from perfeds2.errors import InputError
from perfeds2.learning.task import Task

UNREADABLE = "the run's announcement cannot be read; is perfeds2 here older than on the server?"
LOOK_EVERY_S = 0.1  # whether a job is still wanted
IMPOSED = ("slow", "uplink-bps", "edge")  # deployment settings that devices are told
NOT_FROM_THE_NETWORK = ("app-module", "data-dir")


@dataclass(frozen=True)
class Owner:
    """What only the device's owner decides."""

    app_module: Path | None = None  # file with the model and the data
    model: str | None = None  # FILE.py:NAME
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


@dataclass
class DeviceClient:
    """A device's connection. The worker's thread calls ``wants``, ``ready``, ``refuse`` and ``send``."""

    number: int
    link: Link
    work: "Work"
    say: Callable[[str], None] = print
    topics: Topics = field(default_factory=Topics)
    credentials: Credentials | None = None  # needed for secure aggregation
    masks: MaskedUpdate | None = None  # the last update, with secure aggregation
    keyring: Keyring | None = None  # of this run, with secure aggregation
    _session: str = ""  # another one for every connection
    _run: Run | None = None  # the newest announcement
    _ready: Ready | None = None
    _error: str | None = None
    _job: JobMessage | None = None  # the newest
    _model: Assembly | None = None  # the chunks of its model so far
    _answer: tuple[int, list[tuple[str, bytes]]] | None = None  # last answered ticket, and what was published

    def start(self) -> None:
        self.link.start(self)

    def close(self) -> None:
        self.link.close(self._here(False))

    def last_will(self) -> tuple[str, bytes]:
        self._session = uuid.uuid4().hex
        return self._here(False)

    def _here(self, here: bool) -> tuple[str, bytes]:
        run = "" if self._ready is None else self._ready.run
        signed = None if self.keyring is None or self.keyring.run != run else self.keyring.signed
        said = Here(here=here, session=self._session, run=run, error=self._error, signed=signed)
        return self.topics.here(self.number), said.to_bytes()

    def up(self) -> None:
        self.link.subscribe(self.topics.job(self.number))
        if self._job is not None and self._job.asked is not None and not self._answered(self._job):
            self._forget_model()
            self._job = None  # an upload must not come after the server has counted this device as gone
        if self._job is not None and self._model is not None:
            self.link.subscribe(self.topics.model(self._job.version, "+"))
        self._say_here()
        self.link.subscribe(self.topics.run)

    def _say_here(self) -> None:
        self.link.publish(*self._here(True))

    def message(self, topic: str, data: bytes, retained: bool) -> None:  # noqa: ARG002 (the interface)
        parts = topic.split("/")
        if topic == self.topics.run:
            self._take_run(data)
        elif topic == self.topics.job(self.number):
            self._take_job(wire.read(JobMessage, data))
        elif parts[1] == "model" and len(parts) == 4:
            self._take_chunk(wire.number(parts[2]), wire.number(parts[3]), data)

    def _take_run(self, data: bytes) -> None:
        if not data:  # the run is over
            self._run = self._ready = self._job = self._model = self._answer = self._error = None
            return
        run = wire.read(Run, data)
        if run is None:
            self.say(f"cannot take part: {UNREADABLE}")
            if self._run is None:  # otherwise continue with the known run
                self._error = UNREADABLE
                self._say_here()
        elif self._run is not None and replaces(run, self._run):
            self._take_authority(run)
            self._say_here()  # the server asks which devices are present
        else:
            self._run, self._ready, self._error, self._job, self._model = run, None, None, None, None
            self._answer = None  # tickets begin again
            self.work.put((self, run, None))

    def _take_authority(self, run: Run) -> None:
        """Use newer authorities and a newer revocation list of devices from now on."""
        if self.keyring is not None and run.authority is not None:
            try:
                self.keyring.identity = self.keyring.identity.renewed(run.authority)
            except InputError as error:
                self.say(str(error))

    def _take_job(self, job: JobMessage | None) -> None:
        ready = self._ready
        if job is None or ready is None or job.run != ready.run:
            return
        if self._answer is not None and self._answered(job):
            for topic, data in self._answer[1]:  # the server did not get it
                self.link.publish(topic, data)
            return
        newest = -1 if self._job is None else self._job.ticket
        if job.ticket < newest or (job.ticket == newest and not job.cancelled):
            return  # outdated, or already in progress
        self._forget_model()
        if job.cancelled:
            self._job = job
            self.send(job, job.head("cancelled"))
            return
        if job.kind in STEPS:
            self._job = job
            self.work.put((self, job, None))
            return
        self._job, self._model = job, Assembly.announced(job, ready.model_bytes + wire.SLACK_BYTES)
        if self._model is None:
            self.say(
                f"ticket {job.ticket} announces a model of {job.bytes} bytes, ours has {ready.model_bytes}: refused"
            )
            self.send(job, job.head("the model has another size than on this device"))
        else:
            self.link.subscribe(self.topics.model(job.version, "+"))

    def _take_chunk(self, version: int | None, chunk: int | None, data: bytes) -> None:
        job, model = self._job, self._model
        if job is None or model is None or version != job.version or chunk is None or not model.put(chunk, data):
            return  # a cleared topic, or a model that is not awaited
        if model.complete:
            if model.data is None:
                model.parts.clear()  # retained from an earlier run; the right chunks will follow
                return
            self._forget_model()
            self.work.put((self, job, model))

    def _forget_model(self) -> None:
        if self._job is not None and self._model is not None:
            self.link.unsubscribe(self.topics.model(self._job.version, "+"))
        self._model = None

    # ---- called by the worker's thread

    def wants(self, what: Run | JobMessage) -> bool:
        """Return whether this is still the newest run or job, and not answered yet."""
        return what is self._run or (what is self._job and not self._answered(what))

    def _answered(self, job: Run | JobMessage | None) -> bool:
        return isinstance(job, JobMessage) and self._answer is not None and self._answer[0] == job.ticket

    def ready(self, run: Run, ready: Ready) -> None:
        if self._run is run:
            if run.authority is not None and self.credentials is not None:
                self.keyring = Keyring(Identity(self.credentials, self.number, run.authority), run.run)
            self._ready, self._error = ready, None
            self._say_here()

    def refuse(self, run: Run, why: str) -> None:
        self.say(f"cannot take part: {why}")
        if self._run is run:
            self._error = why[:500]
            self._say_here()

    def send(self, job: JobMessage, head: Head, update: Arrays | None = None) -> None:
        if not self.wants(job):  # superseded by a newer job, or too late
            return
        if update is not None and job.asked is not None and not self.link.is_up:
            return  # it would be sent with the next connection, after the server has counted this device as gone
        parcel = Parcel(b"") if update is None else Parcel.of(update)
        parts = {wire.HEAD: head.model_copy(update=parcel.announced).to_bytes(), **dict(enumerate(parcel.chunks))}
        published = [(self.topics.reply(self.number, job.ticket, part), data) for part, data in parts.items()]
        self._answer = job.ticket, published
        for topic, data in published:
            self.link.publish(topic, data)


Work = queue.SimpleQueue[tuple[DeviceClient, Run | JobMessage, Assembly | None]]
Turn = Callable[[], AbstractContextManager[object]]  # makes the context in which a device prepares


@dataclass
class Worker:
    """Computes for one device, or for many in turn."""

    owner: Callable[[int], Owner]  # by device number
    turn: Turn = nullcontext
    work: Work = field(default_factory=queue.SimpleQueue)
    _prepared: dict[tuple[str, int | None], Ready] = field(default_factory=dict)  # built-in data are shared

    def run_for_ever(self) -> None:
        while True:
            self.step()

    def step(self) -> None:
        """Take the next item from the queue, and prepare for its run or execute its job."""
        device, what, model = self.work.get()
        if not device.wants(what):
            return
        if isinstance(what, Run):
            try:
                with self.turn():
                    ready = self._prepare(device.number, what)
                device.ready(what, ready)
            except InputError as error:
                device.refuse(what, str(error))
            except Exception as error:  # such as from the owner's module; the details stay on this device
                traceback.print_exc()
                device.refuse(what, f"{type(error).__name__} while getting ready; see this device's log")
        elif what.kind in STEPS:
            self._help(device, what, what.head())
        elif model is not None:
            self._do(device, what, model)

    def _prepare(self, number: int, run: Run) -> Ready:
        owner = self.owner(number)
        shared = owner.data_folder is None and not run.own_model
        key = (run.run, None if shared else number)
        if key not in self._prepared:
            if any(known != run.run for known, _ in self._prepared):
                self._prepared.clear()
            self._prepared[key] = prepare(run, owner, number)
        return self._prepared[key]

    def _do(self, device: DeviceClient, job: JobMessage, model: Assembly) -> None:
        ready = device._ready
        if ready is None or ready.task is None or ready.run != job.run:
            return
        update, said, owner = None, job.head(), self.owner(device.number)
        late = job.head(f"took longer than {owner.job_s:g} s (--job-s of this device)")
        limit = threading.Timer(owner.job_s or threading.TIMEOUT_MAX, device.send, (job, late))
        limit.daemon = True
        limit.start()
        try:
            request = Request(job.ticket, device.number, job.version, job.kind, job.merged)
            handed = unpacked(model.arrays(job.key), ready.setup.algorithm.learner)
            memory = None if ready.first is None or owner.state is None else Memory(owner.state, ready.run, ready.first)
            before = None if memory is None else memory.after(job.merged)
            secure = ready.setup.spec.privacy.secure_aggregation and job.kind == "train"
            setup = ready.setup.with_own(uplink_bps={}) if secure else ready.setup  # the update is sent later
            reply, left = do_job(setup, ready.task, request, handed, before, partial(_pause, device, job))
            if memory is not None and job.kind == "train":
                memory.keep(job.merged, before, job.ticket, left)
            told = {"metrics": dict(reply.metrics), "compute_s": reply.compute_s}
            update, said = reply.update, said.model_copy(update=told)
            if update is not None and not secure:
                update = encoded(update, ready.setup.algorithm.learner.bits)
            if secure and update is not None:
                device.masks, update = _new_masks(device, job, ready, update), None
        except CancelledError:
            return
        except InputError as error:
            device.say(str(error))
            said = job.head("the state of this device cannot be read")
        except Exception as error:  # the server learns that it failed, but nothing about the data
            traceback.print_exc()
            said = job.head(f"the job raised {type(error).__name__}")
        finally:
            limit.cancel()
        if job.asked is not None and said.error is None:
            self._help(device, job, said)
        else:
            device.send(job, said, update)

    def _help(self, device: DeviceClient, job: JobMessage, said: Head) -> None:
        """Answer what secure aggregation asks for."""
        answer = None
        try:
            if device.masks is None or device.masks.keyring.run != job.run:
                raise InputError("this device has no update to mask; it was started again")
            answer = device.masks.answer(Request(job.ticket, device.number, job.version, job.kind, asked=job.asked))
            if "words" in answer and device._ready is not None:
                uplinks = device._ready.setup.own.uplink_bps
                _pause(device, job, 8 * answer["words"].nbytes / uplinks.get(device.number, math.inf))
        except CancelledError:
            return
        except InputError as error:
            device.say(str(error))
            about = error.ue if isinstance(error, KeyRefusedError) else None
            answer, said = None, job.head(str(error)[:500]).model_copy(update={"about": about})
        except Exception as error:
            traceback.print_exc()
            answer, said = None, job.head(f"a step raised {type(error).__name__}")
        device.send(job, said, answer)


def _new_masks(device: DeviceClient, job: JobMessage, ready: Ready, update: Arrays) -> MaskedUpdate:
    algorithm = ready.setup.algorithm
    assert device.keyring is not None
    assert algorithm.learner.clip is not None
    return MaskedUpdate(device.keyring, job.ticket, update, algorithm.learner.clip, algorithm.protocol.quorum)


def _pause(device: DeviceClient, job: JobMessage, seconds: float) -> None:
    """Sleep, but raise CancelledError as soon as the job is not wanted any more."""
    ends_s = time.monotonic() + seconds
    while (left_s := ends_s - time.monotonic()) > 0:
        if not device.wants(job):
            raise CancelledError
        time.sleep(min(left_s, LOOK_EVERY_S))


def prepare(run: Run, owner: Owner, number: int) -> Ready:
    """Validate the settings, load the data, and compile what jobs will need."""
    for name in NOT_FROM_THE_NETWORK:
        if name in settings_in(run.settings):
            raise InputError(f"the server sent the setting {name}, which only this device's owner may choose")
    if (run.authority is not None) != settings_in(run.settings).get("secure-aggregation", False):
        raise InputError("the server did not say which authority signed the devices' certificates")
    if run.own_model and owner.app_module is None and owner.model is None:
        raise InputError("this run uses a model of your own; start this device with --app-module FILE or --model")
    setup = Setup.from_toml(run.settings, owner.model if run.own_model else None)
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
    handed = handed_out(params, learner, learner.merge.init(dict(params), setup.ues))
    do_job(setup.with_own(slow={}, uplink_bps={}), task, Request(0, number, 0), handed, first)  # compiles
    return Ready(run.run, setup, task, len(Parcel.of(handed.packed()).data), first)


def replaces(new: Run, old: Run) -> bool:
    """Return whether an announcement is that of the same run, perhaps with newer authorities."""
    changed = new.model_copy(update={"authority": old.authority})
    return changed == old and (new.authority is None) == (old.authority is None)


def travelling(setup: Setup, run_id: str, since_s: float = 0.0, authority: Authority | None = None) -> Run:
    """Return a run's announcement to devices, without settings that concern only the server, or name its files."""
    trusted = None
    if authority is not None and setup.spec.privacy.secure_aggregation:
        trusted = authority.trust().decode("ascii")
    told = {name: value for name, value in settings_in(setup.to_toml()).items() if not _is_the_servers(name)}
    if setup.own_model:
        told.pop("model", None)
    text = tomli_w.dumps(told)
    return Run(run=run_id, settings=text, since_s=since_s, own_model=setup.own_model, authority=trusted)


def _is_the_servers(name: str) -> bool:
    """Return whether a setting is a path on the server's machine, or about how the server runs rounds."""
    known = SETTINGS.get(name)  # None for a method's own setting
    return name == "data-dir" or (known is not None and known.section == "deployment" and name not in IMPOSED)
