"""Find and download real data sets.

A data set is looked for in the given folder, in $PERFEDS2_DATA, then in the user's cache; in each, first in a
subfolder with its name. ``fetch`` downloads the official files over HTTPS and checks them.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfeds2.errors import InputError
from perfeds2.learning.files.formats import DataBroken

VARIABLE = "PERFEDS2_DATA"
PIECE_BYTES = 1 << 16  # of a download, written at once


@dataclass(frozen=True)
class Form:
    """One way to store a data set: the files it needs, each with the names it may have."""

    name: str
    files: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Download:
    """One official file."""

    file: str
    urls: tuple[str, ...]  # tried in this order
    sha256: str | None  # None if the publisher gives none: ``Source.check`` reads the content instead


@dataclass(frozen=True)
class Source:
    """Where a data set comes from, and the forms in which it can be read."""

    name: str
    forms: tuple[Form, ...]  # fastest to read first
    downloads: tuple[Download, ...]
    terms: str
    check: Callable[[Path], None] = lambda _: None  # raises DataBroken for a download with the wrong content
    in_own_folder: bool = False  # only look in folders with its name, because other data sets use its files' names


@dataclass(frozen=True)
class Found:
    """The copy of a data set on this machine."""

    source: Source
    form: str = ""
    files: tuple[Path, ...] = ()  # empty if the data set is missing or incomplete
    missing: tuple[str, ...] = ()  # files that would complete it, if some exist

    @property
    def folder(self) -> Path:
        return self.files[0].parent

    @property
    def official(self) -> bool:
        """Whether every file has the official checksum. Reads all files."""
        import pooch

        sums = {download.file: download.sha256 for download in self.source.downloads}
        return all(sums.get(path.name) == pooch.file_hash(str(path)) for path in self.files)


# ---- finding


def cache_folder() -> Path:
    """Return the default folder for downloads."""
    import pooch

    return Path(pooch.os_cache("perfeds2"))


def folders(data_dir: Path | str | None = None) -> tuple[Path, ...]:
    """Return the folders in which data sets are looked for, in order."""
    given = [] if data_dir is None else [Path(data_dir).expanduser()]
    if given and not given[0].is_dir():
        raise InputError(f"--data-dir {data_dir} is not a folder; give the folder that holds the data sets.")
    variable = [Path(os.environ[VARIABLE]).expanduser()] if os.environ.get(VARIABLE) else []
    return tuple(dict.fromkeys([*given, *variable, cache_folder()]))


def look_for(source: Source, data_dir: Path | str | None = None) -> Found:
    """Return the first complete copy of a data set, or what is missing."""
    missing: tuple[str, ...] = ()
    for folder in (each for base in folders(data_dir) for each in _places(source, base)):
        for form in source.forms:
            files = {names[0]: _first_file(folder, names) for names in form.files}
            found = tuple(path for path in files.values() if path is not None)
            if len(found) == len(files):
                return Found(source, form.name, found)
            if found and not missing:
                missing = tuple(name for name, path in files.items() if path is None)
    return Found(source, missing=missing)


def _places(source: Source, base: Path) -> tuple[Path, ...]:
    """Return where a data set may be in a folder: in a subfolder with its name, or in the folder itself."""
    if source.in_own_folder and base.name != source.name:
        return (base / source.name,)
    return base / source.name, base


def find(source: Source, data_dir: Path | str | None = None) -> Found:
    """Return the first complete copy of a data set.

    Raises:
        InputError: There is none. The message says which folders were searched and how to get the data set.
    """
    found, name = look_for(source, data_dir), source.name
    if found.files:
        return found
    what = f"is incomplete ({', '.join(found.missing)} missing)" if found.missing else "was not found"
    looked = ", ".join(map(str, folders(data_dir)))
    raise InputError(
        f"{name} {what}; looked in {looked}; get it with `perfeds2 data fetch {name}`, or give its folder with --data-dir."
    )


def _first_file(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if os.path.isfile(folder / name)), None)


# ---- fetching

Watch = Callable[[str, int, int], None]  # (file name, bytes so far, total bytes or 0 if unknown)


def fetch(source: Source, to: Path | str | None = None, watch: Watch | None = None) -> Path:
    """Download a data set's official files.

    Files that already exist with the right checksum are kept, and an interrupted download continues where it stopped. A
    file gets its name only once it is complete and checked.

    Args:
        source: The data set.
        to: The files go to ``to/NAME``; by default to $PERFEDS2_DATA or the user's cache.
        watch: Called as bytes arrive.

    Returns:
        The folder with the files.

    Raises:
        InputError: A file could not be downloaded from any of its addresses.
    """
    import pooch
    import requests

    pooch.get_logger().setLevel("WARNING")
    base = Path(to) if to is not None else Path(os.environ.get(VARIABLE) or cache_folder())
    folder = base.expanduser() / source.name
    for download in source.downloads:
        known = None if download.sha256 is None else f"sha256:{download.sha256}"
        get, reasons = _downloader(folder, download, watch), []
        for url in download.urls:
            try:
                source.check(Path(pooch.retrieve(url, known, download.file, folder, downloader=get)))
                break
            except DataBroken as error:
                (folder / download.file).unlink()
                reasons.append(str(error))
            except requests.exceptions.ConnectionError:
                reasons.append(f"{url.split('/')[2]}: no connection")
            except (OSError, ValueError, RuntimeError) as error:  # requests' errors are OSErrors
                reasons.append(f"{url.split('/')[2]}: {' '.join(str(error).split())[:200].rstrip('.')}")
        else:
            raise InputError(
                f"{download.file} could not be downloaded ({'; '.join(reasons)}); try again when online, or get it elsewhere "
                f"and put it into {folder}."
            )
    return folder


def _downloader(folder: Path, download: Download, watch: Watch | None) -> Callable[..., Any]:
    """Return how pooch gets a file: what an interrupted download has left is completed, not fetched again."""
    import requests

    def get(url: str, to: str, _: Any) -> None:
        part = folder / f"{download.file}.part"
        done = part.stat().st_size if part.exists() else 0
        asked = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
        with requests.get(url, headers=asked, stream=True, timeout=30, hooks={"response": _stay_with_https}) as answer:
            if answer.status_code == 416:  # the part is as long as the file, or longer
                part.unlink()
            answer.raise_for_status()
            if answer.status_code != 206:
                done = 0  # the server sends the whole file
            total = done + int(answer.headers.get("content-length", 0))
            with part.open("ab" if done else "wb") as file:
                for chunk in answer.iter_content(PIECE_BYTES):
                    file.write(chunk)
                    done += len(chunk)
                    if watch is not None:
                        watch(download.file, done, max(total, done))
        os.replace(part, to)

    return get


def _stay_with_https(response: Any, *_: Any, **__: Any) -> None:
    """Refuse redirects to plain HTTP. requests calls this for every response."""
    following = response.headers.get("location", "")
    if not response.url.startswith("https://") or following.startswith("http://"):
        raise OSError(f"redirected to an address without HTTPS ({following or response.url})")
