"""Where samples come from. A new task is one file here, and one line below."""

from perfeds2.learning.datasets.cifar100 import cifar100
from perfeds2.learning.datasets.digits import digits
from perfeds2.learning.datasets.mnist import mnist
from perfeds2.learning.datasets.shakespeare import shakespeare
from perfeds2.learning.datasets.synthetic import synthetic
from perfeds2.learning.task import Recipe

TASKS: dict[str, Recipe] = {
    "digits": digits,
    "synthetic": synthetic,
    "mnist": mnist,
    "cifar100": cifar100,
    "shakespeare": shakespeare,
}
