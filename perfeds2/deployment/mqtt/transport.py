"""Deliver jobs to devices over a broker, each with exactly-once effect.

A job is outstanding from its dispatch until its device has answered it or left. Whenever a device with an outstanding
job announces itself, the job is sent again, because the device or the broker may have died while the job or the reply
was in transit. The device knows the ticket: it computes a new job and repeats its reply to an old one. Replies to any
other ticket are not accepted. So the broker need not remember anything.

A model is published once, as retained messages, for all devices that are handed it, and cleared when no device
works on it. It is encrypted with a new key, which only its jobs carry: a device reads no other version. After a restart
the server publishes it again, with another key.
"""

import math
import queue
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from perfeds2.deployment.messages import Head, Here, JobMessage, Run, read
from perfeds2.deployment.mqtt import wire
from perfeds2.deployment.mqtt.link import Link
from perfeds2.deployment.mqtt.quota import Quota
from perfeds2.deployment.mqtt.wire import Assembly, Parcel, Topics
from perfeds2.deployment.transport import STEPS, Arrays, Changes, Presence, Reply, Request, SignedKey, Troubles
from perfeds2.deployment.validate import in_words
from perfeds2.errors import InputError

CONFIRM_WITHIN_S = 10.0  # after a broker outage, devices have this long to report before they count as gone
AWAY_AFTER_S = 3.0  # shorter outages of the broker are not reported
BEAT_EVERY_S, BEAT_WITHIN_S = 5.0, 15.0  # a message of the server to itself, and when it must be back
AGAIN_AFTER_S = 1.0  # least time between two arrivals of a device, and between two reports of its stray replies
MOST_KEYS = 60  # new keys for masks of one device in a minute, since checking one takes 0.7 ms
NEVER_S = -math.inf


@dataclass
class Outstanding:
    """An outstanding job, and what has arrived of its reply."""

    request: Request
    message: JobMessage
    most_bytes: int
    head: Head | None = None
    update: Assembly | None = None


@dataclass
class Peer:
    """What the server knows about one device's connection."""

    job: Outstanding | None = None
    answered: int = -1  # last ticket it answered
    stray_s: float = NEVER_S  # when its last stray reply was reported
    session: str | None = None  # while it is present
    signed: SignedKey | None = None  # its key for masks
    came_s: float = NEVER_S
    quota: Quota = field(default_factory=Quota)
    new_keys: Quota = field(default_factory=lambda: Quota(messages=MOST_KEYS))


