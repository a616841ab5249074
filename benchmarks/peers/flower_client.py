"""A Flower node's work in a round, in its own module so that Ray's workers import it once and keep the data."""

from functools import cache

import torch
import workload as work
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

client = ClientApp()


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(work.FEATURES, work.HIDDEN), torch.nn.ReLU(), torch.nn.Linear(work.HIDDEN, work.CLASSES)
    )


@cache
def known(seed: int) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """Return the model and data, created once per worker."""
    x, y = map(torch.from_numpy, work.data(seed))
    return network(), x, y


@client.train()
def train(message: Message, context: Context) -> Message:
    model, x, y = known(int(message.content["config"]["seed"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    ue, at = int(context.node_config["partition-id"]), torch.randint(work.SAMPLES, (work.BATCH,))
    optimiser = torch.optim.SGD(model.parameters(), lr=work.BETA)
    optimiser.zero_grad()
    cross_entropy(model(x[ue, at]), y[ue, at]).backward()
    optimiser.step()
    answer = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": work.BATCH})}
    return Message(content=RecordDict(answer), reply_to=message)
