"""Compute PerFedS2's update on a node, and evaluate a model on the node's data."""

from functools import cache

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from perfeds2 import Task
from perfeds2.deployment import Setup, StartModel, compute_job, evaluate_here

app = ClientApp()


@cache
def prepare(settings: str) -> tuple[Setup, Task]:
    """Validate the settings, which come from the network, and load the data once."""
    setup = Setup.from_toml(settings)
    return setup, setup.task(0)


@app.train()
def train(message: Message, context: Context) -> Message:  # noqa: ARG001 (Flower's signature)
    job = message.content["job"]
    setup, task = prepare(str(job["settings"]))
    update = compute_job(setup, task, StartModel(model_in(message)), int(job["ue"]), int(job["version"]))[0]
    arrays = ArrayRecord({name: Array(values) for name, values in update.items()})
    return Message(RecordDict({"update": arrays}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:  # noqa: ARG001 (Flower's signature)
    job = message.content["job"]
    setup, task = prepare(str(job["settings"]))
    metrics = evaluate_here(setup, task, model_in(message), int(job["ue"]))
    return Message(RecordDict({"metrics": MetricRecord(dict(metrics))}), reply_to=message)


def model_in(message: Message) -> dict:
    return {name: array.numpy() for name, array in message.content["model"].items()}
