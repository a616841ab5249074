"""A device's place in its run: what is announced, which job it has, and what it answered last.

One thread owns this state. Connections, the worker and timers put events into its inbox; it handles them in turn. Work
goes to the worker, another thread, which looks only at what it was given and at ``WorkItem.dropped``.
"""

import queue
import threading
import traceback
import typing
from collections.abc import Callable
from dataclasses import dataclass, field

from perfeds2.deployment.credentials import Credentials
from perfeds2.deployment.masking import Keyring, MaskedUpdate
from perfeds2.deployment.messages import Head, Here, JobMessage, Run, read
from perfeds2.deployment.preparation import Ready, replaces
from perfeds2.deployment.transport import STEPS, Arrays, SignedKey

UNREADABLE = "the run's announcement cannot be read; is perfeds2 here older than on the server?"


class Inbox:
    """Events of the devices of a process, for the one thread that changes their state."""

    def __init__(self) -> None:
        self._events = queue.SimpleQueue[tuple[Callable[..., object], tuple[object, ...]]]()

    def put(self, handle: Callable[..., object], *given: object) -> None:
        self._events.put((handle, given))

    def drain(self) -> None:
        """Handle the events that are there."""
        while not self._events.empty():
            self._handle()

    def run_for_ever(self) -> None:
        while True:
            self._handle()

    def _handle(self) -> None:
        handle, given = self._events.get()
        try:
            handle(*given)
        except Exception:  # a bug of ours must not end the thread
            traceback.print_exc()


@dataclass
class Secrets:
    """What a device keeps for secure aggregation. Only the worker uses it."""

    keyring: Keyring | None = None  # of its run
    masks: MaskedUpdate | None = None  # its last update


@dataclass(eq=False)
class WorkItem:
    """A run to prepare for, or a job to execute with what the preparation returned."""

    state: "DeviceState"
    what: Run | JobMessage
    ready: Ready | None = None
    model: Callable[[], Arrays] | None = None  # reads the model; raises ValueError if it is damaged
    dropped: threading.Event = field(default_factory=threading.Event)  # set once no thread waits for it


class Wire(typing.Protocol):
    """What a device needs of its connection."""

    def announce(self, here: Here) -> None: ...

    def fetch(self, job: JobMessage, most_bytes: int) -> bool:
        """Start to collect a job's model for ``DeviceState.take_model``; return False if it is too large."""
        ...

    def forget(self) -> None:
        """Stop collecting a model."""
        ...

    def send(self, ticket: int, head: Head, update: Arrays | None, *, now: bool) -> "Callable[[], None] | None":
        """Send a reply, and return what sends it again. With ``now``, send nothing after the connection was lost."""
        ...


@dataclass
class DeviceState:
    """The state of one device. Only the owner of the inbox calls its methods."""

    number: int
    wire: Wire
    work: queue.SimpleQueue[WorkItem]
    say: Callable[[str], None] = print
    credentials: Credentials | None = None  # needed for secure aggregation
    secrets: Secrets = field(default_factory=Secrets)
    session: str = ""  # another one for every connection
    run: Run | None = None  # the newest announcement
    ready: Ready | None = None
    signed: SignedKey | None = None  # its key for masks in this run
    error: str | None = None  # why it cannot take part
    job: JobMessage | None = None  # the newest
    answered: int = -1  # ticket of the last answer
    _answer_again: Callable[[], None] | None = None
    _working: WorkItem | None = None  # given to the worker

    def connected(self, session: str) -> None:
        self.session = session
        if self.job is not None and self.job.asked is not None and self.job.ticket != self.answered:
            self._drop_job()  # an upload must not come after the server has counted this device as gone
        self.announce()

    def announce(self) -> None:
        run = "" if self.ready is None else self.ready.run
        self.wire.announce(Here(here=True, session=self.session, run=run, error=self.error, signed=self.signed))

    def take_run(self, data: bytes) -> None:
        run = read(Run, data) if data else None
        if data and run is None:
            self.say(f"cannot take part: {UNREADABLE}")
            if self.run is None:  # otherwise continue with the known run
                self.error = UNREADABLE
                self.announce()
        elif run is not None and self.run is not None and replaces(run, self.run):
            self.run = run
            self._renew_trust()
            self.announce()  # the server asks which devices are present
        else:  # a new run, or the end of one
            self._drop_job()
            self.run, self.ready, self.signed, self.error = run, None, None, None
            self.answered, self._answer_again = -1, None  # tickets begin again
            if run is not None:
                self._start(WorkItem(self, run))

    def take_job(self, job: JobMessage | None) -> None:
        ready = self.ready
        if job is None or ready is None or job.run != ready.run:
            return
        if job.ticket == self.answered:  # the server did not get it
            if self._answer_again is not None:
                self._answer_again()
            return
        newest = -1 if self.job is None else self.job.ticket
        if job.ticket < newest or (job.ticket == newest and not job.cancelled):
            return  # outdated, or already in progress
        self._drop_job()
        self.job = job
        if job.cancelled:
            self.send(job, job.head("cancelled"))
        elif job.kind in STEPS:
            self._start(WorkItem(self, job, ready))
        elif not self.wire.fetch(job, ready.model_bytes):
            self.say(
                f"ticket {job.ticket} announces a model of {job.bytes} bytes, ours has {ready.model_bytes}: refused"
            )
            self.send(job, job.head("the model has another size than on this device"))

    def take_model(self, job: JobMessage, model: Callable[[], Arrays]) -> None:
        if job is self.job:
            self._start(WorkItem(self, job, self.ready, model))

    def _renew_trust(self) -> None:
        """Use the authorities and the list of the newest announcement."""
        if self.run is not None and self.ready is not None and self.run.authority is not None:
            self.work.put(WorkItem(self, self.run, self.ready))

    def _start(self, work: WorkItem) -> None:
        self._working = work
        self.work.put(work)

    def _drop_job(self) -> None:
        self.wire.forget()
        self.job = None
        if self._working is not None:
            self._working.dropped.set()

    # ---- what the worker found

    def prepared(self, run: Run, ready: Ready, signed: SignedKey | None = None) -> None:
        if self.run is not None and self.run.run == run.run:
            self.ready, self.signed, self.error = ready, signed, None
            if self.run is not run:
                self._renew_trust()
            self.announce()

    def refuse(self, run: Run, why: str) -> None:
        self.say(f"cannot take part: {why}")
        if self.run is not None and self.run.run == run.run:
            self.error = why[:500]
            self.announce()

    def send(self, job: JobMessage, head: Head, update: Arrays | None = None) -> None:
        """Answer a job, unless a newer one came or it was answered before."""
        if job is not self.job or job.ticket == self.answered:
            return
        masked = update is not None and job.asked is not None
        again = self.wire.send(job.ticket, head, update, now=masked)
        if again is not None:
            self.answered, self._answer_again = job.ticket, again
            if self._working is not None:
                self._working.dropped.set()
