"""Fashion-MNIST: 70,000 pictures of clothes in MNIST's format, and MNIST's network."""

from perfeds2.learning.datasets.images import image_recipe
from perfeds2.learning.datasets.mnist import NETWORK, files_like_mnist, read_mnist
from perfeds2.learning.files.sources import Form, Source

ADDRESSES = (
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
)
NAMES, DOWNLOADS = files_like_mnist(
    ADDRESSES,
    (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
)
FASHION_MNIST = Source(
    "fashion-mnist",
    (Form("IDX files", NAMES),),
    DOWNLOADS,
    "MIT; copyright 2017 Zalando SE",
    in_own_folder=True,  # its files have the names of MNIST's
)

fashion_mnist = image_recipe(FASHION_MNIST, NETWORK, 784, read_mnist, {"run": {"horizon_s": 600.0}})
