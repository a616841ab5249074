"""Time rounds in pfl-research: its federated averaging and simulated backend, one local step, no evaluation."""

import numpy as np
import torch
import workload as work
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import get_default_device
from pfl.model.pytorch import PyTorchModel
from torch.nn.functional import cross_entropy


class Network(torch.nn.Module):
    """A network with the two methods that pfl requires of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(work.FEATURES, work.HIDDEN), torch.nn.ReLU(), torch.nn.Linear(work.HIDDEN, work.CLASSES)
        )

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:  # noqa: A002, ARG002 (theirs)
        return cross_entropy(self.layers(x), y)

    def metrics(self, *_: torch.Tensor, **__: bool) -> dict:
        return {}


def main() -> None:
    given = work.options()
    torch.manual_seed(given.seed)
    np.random.seed(given.seed)  # noqa: NPY002 (pfl draws from it)
    random = np.random.default_rng(given.seed)
    device = get_default_device()  # pfl's choice: a GPU if there is one
    x, y = (torch.from_numpy(a).to(device) for a in work.data(given.seed))

    def todays(ue: int) -> Dataset:
        """Return a UE's data set for one round: one batch, so that the local step sees 40 fresh samples."""
        at = torch.from_numpy(random.integers(0, work.SAMPLES, work.BATCH)).to(device)
        return Dataset((x[ue, at], y[ue, at]), user_id=str(ue))

    users = FederatedDataset(todays, get_user_sampler("random", list(range(work.UES))))
    backend = SimulatedBackend(training_data=users, val_data=users)
    network = Network().to(device)
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    local = NNTrainHyperParams(local_batch_size=work.BATCH, local_num_epochs=1, local_learning_rate=work.BETA)

    def play(rounds: int) -> None:
        steps = NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=work.QUORUM,
            val_cohort_size=0,
        )
        FederatedAveraging().run(steps, backend, model, local, send_metrics_to_platform=False)

    def weights() -> list[np.ndarray]:
        return [w.detach().cpu().numpy().T for w in network.parameters()]

    work.measure("pfl-research", ["pfl", "torch"], play, weights, given.rounds, given.seed)


if __name__ == "__main__":
    main()
