"""List the models. A new one is a file here and a line below: a ``Model``, or a function that makes one.

A function is called with those of these arguments that it names: ``inputs`` (numbers per sample), ``classes`` (numbers
of outputs per sample) and ``dtype`` (of a sample). Its other parameters, numbers with a default, are its settings:
``--model transformer:layers=4,width=64``.
"""

from collections.abc import Callable, Mapping
from functools import partial

from perfeds2.learning.models.lenet import CNN, LENET, LENET_RELU
from perfeds2.learning.models.lstm import LSTM, LSTM_LEAF
from perfeds2.learning.models.mlp import mlp
from perfeds2.learning.models.model import Model
from perfeds2.learning.models.resnet import resnet18_gn
from perfeds2.learning.models.transformer import transformer

MODELS: Mapping[str, Model | Callable[..., Model]] = {
    "mlp": mlp,  # One hidden layer of 100, ReLU: 79,510 parameters on MNIST. Digits and synthetic data have 32
    "mlp-norm": partial(mlp, normalised=True),  # The same with a normalised hidden layer, for FedBN
    "lenet5": LENET.fitting,  # LeNet-5 as published: tanh, 2×2 averages; the default for CIFAR-100 (69,656 parameters)
    "lenet5-relu": LENET_RELU.fitting,  # The same with ReLU and max pooling; its personalised training may diverge
    "cnn": CNN.fitting,  # 32 and 64 maps, a dense layer of 512, ReLU, max pooling: 924,708 parameters
    "resnet18-gn": resnet18_gn,
    "lstm": LSTM(),  # An embedding of 8, a layer of 128, a dense layer on its last state; the default for Shakespeare
    "lstm-leaf": LSTM_LEAF,  # LEAF's: two layers of 256, 817,872 parameters
    "transformer": transformer,
}
