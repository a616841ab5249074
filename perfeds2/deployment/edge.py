"""Run an edge: a server for its own devices that is also a device in the cloud's federation.

A job from the cloud asks an edge to run κ₂ rounds from the model that it is handed. The edge uploads that model minus
its own, so the cloud's merge with β = 1 is the mean of the edges' models. Then the edge waits for the cloud's next
model, which replaces its own before any device gets it.

Both servers may be killed at any time. The edge saves its model, the cloud's model and how many rounds have closed
since. An edge keeps its job while it is away. The cloud sends the job again when either restarts: an edge that already
works from that version continues, and any other adopts the model.
"""

import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfeds2.deployment.federation import Federation
from perfeds2.deployment.merging import uploaded
from perfeds2.deployment.record import Adoption
from perfeds2.deployment.transport import Arrays, Reply, Request
from perfeds2.deployment.validate import form_of, wrong_update
from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.learning.metrics import METRICS
from perfeds2.timeline.protocol import IDLE

EDGES = "edges"  # folder in the cloud's run folder with the run folders of edges 0, 1, …
ADOPTIONS = "adoptions.csv"


@typing.runtime_checkable
class Backhaul(typing.Protocol):
    """Connects an edge to the cloud."""

    def newest(self) -> tuple[Request, Arrays] | None:
        """Return the cloud's newest job that has not been answered, with its model; None if there is none."""
        ...

    def answer(self, reply: Reply) -> None: ...


@dataclass
class Edge:
    """Exchanges the model of a federation with the cloud."""

    federation: Federation
    backhaul: Backhaul
    rounds: int  # κ₂: rounds between two exchanges
    last: Request | None = None  # the cloud's request to evaluate its last model, which ends the run

    def __post_init__(self) -> None:
        adoptions = self.federation.record.adoptions
        self.federation.rounds = adoptions[-1].round + self.rounds if adoptions else 0

    def exchange(self) -> None:
        """Adopt the cloud's newest model, or answer its job if the rounds of that job have closed."""
        job = self.backhaul.newest()
        if job is None:
            return
        (request, model), server = job, self.federation
        adoptions = server.record.adoptions
        if request.kind == "train" and adoptions and adoptions[-1].version == request.version:
            if server.round == server.rounds:
                self._upload(request, adoptions[-1])
        elif (why := wrong_update(model, form_of(server.params))) is not None:
            self._answer(request, error=f"the model {why}")
        elif request.kind == "train":
            self._adopt(model)
            adoptions.append(Adoption(server.round, request.version, server.time_s))
            server.rounds, server.opened_s = server.round + self.rounds, server.time_s
            server.save(server)  # before any device gets it
            server.log(f"model {request.version} of the cloud replaces that of round {server.round}")
        else:
            server.round += server.round < server.rounds  # devices know another model by that number
            self._adopt(model)
            server.rounds, self.last = server.round, request

    def _adopt(self, model: Arrays) -> None:
        self.federation.adopted = dict(model)
        self.federation.become(dict(model), self.federation.merging)

    def _upload(self, request: Request, start: Adoption) -> None:
        server = self.federation
        assert server.adopted is not None
        change = {name: start - server.params[name] for name, start in server.adopted.items()}
        self._answer(request, update=uploaded(change, server.learner), metrics=self._metrics(start.round))

    def finish(self) -> None:
        """Report the metrics of the last model, once the devices have evaluated it."""
        assert self.last is not None
        self._answer(self.last, metrics=self._metrics(self.federation.round))

    def _metrics(self, version: int) -> dict[str, float]:
        """Return the means of the metrics that devices reported for a version; empty if none did."""
        seen = [each.values for each in self.federation.record.evaluations if each.version == version]
        return dict(zip(METRICS, np.mean(seen, axis=0).tolist(), strict=True)) if seen else {}

    def _answer(self, request: Request, **said: typing.Any) -> None:
        self.backhaul.answer(Reply(request.ue, request.ticket, request.version, **said))


def write_adoptions(folder: Path, adoptions: Sequence[Adoption]) -> None:
    lines = [f"{each.round},{each.version},{each.time_s:.6f}" for each in adoptions]
    write_text(folder / ADOPTIONS, "\n".join([",".join(Adoption._fields), *lines, ""]))


def read_adoptions(folder: Path) -> list[Adoption]:
    """Read which models of the cloud an edge adopted.

    Raises:
        InputError: The file is missing or damaged.
    """
    path = folder / ADOPTIONS
    try:
        rows = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
        return [Adoption(int(round_), int(version), float(time_s)) for round_, version, time_s in rows]
    except (OSError, ValueError):
        raise InputError(f"{path} is missing or damaged; copy it from the edge's run folder again.") from None


def recall_jobs(federation: Federation) -> None:
    """Let a restarted cloud wait for the edges that had a job. They still have the model of that job."""
    for device in federation.devices:
        if device.held != IDLE and not device.set_aside:
            device.version, device.here = device.held, True
            federation.shelf.lend(device.held, device.ue, None)
            model = federation.outgoing.packed() if device.held == federation.round else {}
            federation.dispatcher.send(device, model, device.held)
