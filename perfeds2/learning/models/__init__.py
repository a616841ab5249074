"""What is trained. A new model is one file here, and one line below: a ``Model``, or what is called to make one.

It is called with what it names of the task: ``inputs`` (numbers of a sample), ``classes`` (how many
numbers it must say to one) and ``dtype`` (of a sample).
"""

from collections.abc import Callable, Mapping

from perfeds2.learning.models.lenet import CNN, LENET, LENET_RELU
from perfeds2.learning.models.lstm import LSTM, LSTM_LEAF
from perfeds2.learning.models.mlp import mlp
from perfeds2.learning.models.model import Model

MODELS: Mapping[str, Model | Callable[..., Model]] = {
    "mlp": mlp,
    "lenet5": LENET.fitting,
    "lenet5-relu": LENET_RELU.fitting,
    "cnn": CNN.fitting,
    "lstm": LSTM(),
    "lstm-leaf": LSTM_LEAF,
}
