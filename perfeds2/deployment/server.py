"""Run a federation from its first round to a complete run folder."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path

from perfeds2.deployment import noise_ledger
from perfeds2.deployment.audit import HEAD, LogError, rounds_in, seal
from perfeds2.deployment.checkpoint import Checkpoints, Write
from perfeds2.deployment.edge import Backhaul, Edge, recall_jobs, write_adoptions
from perfeds2.deployment.federation import Federation
from perfeds2.deployment.lease import Lease, LeaseLostError
from perfeds2.deployment.metrics import DaysLeft, Metrics, exposed
from perfeds2.deployment.record import write_laps
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.status import PAUSED, SHOWN, STATES, STOPPED, DeviceStatus, Status
from perfeds2.deployment.transport import Transport
from perfeds2.errors import InputError
from perfeds2.files import ROOM_EVERY_S, retry_while_full
from perfeds2.runs.comparison import Comparison, write_results
from perfeds2.runs.folder import LOG, Folder, claimed, open_folder
from perfeds2.runs.notes import robustness
from perfeds2.runs.table import summarise
from perfeds2.runs.trainer import facts_of
from perfeds2.spec.privacy import losses_at, losses_of
from perfeds2.timeline.protocol import IDLE

STATUS_EVERY_S = 0.5
NOTICED_S = 20.0  # until it is certain that a broker delivers nothing: a heartbeat, and the wait for it
EXCHANGE_EVERY_S = 0.05
RECENT = 12  # rounds shown in the live table
CLAIM_WITHIN_S = 15.0  # the process that asked for this run may still hold its folder

Tell = Callable[[str], None]  # called with the current phase


def serve(
    setup: Setup,
    transport: Transport,
    path: Path,
    backhaul: Backhaul | None = None,
    lease: Lease | None = None,
    days_left: DaysLeft = dict,
    *,
    wait_for_all: bool = False,
    notes: Sequence[str] = (),
) -> Folder:
    """Run a federation, or resume one that was killed, until its rounds are done and its folder is complete.

    The folder is claimed before anything is written, so another server that uses it is not disturbed.

    Args:
        setup: The federation's settings.
        transport: The connection to the devices.
        path: The run's folder.
        backhaul: The connection of an edge to the cloud.
        lease: The server's lease, without which it stops writing.
        days_left: Returns when certificates expire, for the metrics.
        wait_for_all: Start only with every device, and fail if one cannot take part.
        notes: What to log at the start.

    Returns:
        The complete run folder.

    Raises:
        InputError: Another process uses the folder, or there were too few devices for too long.
    """
    with ExitStack() as stack:
        if lease is not None and lease.stolen:  # its last server may have been stopped with the lock
            claim = retry_while_full(lambda: open_folder(path, setup.server_spec))
        else:
            claim = retry_while_full(lambda: stack.enter_context(claimed(path, setup.server_spec, CLAIM_WITHIN_S)))
        folder = replace(claim, chained=True)
        if not folder.finished:
            _serve(setup, transport, folder, wait_for_all, lease, days_left, backhaul, notes)
        retry_while_full(lambda: seal(folder))
        if not (folder.path / "report.html").exists():
            from perfeds2.report.run import write_report

            retry_while_full(lambda: write_report(folder.path))
    return folder


def _serve(
    setup: Setup,
    transport: Transport,
    folder: Folder,
    wait_for_all: bool,
    lease: Lease | None,
    days_left: DaysLeft,
    backhaul: Backhaul | None,
    notes: Sequence[str],
) -> None:
    algorithm, first = setup.algorithm, dict(setup.first_params())
    own = setup.own.with_(job_s=0.0) if setup.is_cloud else setup.own  # edges may take their time
    federation = Federation(
        algorithm.protocol,
        algorithm.learner,
        first,
        transport,
        setup.ues,
        setup.rounds,
        own,
        adopted=None if backhaul is None else first,
        losses=setup.losses,
        schedule=setup.schedule,
        secure=bool(setup.spec.privacy.secure_aggregation),
        encoding=setup.encoding,
    )
    metrics = Metrics(sum(values.nbytes for values in first.values()), days_left)
    write = _writer(federation, folder, metrics, lease)

    def log(event: str) -> None:
        round_ = federation.round - event.startswith("round ")  # a round is logged when the next one is open
        write(lambda: folder.log(event, round=round_))

    federation.log = log
    federation.origin_s = transport.now()
    tell, checkpoints = _status_writer(federation, folder, metrics, write), Checkpoints(folder, write)
    if setup.own.log == "json":
        write(folder.log_json)
    robust = robustness(setup.server_spec, algorithm.name, algorithm.protocol.quorum, always=True)
    for each in (*notes, *robust, *filter(None, [destroyable(setup), hasty(setup)])):
        federation.log(f"note: {each}")
    try:
        with exposed(metrics, setup.own.metrics_port):
            edge = _play(setup, federation, checkpoints, tell, wait_for_all, backhaul)
            _evaluate(federation, tell)
    except LeaseLostError:
        raise
    except InputError as error:  # too few devices; what was merged is on disk
        federation.log(f"stopped: {error}")
        federation.warning = str(error)
        status_of(federation, STOPPED).write(folder.path)
        raise
    write(lambda: _finish(setup, federation, folder))
    if edge is not None:
        edge.finish()
    status_of(federation, "finished").write(folder.path)


def hasty(setup: Setup) -> str | None:
    """Return a note if jobs may time out before the server notices that the broker delivers nothing."""
    if not 0 < setup.own.job_s < NOTICED_S:
        return None
    return f"--job-s {setup.own.job_s:g} is shorter than the {NOTICED_S:g} s until a silent broker is noticed; devices may be blamed for it."


def destroyable(setup: Setup) -> str | None:
    """Return a note if one device can destroy the model; None if the merge is robust, or too few updates are merged."""
    from perfeds2.learning.methods import ROBUST
    from perfeds2.learning.robust import LEAST

    algorithm = setup.algorithm
    merge = setup.server_spec.learning_of(algorithm.name).merge
    if setup.is_cloud or algorithm.protocol.quorum < LEAST or (merge is not None and merge.text in ROBUST):
        return None
    way = "leave out --secure-aggregation and add --merge" if setup.spec.privacy.secure_aggregation else "--merge"
    return f"one device that sends false updates can destroy this model; {way} trimmed-mean prevents that."


def _play(
    setup: Setup,
    federation: Federation,
    checkpoints: Checkpoints,
    tell: Tell,
    wait_for_all: bool,
    backhaul: Backhaul | None,
) -> Edge | None:
    """Run the rounds that are left. Those of an edge end when the cloud says so."""
    transport = federation.transport
    started_unix = checkpoints.load(federation)
    new, path = started_unix is None, checkpoints.folder.path
    learner = setup.algorithm.learner
    federation.learner = retry_while_full(lambda: noise_ledger.start(learner, path, federation.round, new=new))
    if started_unix is None:
        _gather(federation, tell, wait_for_all)
        started_unix, elapsed_s = time.time(), 0.0
        checkpoints.save(federation, started_unix)  # otherwise a crash in round 0 would reuse tickets
        federation.log(f"started with {federation.crew.usable} of {federation.ues} devices")
    else:
        # The run's clock went on while the server was down. It never runs back, even if the system clock does.
        elapsed_s = max(time.time() - started_unix, federation.opened_s)
        _log_missing(federation, checkpoints.folder)
        closed = f"rounds 0 to {federation.round - 1} are" if federation.round else "no round is"
        federation.log(f"resumed: {closed} in the checkpoint")

    def save(state: Federation) -> None:
        checkpoints.save(state, started_unix)
        retry_while_full(lambda: noise_ledger.reach(learner, path, state.round))

    federation.save = save
    federation.origin_s = transport.now() - elapsed_s
    if setup.is_cloud and not new:
        recall_jobs(federation)
    if backhaul is None:
        while federation.round < federation.rounds:
            federation.step()
            tell("training")
        return None
    edge = Edge(federation, backhaul, setup.spec.cells.edge_rounds or 1)
    while edge.last is None:
        edge.exchange()
        federation.step(EXCHANGE_EVERY_S)
        tell("training" if federation.round < federation.rounds else "waiting for the cloud")
    return edge


def _log_missing(federation: Federation, folder: Folder) -> None:
    """Log the rounds that were saved by a server that was killed before it logged them."""
    try:
        logged = len(rounds_in((folder.path / LOG).read_text(encoding="utf-8").split("\n")))
    except (OSError, ValueError, LogError):  # for perfeds2 federate verify to find
        return
    for number in range(logged, federation.round):
        federation.log(federation.record.sentence(number, federation.protocol.quorum))


def _gather(federation: Federation, tell: Tell, wait_for_all: bool) -> None:
    """Wait for all devices; after ``gather_s`` a quorum is enough, unless all must come."""
    own, quorum, ues = federation.own, federation.protocol.quorum, federation.ues
    federation.look()
    while (here := federation.crew.usable) < ues and (
        wait_for_all or here < quorum or federation.time_s < own.gather_s
    ):
        for ue, why in federation.dispatcher.troubles.items():
            if wait_for_all and ue is not None:
                raise InputError(f"device {ue} cannot take part: {why.partition('; see')[0]}; see logs/devices.log.")
        if own.wait_s and federation.time_s > max(own.wait_s, own.gather_s):
            raise InputError(
                f"{here} of {ues} devices came within {federation.time_s:.0f} s (--wait-s) and round 0 needs "
                f"{ues if wait_for_all else quorum}; check that the devices run, then resume."
            )
        tell(f"waiting for devices: {here} of {ues} are here")
        federation.transport.poll(STATUS_EVERY_S)
        federation.look()


def _evaluate(federation: Federation, tell: Tell) -> None:
    """Evaluate the last model, personalised, on every device that can be reached."""
    end_training(federation)
    ends_s, asked = federation.time_s + federation.own.evaluate_s, set()
    while federation.time_s < ends_s and request_evaluations(federation, asked):
        for reply in federation.transport.poll(STATUS_EVERY_S):
            federation.take(reply)
        tell("evaluating")


def end_training(federation: Federation) -> None:
    """Drop waiting updates, and cancel the jobs that are still running."""
    federation.warning = None
    for device in federation.devices:
        device.version, device.reply, device.wanted = IDLE, None, False
        federation.transport.cancel(device.ue)
        federation.crew.file(device)


def request_evaluations(federation: Federation, asked: set[int]) -> bool:
    """Send the last model to each idle device once for evaluation; return whether any is still at work."""
    federation.look()
    states = federation.crew.states
    for ue in sorted((states["idle"].keys() | states["spent"].keys()) - asked):
        federation.dispatch(federation.crew[ue], "evaluate")
        asked.add(ue)
    return federation.crew.count("working", "finishing") > 0


def _finish(setup: Setup, federation: Federation, folder: Folder) -> None:
    """Write the same results as a simulation."""
    algorithm, record = setup.algorithm, federation.record
    which = (algorithm.name, setup.seed)
    rows, ue_rows = record.metric_rows(*which), record.ue_rows(*which, setup.ues)
    if not rows:
        raise InputError("no device evaluated any model; see events.log.")
    timelines = {which: federation.timeline()}
    private = setup.spec.privacy, algorithm.learner, timelines[which]
    spent = losses_at(*private, [row["round"] for row in rows])
    rows = [row | cost for row, cost in zip(rows, spent, strict=True)]
    if (losses := losses_of(*private)) is not None:
        ue_rows = [row | {"epsilon": float(losses[row["ue"]])} for row in ue_rows]
    facts = {which: facts_of(setup.server_spec, algorithm, timelines[which], setup.seed, None)}
    summary = summarise(setup.server_spec, "federate", facts, {which: rows}, {which: ue_rows}, radio=False)
    summary["task"] = setup.name
    summary["notes"] = [*filter(None, [federation.ended]), *summary["notes"]]
    summary["took_part"] = len({row["ue"] for row in ue_rows if row["merges"]})
    summary["devices"] = [{"refused": device.refused, "set_aside": device.set_aside} for device in federation.devices]
    summary[HEAD] = folder.head()
    write_laps(folder.path, record.laps)
    if record.adoptions:
        write_adoptions(folder.path, record.adoptions)
    write_results(Comparison(setup.server_spec, summary, timelines, rows, ue_rows, {which: federation.params}), folder)


def _writer(federation: Federation, folder: Folder, metrics: Metrics, lease: Lease | None) -> Write:
    """Return a function that performs the server's writes while it holds its lease. It waits while the disk is full."""

    def write(what: Callable[[], None]) -> None:
        reasons = list[str]()

        def attempt() -> None:
            if lease is not None:
                lease.check()
            what()

        def paused(why: str) -> None:
            reasons.append(why)
            federation.warning, federation.dispatcher.reached_s = why, federation.time_s
            status = status_of(federation, PAUSED)
            status.write(folder.path)
            metrics.tell(status, federation.record)

        retry_while_full(attempt, paused)
        if reasons:
            federation.warning = None
            federation.log(f"paused for {len(reasons) * ROOM_EVERY_S:.0f} s: {reasons[0]}")

    return write