@dataclass
class MqttTransport:
    """The server's end of the transport."""

    link: Link
    run: Run
    ues: int
    topics: Topics = field(default_factory=Topics)
    keeps_jobs: bool = False  # devices that leave keep their job, which is sent again when they are back
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _replies: queue.SimpleQueue[Reply] = field(default_factory=queue.SimpleQueue)
    _peers: defaultdict[int, Peer] = field(default_factory=lambda: defaultdict(Peer))  # by UE
    _presence: Presence = field(default_factory=Presence)
    _unconfirmed: set[int] = field(default_factory=set)  # present before an outage, and not yet since
    _confirm_by_s: float = math.inf
    _was_up_s: float = field(default_factory=time.monotonic)  # when the connection was last up
    _beat_s: float = 0.0  # when the last heartbeat was sent
    _beat_is_back: bool = True
    _coming: dict[int, float] = field(default_factory=dict)  # UEs that return too often: when they may
    _models: dict[int, Parcel] = field(default_factory=dict)  # retained at the broker, by version
    _held: Counter[int] = field(default_factory=Counter)  # number of devices at work, by version
    _newest: int = -1
    _rival: str | None = None  # run of another server of this federation
    _certain: bool = False  # whether that server is still there
    barred: Callable[[], Mapping[int, str]] = dict  # UEs that the broker refuses, and why; called at every connection
    authority: Callable[[], bytes] | None = (
        None  # newest authorities and revocations of devices, for secure aggregation
    )
    check_key: Callable[[int, SignedKey], None] = lambda _ue, _signed: None  # raises InputError for a key to refuse
    _troubles: dict[int | None, str | None] = field(default_factory=dict)  # not yet reported

    def __enter__(self) -> "MqttTransport":
        self.link.start(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._certain:  # what is retained belongs to the other server
            self.link.close()
            return
        with self._lock:
            for version in list(self._models):
                self._clear(version)
        self.link.close((self.topics.run, b""))

    # ---- called by the server's thread

    def dispatch(self, request: Request, params: Arrays) -> None:
        """Send a job, and its model if that is new. While the broker is away, both wait until it is back."""
        with self._lock:
            self._let_go(request.ue)
            parcel = Parcel(b"", "0" * 64)  # a step of secure aggregation has no model
            if request.kind not in STEPS:
                if request.version not in self._models:
                    self._newest = max(self._newest, request.version)
                    self._models[request.version] = Parcel.of(params).sealed()
                    self._publish_model(request.version)
                parcel = self._models[request.version]
            self._held[request.version] += 1
            asked = {name: value for name, value in vars(request).items() if name != "ue"}
            job = JobMessage(run=self.run.run, key=parcel.key, **asked, **parcel.announced)
            largest = max(len(each.data) for each in self._models.values())
            most_bytes = largest + largest // 32 + wire.SLACK_BYTES  # top-k may add a bit to every number
            self._peers[request.ue].job = Outstanding(request, job, most_bytes)
            self._send_job(request.ue)
            for version in [each for each in self._models if each != self._newest and not self._held[each]]:
                self._clear(version)

    def cancel(self, ue: int) -> None:
        with self._lock:
            job = self._peers[ue].job
            if job is not None:
                job.message = job.message.model_copy(update={"cancelled": True})
                self._send_job(ue)

    def poll(self, wait_s: float) -> list[Reply]:
        found = []
        with suppress(queue.Empty):
            found.append(self._replies.get(timeout=wait_s))
            while True:
                found.append(self._replies.get_nowait())
        return found

    def changes(self) -> Changes:
        """Return which UEs became ready for this run and which left. While the broker is away, none leave.

        Raises:
            InputError: Another server runs this federation.
        """
        if self._certain:
            raise InputError(
                f"another server runs the federation {self.topics.federation!r} on this broker (run {self._rival}); stop it, "
                "or make credentials with another --federation."
            )
        with self._lock:
            if self.link.is_up and self.now() > self._confirm_by_s:
                self._confirm_by_s = math.inf
                for ue in self._unconfirmed:
                    self._leave(ue)
            for ue in [ue for ue, due_s in self._coming.items() if self.now() >= due_s]:
                self._come(ue)
            changes = self._presence.changes()
            for ue in changes.went:
                self._let_go(ue)  # the server drops its job as well
            return changes

    def troubles(self) -> Troubles:
        with self._lock:
            news, self._troubles = self._troubles, {}
            now_s, why = self.now(), None
            if self.link.is_up:
                self._was_up_s = now_s
                if self._beat_is_back and now_s - self._beat_s >= BEAT_EVERY_S:
                    self._beat_s, self._beat_is_back = now_s, False
                    self.link.publish(self.topics.heartbeat, b"")
            if now_s - self._was_up_s > AWAY_AFTER_S:
                why = "the broker cannot be reached; see the server's log"
            elif not self._beat_is_back and now_s - self._beat_s > BEAT_WITHIN_S:
                why = "the broker is connected, but delivers no messages; restart it"
            return news | {None: why}

    def key_of(self, ue: int) -> SignedKey | None:
        return self._peers[ue].signed

    def now(self) -> float:
        return time.monotonic()

    def _let_go(self, ue: int) -> None:
        peer = self._peers[ue]
        if peer.job is not None:
            self._held[peer.job.request.version] -= 1
        peer.job = None

    def _send_job(self, ue: int) -> None:
        job = self._peers[ue].job
        if job is not None and self.link.is_up:
            self.link.publish(self.topics.job(ue), job.message.to_bytes())

    def _publish_model(self, version: int) -> None:
        if self.link.is_up:
            for number, chunk in enumerate(self._models[version].chunks):
                self.link.publish(self.topics.model(version, number), chunk, retain=True)

    def _clear(self, version: int) -> None:
        for number in range(len(self._models.pop(version).chunks)):
            self.link.publish(self.topics.model(version, number), b"", retain=True)
        del self._held[version]

    # ---- called by the connection's thread

    def last_will(self) -> None:
        return None

    def up(self) -> None:
        """Announce the run, so that devices report, and publish the models again in case the broker lost them."""
        with self._lock:
            if self.run.authority is not None and self.authority is not None:
                self.run = self.run.model_copy(update={"authority": self.authority().decode("ascii")})
            self._beat_s, self._beat_is_back = self.now(), True
            self._unconfirmed = {ue for ue, peer in self._peers.items() if peer.session is not None}
            self._confirm_by_s = self.now() + CONFIRM_WITHIN_S
            self._troubles |= {ue: why for ue, why in self.barred().items() if ue < self.ues}
            for topic in (*self.topics.from_devices, self.topics.run):
                self.link.subscribe(topic)
            for version in self._models:
                self._publish_model(version)
            self.link.publish(self.topics.run, self.run.to_bytes(), retain=True)

    def message(self, topic: str, data: bytes, retained: bool) -> None:
        if topic == self.topics.run:
            self._take_run(read(Run, data), retained)
            return
        if topic == self.topics.heartbeat:
            self._beat_is_back = True
            return
        received_s = self.now()
        parts = topic.split("/")
        ue = self.topics.device_number(parts[2]) if len(parts) > 2 else None
        if ue is None or ue >= self.ues or retained:  # retained messages may be outdated; devices report anew
            return
        with self._lock:
            quota = self._peers[ue].quota
            if quota.exceeded(len(data), received_s):
                self._troubles[ue] = f"sends {quota}; the rest of that minute is ignored"
            elif parts[1] == "here":
                self._take_here(ue, read(Here, data))
            elif parts[1] == "reply" and len(parts) == 5 and (ticket := wire.number(parts[3])) is not None:
                self._take_part(ue, ticket, parts[4], data, received_s)

    def _take_run(self, said: Run | None, retained: bool) -> None:
        """Notice another server of this federation: it announces its run again after ours. The later run gives way."""
        if said is None or said.run == self.run.run:
            return
        if said.since_s < self.run.since_s:
            # The first one that is retained may be left over from a server that was killed.
            self._certain |= not retained or said.run == self._rival
            self._rival = said.run
        elif not retained:
            self.link.publish(self.topics.run, self.run.to_bytes(), retain=True)

    def _take_here(self, ue: int, said: Here | None) -> None:
        if said is None:
            return
        if said.error is not None:
            self._troubles[ue] = in_words(said.error)
        elif said.here:
            self._troubles[ue] = None
        peer = self._peers[ue]
        ready = said.run == self.run.run and (said.signed is not None or self.run.authority is None)
        if ready and said.signed not in (None, peer.signed):
            try:
                if peer.new_keys.exceeded(0, self.now()):
                    raise InputError(f"announces more than {MOST_KEYS} keys for masks in a minute")
                self.check_key(ue, said.signed)
            except InputError as error:
                self._troubles[ue] = str(error)
                self._leave(ue)
                return
        if said.here and said.error is None and ready:
            peer.session, peer.signed = said.session, said.signed
            self._unconfirmed.discard(ue)
            self._coming[ue] = peer.came_s + AGAIN_AFTER_S
            if ue in self._presence.here or self.now() >= self._coming[ue]:
                self._come(ue)
        elif said.here or said.session == peer.session:
            self._leave(ue)  # or it must prepare first; the last will of an earlier connection is ignored

    def _come(self, ue: int) -> None:
        """Mark a device as present, and send its job again.

        Callers limit how often this happens, because two processes with one certificate keep disconnecting each other.
        """
        del self._coming[ue]
        if ue not in self._presence.here:
            self._peers[ue].came_s = self.now()
            self._presence.add(ue)
        self._send_job(ue)

    def _leave(self, ue: int) -> None:
        self._coming.pop(ue, None)
        self._peers[ue].session = None
        if self.keeps_jobs:
            self._troubles.setdefault(ue, "is away; its job waits for it")
        else:
            self._presence.discard(ue)

    def _take_part(self, ue: int, ticket: int, part: str, data: bytes, received_s: float) -> None:
        peer = self._peers[ue]
        job = peer.job
        if job is None or ticket != job.request.ticket:
            # A reply that was already accepted may be repeated; that is not reported.
            if ticket != peer.answered and received_s - peer.stray_s >= AGAIN_AFTER_S:
                peer.stray_s = received_s
                self._replies.put(Reply(ue, ticket, received_s=received_s))
            return
        wrong = self._take_head(job, data) if part == wire.HEAD else self._take_chunk(job, part, data)
        known = Reply(ue, ticket, job.request.version, received_s=received_s)
        if wrong is not None:
            self._answer(replace(known, error=wrong))
        elif job.head is not None and job.head.error is not None:
            self._answer(replace(known, error=in_words(job.head.error) or "it failed", about=job.head.about))
        elif job.head is not None and (job.update is None or job.update.complete):
            self._answer(_read(known, job.head, job.update))

    def _take_head(self, job: Outstanding, data: bytes) -> str | None:
        """Read the head of a reply, and return why it is refused, or None."""
        if job.head is not None:  # repeated; keep the chunks so far
            return None
        head = read(Head, data)
        if head is None:
            return "unreadable head of a reply"
        if head.run != self.run.run:
            return "answers a job of another run"
        if head.bytes and head.error is None:
            job.update = Assembly.announced(head, job.most_bytes)
            if job.update is None:
                return f"announces {head.bytes} bytes; at most {job.most_bytes} are expected"
        job.head = head
        return None

    def _take_chunk(self, job: Outstanding, part: str, data: bytes) -> str | None:
        chunk = wire.number(part)
        if job.update is None:
            return None  # its head was lost with a connection; both are sent again
        if chunk is None or not job.update.put(chunk, data):
            return f"sends chunk {part} of {len(data)} bytes, which it did not announce"
        return None

    def _answer(self, reply: Reply) -> None:
        self._peers[reply.ue].answered = reply.ticket
        self._let_go(reply.ue)
        self._replies.put(reply)


def _read(known: Reply, head: Head, update: Assembly | None) -> Reply:
    """Decode a complete reply, for the server to validate."""
    try:
        arrays = None if update is None else update.arrays()
    except ValueError as error:
        return replace(known, error=f"unreadable update: {error}")
    metrics, compute_s = dict(head.metrics), head.compute_s
    return replace(known, version=head.version, update=arrays, metrics=metrics, compute_s=compute_s)
