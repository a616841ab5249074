"""How does a federation run from its first round to its run folder?"""

import time
from collections.abc import Callable
from pathlib import Path

from perfeds2.deployment.checkpoint import load_checkpoint, save_checkpoint
from perfeds2.deployment.federation import Federation
from perfeds2.deployment.metrics import Metrics, exposed
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.transport import Transport
from perfeds2.errors import InputError
from perfeds2.runs.comparison import Comparison, write_results
from perfeds2.runs.folder import Folder, alone, open_folder
from perfeds2.runs.summary import summarise

STATUS_EVERY_S = 0.5

Tell = Callable[[str], None]  # which phase it is in; the rest of the status is looked up


def serve(setup: Setup, transport: Transport, path: Path) -> Folder:
    """Run a federation, or go on with one that was killed, until its rounds are done and its folder is complete."""
    folder = open_folder(path, setup.spec)
    with alone(path):
        if not folder.finished:
            _serve(setup, transport, folder)
        if not (folder.path / "report.html").exists():
            from perfeds2.report.page import write_report

            write_report(folder.path)
    return folder


def _serve(setup: Setup, transport: Transport, folder: Folder) -> None:
    algorithm, first = setup.algorithm, dict(setup.first_params())
    federation = Federation(algorithm.protocol, algorithm.learner, first, transport, setup.ues, setup.rounds, setup.own)
    federation.log = lambda event: folder.log(event, round=federation.round)
    federation.origin_s = transport.now()
    metrics = Metrics(algorithm.protocol.quorum, sum(values.nbytes for values in first.values()))
    tell = _teller(federation, folder, metrics)
    if setup.own.log == "json":
        folder.log_json()
    with exposed(metrics, setup.own.metrics_port):
        _run(setup, federation, folder, tell)


def _run(setup: Setup, federation: Federation, folder: Folder, tell: Tell) -> None:
    transport = federation.transport
    started_unix = load_checkpoint(folder, federation)
    if started_unix is None:
        _gather(federation, tell)
        started_unix, elapsed_s = time.time(), 0.0
    else:
        # The clock went on while the server was away; should the machine's have been set back, ours is not.
        elapsed_s = max(time.time() - started_unix, federation.opened_s)
        folder.log(f"resumed: rounds 0 to {federation.round - 1} are in the checkpoint")
    federation.save = lambda state: save_checkpoint(folder, state, started_unix)
    federation.origin_s = transport.now() - elapsed_s
    while federation.round < setup.rounds:
        federation.step()
        tell("training")
    _evaluate(federation, tell)
    _finish(setup, federation, folder)
    federation.status("finished").write(folder.path)


def _gather(federation: Federation, tell: Tell) -> None:
    """Round 0 begins with everybody, or after a while with at least a quorum."""
    transport, quorum, everybody = federation.transport, federation.protocol.quorum, federation.ues
    here = len(transport.members())
    while here < everybody and (here < quorum or federation.time_s < federation.own.gather_s):
        tell(f"waiting for devices: {here} of {everybody} are here")
        transport.poll(STATUS_EVERY_S)
        here = len(transport.members())
    federation.log(f"started with {here} of {everybody} devices")


def _evaluate(federation: Federation, tell: Tell) -> None:
    """The last model, personalised, on every device that can be reached."""
    federation.want_no_more()
    ends_s, asked = federation.time_s + federation.own.evaluate_s, set()
    while federation.time_s < ends_s and federation.ask_everybody(asked):
        for reply in federation.transport.poll(STATUS_EVERY_S):
            federation.take(reply)
        tell("evaluating")


def _finish(setup: Setup, federation: Federation, folder: Folder) -> None:
    """Leave what a simulation leaves."""
    algorithm, record = setup.algorithm, federation.record
    which = (algorithm.name, setup.seed)
    rows, ue_rows = record.metric_rows(*which), record.ue_rows(*which, setup.ues)
    if not rows:
        raise InputError("no device evaluated any model; see events.log.")
    timelines = {which: federation.timeline()}
    summary = summarise(setup.spec, "federate", [algorithm], timelines, {which: rows})
    summary["devices"] = [{"refused": device.refused, "set_aside": device.set_aside} for device in federation.devices]
    summary["overhead"] = record.overhead()
    write_results(Comparison(setup.spec, summary, timelines, rows, ue_rows, {which: federation.params}), folder)


def _teller(federation: Federation, folder: Folder, metrics: Metrics) -> Tell:
    """Writes what the live table shows and monitors see, not too often."""
    told_s = float("-inf")

    def tell(phase: str) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= STATUS_EVERY_S:
            told_s = time.monotonic()
            status = federation.status(phase)
            status.write(folder.path)
            metrics.tell(status, federation.record, federation.next_ticket)

    return tell
