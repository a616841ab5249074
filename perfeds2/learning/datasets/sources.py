"""Where are the real data sets, and where do they come from?

Looked for in a given folder, in $PERFEDS2_DATA, then in the user's cache; there in a folder of the data set's name, or
right there. ``fetch`` downloads the official files, over HTTPS only, and checks them.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "PERFEDS2_DATA"


class DataMissing(ValueError):  # noqa: N818 (named for what is the case)
    """A data set is nowhere to be found; the message says what was looked for, where, and what to do."""


class FetchFailed(ValueError):  # noqa: N818 (named for what is the case)
    """A download did not work; the message is one sentence."""


@dataclass(frozen=True)
class Form:
    """One way a data set lies on a disk: the files it needs, each under any of its names."""

    name: str
    files: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Download:
    """One official file."""

    file: str
    urls: tuple[str, ...]  # tried in this order
    sha256: str | None  # None where nobody vouches for one: the content is checked instead


@dataclass(frozen=True)
class Source:
    """A data set: the forms we read, and the official files."""

    name: str
    forms: tuple[Form, ...]  # the quickest to read first
    downloads: tuple[Download, ...]
    terms: str
    not_read: tuple[str, ...] = ()  # files people may have of it, of which we read another version


@dataclass(frozen=True)
class Found:
    """A complete data set on this machine."""

    name: str
    form: str
    files: tuple[Path, ...]

    @property
    def folder(self) -> Path:
        return self.files[0].parent


@dataclass(frozen=True)
class Status:
    """What there is of a data set."""

    name: str
    found: Found | None  # None: not there, or not all of it
    missing: tuple[str, ...] = ()  # files that would complete it, where some of them are there
    official: bool = False  # every file has the official one's checksum
    looked_in: tuple[Path, ...] = field(default=(), repr=False)


def _idx(stem: str, dimensions: int) -> tuple[str, ...]:
    plain = (f"{stem}-idx{dimensions}-ubyte", f"{stem}.idx{dimensions}-ubyte", f"{stem}.idx")
    return tuple(f"{name}{ending}" for name in plain for ending in (".gz", ""))


def _mnist(file: str, sha256: str) -> Download:
    mirrors = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
    return Download(file, tuple(mirror + file for mirror in mirrors), sha256)


MNIST = Source(
    "mnist",
    (
        Form(
            "IDX files",
            (_idx("train-images", 3), _idx("train-labels", 1), _idx("t10k-images", 3), _idx("t10k-labels", 1)),
        ),
    ),
    (
        _mnist("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        _mnist("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        _mnist("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        _mnist("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    "copyright Y. LeCun and C. Cortes; generally given as CC BY-SA 3.0",
)
CIFAR100 = Source(
    "cifar100",
    (
        Form("official archive", (("cifar-100-binary.tar.gz", "cifar-100-binary.tar"),)),
        Form("npz parts", (*((f"train_{number}.npz",) for number in range(1, 6)), ("test.npz",))),
    ),
    (
        Download(
            "cifar-100-binary.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
    "no licence stated; free for research that cites A. Krizhevsky's report of 2009",
    not_read=("cifar-100-python.tar.gz", "cifar-100-python.tar"),  # pickles
)
SHAKESPEARE = Source(
    "shakespeare",
    (
        Form("LEAF's roles", (("leaf_roles.json.gz", "leaf_roles.json"),)),
        Form(
            "Project Gutenberg's text",
            (("raw_data.txt.gz", "raw_data.txt", "1994-01-100.zip", "100.txt", "100.txt.gz"),),
        ),
        Form("LEAF's all_data", (("all_data.json", "all_data.json.gz"),)),
    ),
    (
        Download(
            "1994-01-100.zip",  # the file LEAF reads
            (
                "https://www.gutenberg.org/files/100/old/old/1994-01-100.zip",
                "https://www.gutenberg.org/files/100/old/1994-01-100.zip",
            ),
            None,
        ),
    ),
    "copyright 1990-1993 World Library, Inc.; for personal use only, not to be used or distributed commercially",
)
SOURCES = {source.name: source for source in (MNIST, CIFAR100, SHAKESPEARE)}


def source(name: str) -> Source:
    if name not in SOURCES:
        raise DataMissing(f"{name!r} is no data set; expected one of {', '.join(SOURCES)}.")
    return SOURCES[name]


# ---- finding


def cache_folder() -> Path:
    """Where downloads go when nothing else is said."""
    import pooch

    return Path(pooch.os_cache("perfeds2"))


def folders(data_dir: Path | str | None = None) -> tuple[Path, ...]:
    """Where data sets are looked for, in this order."""
    given = [] if data_dir is None else [Path(data_dir).expanduser()]
    if given and not given[0].is_dir():
        raise DataMissing(f"--data-dir {data_dir} is not a folder; give the folder that holds the data sets.")
    variable = [Path(os.environ[VARIABLE]).expanduser()] if os.environ.get(VARIABLE) else []
    return tuple(dict.fromkeys([*given, *variable, cache_folder()]))


def find(name: str, data_dir: Path | str | None = None) -> Found:
    """The first complete copy of a data set."""
    wanted = source(name)
    now = _status(wanted, folders(data_dir))
    if now.found is not None:
        return now.found
    looked = ", ".join(map(str, now.looked_in))
    for path in (folder / file for base in now.looked_in for folder in (base / name, base) for file in wanted.not_read):
        if _is_file(path):
            raise DataMissing(
                f"{path} is not read; expected {wanted.downloads[0].file} beside it: get it with `perfeds2 data fetch {name}`."
            )
    what = f"{name} is incomplete ({', '.join(now.missing)} missing)" if now.missing else f"{name} was not found"
    raise DataMissing(
        f"{what}; looked in {looked}; get it with `perfeds2 data fetch {name}`, or say where it is with --data-dir."
    )


def status(data_dir: Path | str | None = None) -> list[Status]:
    """What is there of every data set. Reads the files once, to compare checksums."""
    where = folders(data_dir)
    return [_status(source, where, check=True) for source in SOURCES.values()]


def _status(source: Source, where: Sequence[Path], *, check: bool = False) -> Status:
    missing: tuple[str, ...] = ()
    for base in where:
        for folder in (base / source.name, base):
            for form in source.forms:
                files = [
                    next((folder / name for name in names if _is_file(folder / name)), None) for names in form.files
                ]
                there = [path for path in files if path is not None]
                if len(there) == len(files):
                    found = Found(source.name, form.name, tuple(there))
                    return Status(source.name, found, (), check and _official(source, found), tuple(where))
                if there and not missing:
                    missing = tuple(names[0] for names, path in zip(form.files, files, strict=True) if path is None)
    return Status(source.name, None, missing, False, tuple(where))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder we may not look into
        return False


def _official(source: Source, found: Found) -> bool:
    sums = {download.file: download.sha256 for download in source.downloads}
    return all(sums.get(path.name) is not None and sums[path.name] == _sha256(path) for path in found.files)


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


# ---- fetching

Watch = Callable[[str, int, int], None]  # a file's name, bytes so far, bytes in all (0: not known)


def fetch(
    name: str, to: Path | str | None = None, *, watch: Watch | None = None, downloader: Callable[..., Any] | None = None
) -> Path:
    """Download a data set's official files into the folder ``to``/name, by default in $PERFEDS2_DATA or the user's cache.

    What is already there and has the right checksum stays; a file takes its name only when it is complete and checked.
    Returns the folder. ``downloader`` is pooch's: called with an address, an open file and the pooch.
    """
    what = source(name)
    base = Path(to).expanduser() if to is not None else Path(os.environ.get(VARIABLE) or cache_folder()).expanduser()
    folder = base / name
    for download in what.downloads:
        _fetch_one(download, folder, watch, downloader)
    return folder


def _fetch_one(download: Download, folder: Path, watch: Watch | None, downloader: Callable[..., Any] | None) -> None:
    import pooch

    pooch.get_logger().setLevel("WARNING")
    known = None if download.sha256 is None else f"sha256:{download.sha256}"
    reasons = []
    for url in download.urls:
        assert url.startswith("https://")
        bar: Any = False if watch is None else _Bar(download.file, watch)
        get = downloader or pooch.HTTPDownloader(
            progressbar=bar, chunk_size=1 << 16, timeout=30, hooks={"response": _stay_with_https}
        )
        try:
            pooch.retrieve(url, known, fname=download.file, path=folder, downloader=get)
            if download.sha256 is None:
                check_roles(folder / download.file)
            return
        except (OSError, ValueError, RuntimeError) as error:  # requests' errors are OSErrors
            reasons.append(f"{url.split('/')[2]}: {_reason(error)}")
    raise FetchFailed(
        f"{download.file} could not be downloaded ({'; '.join(reasons)}); try again when online, or get it elsewhere "
        f"and put it into {folder}."
    )


def check_roles(path: Path) -> None:
    """See that a text is LEAF's edition of the plays; throw it away if not."""
    from perfeds2.learning.datasets.formats import DataBroken
    from perfeds2.learning.datasets.plays import WHOLE, count_roles, read_roles

    try:
        found = count_roles(read_roles(path))
    except DataBroken:
        path.unlink(missing_ok=True)
        raise
    if found != WHOLE:
        path.unlink(missing_ok=True)
        raise DataBroken(
            f"{path.name} has {found[0]} plays, {found[1]} roles and {found[2]} samples; LEAF's edition has {WHOLE[0]}, "
            f"{WHOLE[1]} and {WHOLE[2]}"
        )


def _stay_with_https(response: Any, *_: Any, **__: Any) -> None:
    """Called by requests for every answer: no detour over an open line."""
    following = response.headers.get("location", "")
    if not response.url.startswith("https://") or following.startswith("http://"):
        raise OSError(f"led to an address without HTTPS ({following or response.url})")


def _reason(error: Exception) -> str:
    """The gist of an error in a few words."""
    import requests

    match error:
        case requests.exceptions.Timeout():
            return "no answer in time"
        case requests.exceptions.ConnectionError():
            return "no connection"
        case requests.exceptions.HTTPError() if error.response is not None:
            return f"answered {error.response.status_code}"
        case ValueError() if "hash" in str(error).lower():
            return "the file has another checksum than the official one"
        case OSError() if error.strerror:
            return error.strerror
    return (" ".join(str(error).split()) or type(error).__name__)[:200].rstrip(".")


class _Bar:
    """What pooch tells a progress bar, told on."""

    def __init__(self, file: str, watch: Watch) -> None:
        self.file, self.watch, self.total, self.done = file, watch, 0, 0

    def update(self, size: int) -> None:
        self.done += size
        self.watch(self.file, min(self.done, self.total) if self.total else self.done, self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass
