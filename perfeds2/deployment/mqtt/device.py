"""A device's connection to a broker: it carries messages, collects models and sends replies in chunks.

The connection's thread only puts events into the inbox; all the rest happens in the thread that owns it.
"""

import queue
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from perfeds2.deployment.credentials import Credentials
from perfeds2.deployment.device_state import DeviceState, Inbox, WorkItem
from perfeds2.deployment.messages import Head, Here, JobMessage, read
from perfeds2.deployment.mqtt import wire
from perfeds2.deployment.mqtt.link import Link
from perfeds2.deployment.mqtt.wire import Assembly, Parcel, Topics
from perfeds2.deployment.transport import Arrays


@dataclass
class DeviceClient:
    """A device on a broker."""

    number: int
    link: Link
    work: queue.SimpleQueue[WorkItem]
    inbox: Inbox
    say: Callable[[str], None] = print
    topics: Topics = field(default_factory=Topics)
    credentials: Credentials | None = None  # needed for secure aggregation
    state: DeviceState = field(init=False)
    _session: str = ""  # of the newest connection; the connection's thread changes it
    _fetching: tuple[JobMessage, Assembly] | None = None  # the chunks of a job's model so far

    def __post_init__(self) -> None:
        self.state = DeviceState(self.number, self, self.work, self.say, self.credentials)

    def start(self) -> None:
        self.link.start(self)

    def close(self) -> None:
        self.link.close(self._gone())

    def _gone(self) -> tuple[str, bytes]:
        return self.topics.here(self.number), Here(here=False, session=self._session).to_bytes()

    # ---- called by the connection's thread

    def last_will(self) -> tuple[str, bytes]:
        self._session = uuid.uuid4().hex
        return self._gone()

    def up(self) -> None:
        self.inbox.put(self._up, self._session)

    def message(self, topic: str, data: bytes, retained: bool) -> None:  # noqa: ARG002 (the interface)
        self.inbox.put(self._take, topic, data)

    # ---- called by the owner of the inbox

    def _up(self, session: str) -> None:
        self.link.subscribe(self.topics.job(self.number))
        self.state.connected(session)
        if self._fetching is not None:
            self.link.subscribe(self.topics.model(self._fetching[0].version, "+"))
        self.link.subscribe(self.topics.run)

    def _take(self, topic: str, data: bytes) -> None:
        parts = topic.split("/")
        if topic == self.topics.run:
            self.state.take_run(data)
        elif topic == self.topics.job(self.number):
            self.state.take_job(read(JobMessage, data))
        elif parts[1] == "model" and len(parts) == 4:
            self._take_chunk(wire.number(parts[2]), wire.number(parts[3]), data)

    def _take_chunk(self, version: int | None, chunk: int | None, data: bytes) -> None:
        job, model = self._fetching or (None, None)
        if job is None or model is None or version != job.version or chunk is None or not model.put(chunk, data):
            return  # a cleared topic, or a model that is not awaited
        if model.complete:
            if model.data is None:
                model.parts.clear()  # retained from an earlier run; the right chunks will follow
                return
            self.forget()
            self.state.take_model(job, lambda: model.arrays(job.key))

    def announce(self, here: Here) -> None:
        self.link.publish(self.topics.here(self.number), here.to_bytes())

    def fetch(self, job: JobMessage, most_bytes: int) -> bool:
        model = Assembly.announced(job, most_bytes + wire.SLACK_BYTES)
        if model is None:
            return False
        self._fetching = job, model
        self.link.subscribe(self.topics.model(job.version, "+"))
        return True

    def forget(self) -> None:
        if self._fetching is not None:
            self.link.unsubscribe(self.topics.model(self._fetching[0].version, "+"))
        self._fetching = None

    def send(self, ticket: int, head: Head, update: Arrays | None, *, now: bool) -> Callable[[], None] | None:
        if now and not (self.link.is_up and self._session == self.state.session):
            return None  # it would be sent with the next connection
        parcel = Parcel(b"") if update is None else Parcel.of(update)
        parts = {wire.HEAD: head.model_copy(update=parcel.announced).to_bytes(), **dict(enumerate(parcel.chunks))}

        def publish() -> None:
            for part, data in parts.items():
                self.link.publish(self.topics.reply(self.number, ticket, part), data)

        publish()
        return publish
