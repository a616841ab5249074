"""Connect an edge to the cloud over MQTT: it is a device of the cloud's federation, with that device's certificate."""

import queue
from dataclasses import dataclass, field
from pathlib import Path

from perfeds2.deployment.device_state import Inbox, WorkItem
from perfeds2.deployment.messages import JobMessage, Run
from perfeds2.deployment.mqtt.device import DeviceClient
from perfeds2.deployment.mqtt.link import Link
from perfeds2.deployment.mqtt.wire import Parcel, Topics
from perfeds2.deployment.preparation import Ready, travelling
from perfeds2.deployment.setup import Setup, settings_in
from perfeds2.deployment.site import Site
from perfeds2.deployment.transport import Arrays, Reply, Request
from perfeds2.errors import InputError
from perfeds2.files import write_text

CLOUD_RUN = "cloud-run-id"  # file in an edge's folder: the run of the cloud that it belongs to
OWN = ("slow", "uplink-bps", "edge")  # settings that edges do not share with the cloud


@dataclass
class CloudLink:
    """An edge's end of the backhaul. The server's thread owns its inbox."""

    setup: Setup  # the edge's
    link: Link
    folder: Path  # the edge's run folder
    topics: Topics
    _work: queue.SimpleQueue[WorkItem] = field(default_factory=queue.SimpleQueue)
    _inbox: Inbox = field(default_factory=Inbox)
    _job: tuple[WorkItem, JobMessage, Arrays] | None = None

    @classmethod
    def to(cls, cloud: Site, setup: Setup, folder: Path) -> "CloudLink":
        return cls(setup, Link(cloud, setup.own.edge), folder, Topics(cloud.federation))

    def __post_init__(self) -> None:
        assert self.setup.own.edge is not None
        self._device = DeviceClient(self.setup.own.edge, self.link, self._work, self._inbox, topics=self.topics)

    def __enter__(self) -> "CloudLink":
        self._device.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._device.close()

    def newest(self) -> tuple[Request, Arrays] | None:
        self._inbox.drain()
        while not self._work.empty():
            work = self._work.get()
            if isinstance(work.what, Run):
                self._prepare(work.what)
            elif work.model is not None:
                try:
                    self._job = work, work.what, work.model()
                except ValueError as error:
                    self._device.state.send(work.what, work.what.head(str(error)[:500]))
        if self._job is None or self._job[0].dropped.is_set():
            return None
        _, job, model = self._job
        return Request(job.ticket, self._device.number, job.version, job.kind), model

    def answer(self, reply: Reply) -> None:
        assert self._job is not None
        job = self._job[1]
        head = job.head(reply.error).model_copy(update={"metrics": dict(reply.metrics)})
        self._device.state.send(job, head, reply.update)

    def _prepare(self, run: Run) -> None:
        """Get ready for the cloud's run, if it is the one that this edge belongs to."""
        try:
            self._check(run)
        except InputError as error:
            self._device.state.refuse(run, str(error))
            return
        params = self.setup.first_params()
        self._device.state.prepared(run, Ready(run.run, self.setup, None, len(Parcel.of(params).data)))

    def _check(self, run: Run) -> None:
        theirs, ours = settings_in(run.settings), settings_in(travelling(self.setup, "").settings)
        for name in sorted((theirs.keys() | ours.keys()) - set(OWN)):
            if theirs.get(name) != ours.get(name):
                raise InputError(
                    f"the cloud has {name} = {theirs.get(name)}, this edge {ours.get(name)}; start both with the same settings"
                )
        file = self.folder / CLOUD_RUN
        if not file.exists():
            write_text(file, run.run)
        elif file.read_text(encoding="utf-8", errors="replace") != run.run:
            raise InputError(f"the cloud has a new run; {self.folder} belongs to an earlier one. Start a new run here")
