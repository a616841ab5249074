"""List the built-in tasks. A new task is one file here and one line in ``TASKS``."""

from perfeds2.errors import InputError
from perfeds2.learning.datasets.cifar import cifar10, cifar100
from perfeds2.learning.datasets.digits import digits
from perfeds2.learning.datasets.fashion_mnist import fashion_mnist
from perfeds2.learning.datasets.femnist import femnist
from perfeds2.learning.datasets.har import har
from perfeds2.learning.datasets.mnist import mnist
from perfeds2.learning.datasets.shakespeare import shakespeare
from perfeds2.learning.datasets.synthetic import synthetic
from perfeds2.learning.files.sources import Source
from perfeds2.learning.task import Recipe

TASKS: dict[str, Recipe] = {
    "digits": digits,
    "synthetic": synthetic,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "femnist": femnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "har": har,
    "shakespeare": shakespeare,
}


def sources() -> dict[str, Source]:
    """Return the data sets that can be downloaded, by name."""
    return {name: recipe.source for name, recipe in TASKS.items() if recipe.source is not None}


def source_of(name: str) -> Source:
    """Return the source of a data set by its name."""
    known = sources()
    if name not in known:
        raise InputError(f"{name!r} is not a data set; expected one of {', '.join(known)}.")
    return known[name]
