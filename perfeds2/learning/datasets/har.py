"""UCI's human activities: 30 persons carry a phone, and 561 features of 2.56 s tell what they do.

Each person is a UE, and a quarter of a person's samples is the test part. The data set's own division into training and
test persons is not used.
"""

import io
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float32, Int

from perfeds2.learning.data import Shards
from perfeds2.learning.files.formats import DataBroken, everything, naming, read_bytes
from perfeds2.learning.files.sources import Download, Form, Found, Source
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.partition import Natural, Samples, Split
from perfeds2.learning.task import Recipe

FEATURES = 561
CLASSES = 6  # walking, upstairs, downstairs, sitting, standing, lying
INNER = "UCI HAR Dataset.zip"  # the archive in the official one, and the name of older downloads
HAR = Source(
    "har",
    (Form("official archive", (("human+activity+recognition+using+smartphones.zip", "har.zip", INNER),)),),
    (
        Download(
            "human+activity+recognition+using+smartphones.zip",
            ("https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",),
            "c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
        ),
    ),
    "CC BY 4.0; cite Anguita et al., ESANN 2013",
)


@lru_cache(maxsize=1)  # shared by all seeds: reading takes a second
def read_har(
    files: Sequence[Path],
) -> tuple[Float32[np.ndarray, "N x"], Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
    """Return the features, the activity from 0 and the person from 0 of each sample of both halves."""
    (path,) = files
    with naming(path):
        texts = _texts(read_bytes(path))
        x = np.concatenate([_numbers(texts[f"X_{half}.txt"]).reshape(-1, FEATURES) for half in ("train", "test")])
        y, person = (
            np.concatenate([_numbers(texts[f"{what}_{half}.txt"]) for half in ("train", "test")]).astype(int) - 1
            for what in ("y", "subject")
        )
        if not 0 < len(x) == len(y) == len(person):
            raise DataBroken(f"holds {len(x)} samples, {len(y)} labels and {len(person)} persons.")
        if not np.isfinite(x).all() or y.min() < 0 or y.max() >= CLASSES or person.min() < 0:
            raise DataBroken(f"holds values that are not finite, or labels outside 1 to {CLASSES}.")
        return x.astype(np.float32), y, np.unique(person, return_inverse=True)[1]


def _texts(content: bytes) -> dict[str, bytes]:
    """Return the six texts of features, labels and persons by name, from the archive or from the one inside it."""
    wanted = {f"{what}_{half}.txt" for what in ("X", "y", "subject") for half in ("train", "test")}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name.rpartition("/")[2]: name for name in archive.namelist() if "__MACOSX" not in name}
        if INNER in members:
            with archive.open(members[INNER]) as file:
                return _texts(everything(file))
        missing = sorted(wanted - members.keys())
        if missing:
            raise DataBroken(f"lacks {' and '.join(missing)}.")
        texts = {}
        for name in wanted:
            with archive.open(members[name]) as file:
                texts[name] = everything(file)
        return texts


def _numbers(text: bytes) -> Float32[np.ndarray, " n"]:
    return np.array(text.split(), np.float32)


def har_data(ues: int, split: Split, seed: int, found: Found) -> Shards:
    x, y, person = read_har(found.files)
    names = tuple(f"person {number + 1}" for number in range(person.max() + 1))
    return Shards.of(x, y, split(Samples.of(y, owners=person, names=names), ues, seed))


har = Recipe(
    "har",
    MLP((FEATURES, 100, CLASSES)),
    har_data,
    jax.ShapeDtypeStruct((FEATURES,), np.float32),
    {"task": {"split": str(Natural())}, "cell": {"ues": 30}, "run": {"horizon_s": 600.0}},
    source=HAR,
)