def _status_writer(federation: Federation, folder: Folder, metrics: Metrics, write: Write) -> Tell:
    """Return a function that updates status.json and the metrics, at most every ``STATUS_EVERY_S`` seconds."""
    told_s = float("-inf")

    def tell(phase: str) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= STATUS_EVERY_S:
            told_s = time.monotonic()
            status = status_of(federation, phase)
            write(lambda: status.write(folder.path))
            metrics.tell(status, federation.record)

    return tell


def status_of(federation: Federation, phase: str) -> Status:
    """Return the status. Of more than ``SHOWN`` devices, list a few per state, longest in it first."""
    crew, quorum, dispatcher = federation.crew, federation.protocol.quorum, federation.dispatcher
    few = (ue for state in STATES for ue in islice(crew.states[state], SHOWN // len(STATES)))
    shown = range(federation.ues) if federation.ues <= SHOWN else sorted(few)
    return Status(
        process=os.getpid(),
        phase=phase,
        round=federation.round,
        rounds=federation.rounds,
        time_s=federation.time_s,
        quorum=quorum,
        ues=federation.ues,
        states={state: crew.count(state) for state in STATES},
        devices=[DeviceStatus.model_validate(crew[ue]) for ue in shown],
        **crew.privacy(),
        recent=[federation.record.closed_round(k, quorum) for k in range(len(federation.record.closed_s))[-RECENT:]],
        jobs=dispatcher.sent,
        refused=dispatcher.refused,
        reasons=dict(dispatcher.reasons),
        broker=dispatcher.troubles.get(None),
        broker_failures=dispatcher.troubled[None],
        accuracy=federation.watch.mean,
        fall=federation.watch.fall,
        warning=federation.warning or federation.watch.alarm,
        troubles=[
            why if ue is None else f"device {ue}: {why}" for ue, why in islice(dispatcher.troubles.items(), SHOWN)
        ],
    )
