"""How does a federation run from its first round to its run folder?"""

import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfeds2.deployment.checkpoint import load_checkpoint, save_checkpoint
from perfeds2.deployment.federation import Federation
from perfeds2.deployment.settings import Settings
from perfeds2.deployment.transport import Transport
from perfeds2.deployment.validate import Rules
from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.runs.execute import Comparison, write_results
from perfeds2.runs.folder import Folder, alone, open_folder
from perfeds2.runs.summary import summarise

STATUS_EVERY_S = 0.5
RECENT = 12  # rounds in the live table


def serve(settings: Settings, transport: Transport, path: Path) -> Folder:
    """Run a federation, or go on with one that was killed, until its rounds are done and its folder is complete."""
    folder = open_folder(path, settings.spec)
    with alone(path):
        if not folder.finished:
            _serve(settings, transport, folder)
        if not (folder.path / "report.html").exists():
            from perfeds2.report.page import write_report

            write_report(folder.path)
    return folder


def _serve(settings: Settings, transport: Transport, folder: Folder) -> None:
    algorithm = settings.algorithm
    federation = Federation(
        settings.spec.cell.ues,
        algorithm.protocol,
        algorithm.learner,
        dict(settings.first_params()),
        Rules(settings.norm_bound, settings.set_aside_after),
        folder.log,
    )
    started_unix = load_checkpoint(folder, federation)
    if started_unix is None:
        _gather(settings, transport, folder)
        started_unix = time.time()
        elapsed_s = 0.0
    else:
        # The clock went on while the server was away; should the machine's have been set back, ours is not.
        elapsed_s = max(time.time() - started_unix, federation.server.opened_s)
        folder.log(f"resumed: rounds 0 to {federation.round - 1} are in the checkpoint")
    federation.save = lambda state: save_checkpoint(folder, state, started_unix)
    origin_s = transport.now() - elapsed_s
    tell = _Teller(folder, settings.rounds)
    while federation.round < settings.rounds:
        federation.step(transport, origin_s, settings.rounds)
        tell(federation, transport, origin_s, "training")
    _evaluate(settings, federation, transport, lambda: tell(federation, transport, origin_s, "evaluating"), origin_s)
    _finish(settings, federation, folder)
    tell(federation, transport, origin_s, "finished", at_once=True)


def _gather(settings: Settings, transport: Transport, folder: Folder) -> None:
    """Round 0 begins with everybody, or after a while with at least a quorum."""
    quorum, everybody = settings.algorithm.protocol.quorum, settings.spec.cell.ues
    began_s = transport.now()
    here = transport.members()
    while len(here) < everybody and (len(here) < quorum or transport.now() - began_s < settings.gather_s):
        write_text(folder.path / "status.json", json.dumps(_waiting(settings, sorted(here))))
        transport.poll(STATUS_EVERY_S)
        here = transport.members()
    folder.log(f"started with {len(here)} of {everybody} devices")


def _evaluate(
    settings: Settings,
    federation: Federation,
    transport: Transport,
    tell: Callable[[], None],
    origin_s: float,
) -> None:
    """The last model, personalised, on every device that can be reached."""
    ends_s, asked = transport.now() + settings.evaluate_s, set()
    for device in federation.devices:
        device.wanted = False  # what is still under way comes too late
    while transport.now() < ends_s:
        federation.ask_everybody(transport, asked)
        waits_for = [device for ue, device in enumerate(federation.devices) if device.job and ue in transport.members()]
        if not waits_for:
            return
        for reply in transport.poll(STATUS_EVERY_S):
            federation.take(reply, reply.received_s - origin_s)
        tell()


def _finish(settings: Settings, federation: Federation, folder: Folder) -> None:
    """Leave what a simulation leaves."""
    algorithm, seed = settings.algorithm, settings.seed
    which = (algorithm.name, seed)
    rows = federation.record.metric_rows(*which)
    if not rows:
        raise InputError("no device evaluated any model; see events.log.")
    timelines = {which: federation.timeline()}
    summary = summarise(settings.spec, "federate", [algorithm], timelines, {which: rows})
    summary["devices"] = [{"refused": device.refused, "set_aside": device.set_aside} for device in federation.devices]
    summary["overhead"] = federation.record.overhead()
    comparison = Comparison(
        settings.spec,
        summary,
        timelines,
        rows,
        federation.record.ue_rows(*which, settings.spec.cell.ues),
        {which: federation.params},
    )
    write_results(comparison, folder)


class _Teller:
    """Writes what the live table shows, not too often."""

    def __init__(self, folder: Folder, rounds: int) -> None:
        self._path, self._rounds, self._told_s = folder.path / "status.json", rounds, float("-inf")

    def __call__(
        self, federation: Federation, transport: Transport, origin_s: float, phase: str, at_once: bool = False
    ) -> None:
        if not at_once and time.monotonic() - self._told_s < STATUS_EVERY_S:
            return
        self._told_s = time.monotonic()
        record, quorum = federation.record, federation.protocol.quorum
        first = max(len(record.closed_s) - RECENT, 0)
        status: dict[str, Any] = {
            "process": os.getpid(),
            "phase": phase,
            "round": federation.round,
            "rounds": self._rounds,
            "time_s": transport.now() - origin_s,
            "devices": [dataclasses.asdict(line) for line in federation.status(transport.members())],
            "recent": [
                {
                    "round": k,
                    "time_s": record.closed_s[k],
                    "took_s": record.closed_s[k] - (record.closed_s[k - 1] if k else 0.0),
                    "ues": [merge.ue for merge in record.merges[k * quorum : (k + 1) * quorum]],
                }
                for k in range(first, len(record.closed_s))
            ],
        }
        write_text(self._path, json.dumps(status))


def _waiting(settings: Settings, here: list[int]) -> dict[str, Any]:
    return {
        "process": os.getpid(),
        "phase": f"waiting for devices: {len(here)} of {settings.spec.cell.ues} are here",
        "round": 0,
        "rounds": settings.rounds,
        "time_s": 0.0,
        "devices": [],
        "recent": [],
    }
