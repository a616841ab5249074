"""PerFedS2's rounds on Flower's grid: the first A updates close a round, and only their senders get the new model.

``close_round``, ``end_jobs`` and ``assign_model`` are the simulator's, so the recorded timeline replays in the simulator to the same
weights.
"""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from perfeds2.deployment import (
    MergedUpdate,
    Record,
    Setup,
    assign_model,
    close_round,
    end_jobs,
    form_of,
    merged,
    open_server,
    save_timelines,
    wrong_update,
)
from perfeds2.runs import save_arrays

POLL_S = 0.1

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    run(grid, str(context.run_config["settings"]), Path(str(context.run_config["out"])))


def run(grid: Grid, settings: str, out: Path) -> None:
    """Train, evaluate, and write ``model.safetensors`` and ``timeline.npz``."""
    rounds = Rounds(grid, settings)
    rounds.train()
    out.mkdir(parents=True, exist_ok=True)
    save_arrays(out / "model.safetensors", rounds.params)
    timeline = rounds.record.timeline(
        rounds.setup.ues, rounds.protocol.quorum, rounds.server.versions, rounds.arrival_s
    )
    save_timelines(out / "timeline.npz", {"": timeline})
    for name, value in rounds.evaluate().items():
        print(f"{name}: {value:.4f}")


class Rounds:
    """The server of one run."""

    def __init__(self, grid: Grid, settings: str) -> None:
        self.grid, self.settings, self.setup = grid, settings, Setup.from_toml(settings)
        algorithm = self.setup.algorithm
        self.protocol, self.learner = algorithm.protocol, algorithm.learner
        self.params = dict(self.setup.first_params())
        self.merging = self.learner.merge.init(self.params, self.setup.ues)
        self.server = open_server(self.setup.ues, self.protocol)
        self.nodes = self.wait_for_nodes()
        self.jobs: dict[str, int] = {}  # UE by message id; abandoned jobs are removed
        self.updates: dict[int, dict[str, np.ndarray]] = {}  # arrived but not merged
        self.arrival_s = np.full(self.setup.ues, np.inf)
        self.record = Record()
        self.started_s = time.monotonic()

    def wait_for_nodes(self) -> list[int]:
        """Return one node id per UE, once enough nodes are connected."""
        while len(nodes := sorted(self.grid.get_node_ids())) < self.setup.ues:
            time.sleep(POLL_S)
        return nodes[: self.setup.ues]

    def train(self) -> None:
        self.send(np.flatnonzero(self.server.versions == 0).tolist())
        while self.server.round < self.setup.rounds:
            self.receive()
            self.close()

    def send(self, ues: list[int]) -> None:
        """Send the newest model to some UEs, and abandon their previous jobs."""
        self.jobs = {message: ue for message, ue in self.jobs.items() if ue not in ues}
        for ue in ues:
            self.updates.pop(ue, None)
            self.arrival_s[ue] = np.inf
        sent = self.grid.push_messages([self.message(ue, MessageType.TRAIN) for ue in ues])
        self.jobs |= dict(zip(sent, ues, strict=True))

    def message(self, ue: int, kind: str) -> Message:
        model = ArrayRecord({name: Array(values) for name, values in self.params.items()})
        job = ConfigRecord({"settings": self.settings, "ue": ue, "version": self.server.round})
        return Message(RecordDict({"model": model, "job": job}), self.nodes[ue], kind)

    def receive(self) -> None:
        """Collect the replies. A failed or malformed reply is not merged, and its UE gets a new job."""
        time.sleep(POLL_S)
        failed = []
        for reply in self.grid.pull_messages(list(self.jobs)):
            ue = self.jobs.pop(reply.metadata.reply_to_message_id)
            update = None
            if not reply.has_error() and "update" in reply.content:
                update = {name: array.numpy() for name, array in reply.content["update"].items()}
            if update is None or (why := wrong_update(update, form_of(self.params))) is not None:
                print(f"refused: UE {ue} {'has no update' if update is None else why}")
                failed.append(ue)
            else:
                self.updates[ue], self.arrival_s[ue] = update, time.monotonic() - self.started_s
        for ue in failed:
            self.server.versions[ue] = self.server.round
        if failed:
            self.send(failed)

    def close(self) -> None:
        """Close the open round if enough updates have arrived."""
        closing = close_round(self.server, self.arrival_s, self.protocol)
        if closing.time_s == np.inf:
            return
        ues, number = closing.merged.tolist(), self.server.round
        versions = self.server.versions[ues].tolist()
        updates, senders = (
            [self.updates[ue] for ue in ues],
            [(ue, number - v) for ue, v in zip(ues, versions, strict=True)],
        )
        self.params, self.merging = merged(self.params, updates, self.learner, self.merging, senders)
        for ue, version in zip(ues, versions, strict=True):
            self.record.merges.append(MergedUpdate(number, ue, version, 0, float(self.arrival_s[ue])))
        self.record.closed_s.append(closing.time_s)
        self.server, handed = assign_model(end_jobs(self.server, closing, self.protocol)[0], self.protocol)
        print(f"round {number} closed at {closing.time_s:.2f} s: UEs {ues}")
        if self.server.round < self.setup.rounds:
            self.send(handed.tolist())

    def evaluate(self) -> dict[str, float]:
        """Return the nodes' mean metrics for the last model."""
        messages = [self.message(ue, MessageType.EVALUATE) for ue in range(self.setup.ues)]
        replies = [reply for reply in self.grid.send_and_receive(messages) if not reply.has_error()]
        said = [dict(reply.content["metrics"]) for reply in replies]
        return {name: float(np.mean([each[name] for each in said])) for name in said[0]} if said else {}
