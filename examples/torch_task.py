"""A PyTorch model and each device's own data for a federation (docs/how-to/torch.md).

perfeds2 federate local --devices 3 --quorum 2 --app-module examples/torch_task.py --device-data 'data/device-{}'
"""

import numpy as np
from torch import nn

from perfeds2.deployment import own_samples

sample_shape = (1, 8, 8)


def model():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))


def load_data(folder, device):  # noqa: ARG001 (each device has its own folder)
    samples = np.load(folder / "samples.npz")
    return own_samples(samples["x"], samples["y"])
