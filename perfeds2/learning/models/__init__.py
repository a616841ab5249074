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
    "mlp": mlp,
    "mlp-norm": partial(mlp, normalised=True),
    "lenet5": LENET.fitting,
    "lenet5-relu": LENET_RELU.fitting,
    "cnn": CNN.fitting,
    "resnet18-gn": resnet18_gn,
    "lstm": LSTM(),
    "lstm-leaf": LSTM_LEAF,
    "transformer": transformer,
}
