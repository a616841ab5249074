"""MNIST: 70,000 handwritten digits of 28×28 pixels, and a 784-100-10 network."""

from collections.abc import Sequence
from pathlib import Path

from perfeds2.learning.datasets.images import Images, image_recipe, labelled
from perfeds2.learning.files.formats import naming, read_idx
from perfeds2.learning.files.sources import Download, Form, Source
from perfeds2.learning.models.mlp import MLP

FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
NETWORK = MLP((784, 100, 10), input_scale=255)


def files_like_mnist(
    addresses: Sequence[str], sums: Sequence[str]
) -> tuple[tuple[tuple[str, ...], ...], tuple[Download, ...]]:
    """Return the names that MNIST's four files may have, and their downloads with these SHA-256 sums."""
    downloads = (
        Download(file, tuple(address + file for address in addresses), sha256)
        for file, sha256 in zip(FILES, sums, strict=True)
    )
    return tuple(map(_names, FILES)), tuple(downloads)


def _names(file: str) -> tuple[str, ...]:
    """Return the names a file may have: gzipped or not, with a hyphen or a dot before the format."""
    return tuple(name.removesuffix(end) for name in (file, file.replace("-idx", ".idx")) for end in ("", ".gz"))


NAMES, DOWNLOADS = files_like_mnist(
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)
MNIST = Source(
    "mnist",
    (Form("IDX files", NAMES),),
    DOWNLOADS,
    "copyright Y. LeCun and C. Cortes; generally given as CC BY-SA 3.0",
)


def read_mnist(files: Sequence[Path]) -> Images:
    """Read four IDX files, gzipped or not: training images and labels, test images and labels."""
    halves = []
    for images, labels in (files[:2], files[2:]):
        x, y = read_idx(images, 3), read_idx(labels, 1)
        with naming(images.parent):
            halves += labelled(x, y, (28, 28), 10)
    return Images(*halves)


mnist = image_recipe(MNIST, NETWORK, 784, read_mnist, {"run": {"horizon_s": 600.0}})
