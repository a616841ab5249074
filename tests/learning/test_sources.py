"""Are data sets found, fetched and read, and is anything odd one sentence?"""

import gzip
import hashlib
import io
import json
import struct
import tarfile
import tempfile
import threading
import time
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfeds2.errors import InputError
from perfeds2.learning.datasets import source_of
from perfeds2.learning.datasets import sources as data_sources
from perfeds2.learning.datasets.cifar import (
    BATCHES,
    CIFAR10,
    CIFAR100,
    read_cifar10,
    read_cifar10_archive,
    read_cifar100_archive,
    read_cifar100_parts,
)
from perfeds2.learning.datasets.fashion_mnist import FASHION_MNIST
from perfeds2.learning.datasets.mnist import MNIST, read_mnist
from perfeds2.learning.datasets.shakespeare import SHAKESPEARE, Role, _title_above, read_roles, roles_of_text
from perfeds2.learning.files import sources
from perfeds2.learning.files.formats import DataBroken, read_idx
from perfeds2.learning.files.sources import Download, Form, Source, fetch, find, look_for

MNIST_FILES = tuple(names[0] for names in MNIST.forms[0].files)
RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (4, 3072), dtype=np.uint8)
LABELS = [19, 99, 0, 7]


# ---- small files in the real formats


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def mnist_bytes():
    images, labels = RANDOM.integers(0, 256, (3, 28, 28), dtype=np.uint8), np.array([7, 0, 9], np.uint8)
    return [idx(images), idx(labels), idx(images[:2]), idx(labels[:2])]


def write_mnist(folder, packed=True):
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / (name if packed else name.removesuffix(".gz")) for name in MNIST_FILES]
    for path, content in zip(paths, mnist_bytes(), strict=True):
        path.write_bytes(gzip.compress(content) if packed else content)
    return paths


def cifar_records(rows=slice(None)):
    """Images as the binary version has them: a coarse label, a fine one, the pixels."""
    return b"".join(
        bytes([3, label]) + pixels.tobytes() for label, pixels in zip(LABELS[rows], PIXELS[rows], strict=True)
    )


def archive(members, packed=True):
    """A tar of the given files, in the order given."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(buffer.getvalue()) if packed else buffer.getvalue()


def cifar_archive(packed=True):
    members = {"fine_label_names.txt": b"apple\n", "train.bin": cifar_records(), "test.bin": cifar_records(slice(2))}
    return archive({f"cifar-100-binary/{name}": content for name, content in members.items()}, packed)


def cifar_part(rows=slice(None), compression=zipfile.ZIP_LZMA):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as npz:
        for name, value in (("data", PIXELS[rows]), ("fine_labels", np.array(LABELS[rows], np.uint8))):
            member = io.BytesIO()
            np.save(member, value)
            npz.writestr(f"{name}.npy", member.getvalue())
    return buffer.getvalue()


def leaf_table(windows=False):
    table = {"users": ["B_MAN", "A_WOMAN"], "hierarchies": ["B", "A"], "num_samples": [20, 5], "user_data": {}}
    for user, raw in (("B_MAN", "abc  def\n" * 12 + "xy"), ("A_WOMAN", "What say you? " * 6 + "\n")):
        text = raw.replace("\n", " ").replace("  ", " ")
        sizes = range(len(text) - 80)
        table["user_data"][user] = (
            {"x": [text[i : i + 80] for i in sizes], "y": [text[i + 80] for i in sizes]} if windows else {"raw": raw}
        )
    return table


PLAYS = """The first line, which is dropped

THE SONNETS

by William Shakespeare

  NO ROLE. Not a play.

A SHORT PLAY



by William Shakespeare

  Lear. One one one one one one one one one one one one.
    Two two two two two two two two two two two.
Enter a FOOL
  FOOL. Alone
  LEAR. Three   three.
    And four.
  FOOL. Twice

THE COMEDY OF ERRORS

by William Shakespeare

ACT I. SCENE 1
not said by anyone
DROMIO OF EPHESUS. Return'd so soon! rather approach'd too late.
The capon burns, the pig falls from the spit;
The clock hath strucken twelve upon the bell-
<Exit
lost
LUCE. A
B
C
"""


@pytest.fixture
def written(tmp_path):
    """Writes a file and says where."""

    def write(content, name):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


# ---- finding


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setattr(sources, "cache_folder", lambda: cache)
    monkeypatch.delenv(sources.VARIABLE, raising=False)
    return cache


def test_a_given_folder_comes_before_the_variable_and_the_cache(tmp_path, monkeypatch, own_cache):
    write_mnist(own_cache / "mnist")
    assert find(MNIST).folder == own_cache / "mnist"
    write_mnist(tmp_path / "variable" / "mnist")
    monkeypatch.setenv(sources.VARIABLE, str(tmp_path / "variable"))
    assert find(MNIST).folder == tmp_path / "variable" / "mnist"
    (tmp_path / "given").mkdir()
    assert find(MNIST, tmp_path / "given").folder == tmp_path / "variable" / "mnist"
    write_mnist(tmp_path / "given", packed=False)
    assert find(MNIST, tmp_path / "given").folder == tmp_path / "given"


def test_a_missing_data_set_says_where_it_was_looked_for_and_what_to_do(tmp_path, own_cache):
    with pytest.raises(InputError) as caught:
        find(SHAKESPEARE, tmp_path)
    sentence = str(caught.value)
    for word in (
        "shakespeare was not found",
        str(tmp_path),
        str(own_cache),
        "perfeds2 data fetch shakespeare",
        "--data-dir",
    ):
        assert word in sentence
    assert "\n" not in sentence


def test_an_incomplete_data_set_names_the_missing_files(tmp_path):
    write_mnist(tmp_path / "mnist")[1].unlink()
    with pytest.raises(InputError, match=r"mnist is incomplete \(train-labels-idx1-ubyte.gz missing\)"):
        find(MNIST, tmp_path)
    found = {name: look_for(source, tmp_path) for name, source in data_sources().items()}
    assert found["mnist"].missing == ("train-labels-idx1-ubyte.gz",)
    assert all(each.files == () for each in found.values())
    assert [name for name, each in found.items() if each.missing] == ["mnist"]


def test_files_with_mnists_names_are_fashion_only_in_a_folder_of_that_name(tmp_path):
    write_mnist(tmp_path / "data")
    assert not look_for(FASHION_MNIST, tmp_path / "data").files
    write_mnist(tmp_path / "data" / "fashion-mnist")
    assert look_for(FASHION_MNIST, tmp_path / "data").folder == tmp_path / "data" / "fashion-mnist"
    assert look_for(FASHION_MNIST, tmp_path / "data" / "fashion-mnist").files
    assert look_for(MNIST, tmp_path / "data").folder == tmp_path / "data"


def test_a_folder_that_is_none_and_a_data_set_that_is_none_are_errors(tmp_path):
    with pytest.raises(InputError, match=r"--data-dir .*nowhere is not a folder"):
        find(MNIST, tmp_path / "nowhere")
    with pytest.raises(InputError, match="'mnis' is not a data set; expected one of mnist, fashion-mnist, femnist"):
        source_of("mnis")


def test_official_files_are_told_from_others(tmp_path):
    write_mnist(tmp_path)
    assert not look_for(MNIST, tmp_path).official
    sums = [hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in MNIST_FILES]
    same = tuple(replace(d, sha256=s) for d, s in zip(MNIST.downloads, sums, strict=True))
    assert look_for(replace(MNIST, downloads=same), tmp_path).official


# ---- fetching


def one_file_source(content=b"content", urls=("https://one.example/a.bin", "https://two.example/a.bin")):
    download = Download("a.bin", urls, hashlib.sha256(content).hexdigest())
    return Source("small", (Form("file", (("a.bin",),)),), (download,), "")


def test_every_address_is_https_and_every_file_but_one_has_a_checksum():
    downloads = [download for source in data_sources().values() for download in source.downloads]
    assert all(url.startswith("https://") for download in downloads for url in download.urls)
    assert [download.file for download in downloads if download.sha256 is None] == ["1994-01-100.zip"]
    assert all(len(download.sha256) == 64 for download in downloads if download.sha256)


@pytest.fixture
def served(monkeypatch):
    """Let a function write what is downloaded."""
    return lambda get: monkeypatch.setattr(sources, "_downloader", lambda *_: get)


def test_fetched_files_are_checked_and_then_found(tmp_path, served):
    small = one_file_source()
    asked = []

    def downloader(url, file, _):
        asked.append(url)
        if "one" in url:
            raise OSError("the first mirror is down")
        Path(file).write_bytes(b"content")

    served(downloader)
    assert fetch(small, tmp_path) == tmp_path / "small"
    assert find(small, tmp_path).files == (tmp_path / "small" / "a.bin",)
    assert len(asked) == 2
    fetch(small, tmp_path)
    assert len(asked) == 2, "what is there is not asked for again"


def test_a_wrong_file_is_not_kept(tmp_path, served):
    small = one_file_source()
    served(lambda _, file, __: Path(file).write_bytes(b"forged"))
    with pytest.raises(InputError, match="does not match the known hash"):
        fetch(small, tmp_path)
    assert list((tmp_path / "small").iterdir()) == []


def test_without_a_network_it_is_one_sentence(tmp_path):
    small = one_file_source(urls=("https://127.0.0.1:9/a.bin",))
    with pytest.raises(InputError) as caught:
        fetch(small, tmp_path)
    assert str(caught.value) == (
        "a.bin could not be downloaded (127.0.0.1:9: no connection); try again when online, or get it elsewhere and "
        f"put it into {tmp_path / 'small'}."
    )


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, served):
    small = one_file_source()
    served(lambda *_: None)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"a.bin could not be downloaded"):
        fetch(small, tmp_path / "file")


def test_a_text_of_another_edition_is_not_kept(tmp_path, served):
    content = zipped(PLAYS)
    served(lambda _, file, __: Path(file).write_bytes(content))
    with pytest.raises(InputError, match=r"2 plays, 2 roles and .* samples; LEAF's edition has 36, 1129 and 4226158"):
        fetch(SHAKESPEARE, tmp_path)
    assert list((tmp_path / "shakespeare").iterdir()) == []


def test_a_detour_without_https_is_refused():
    class Answer:
        url = "https://one.example/a.bin"
        headers = {"location": "http://one.example/a.bin"}  # noqa: RUF012 (a stand-in for an answer)

    with pytest.raises(OSError, match="without HTTPS"):
        sources._stay_with_https(Answer())


@pytest.fixture
def server(monkeypatch):
    """Serve one file, with ranges, and note the ranges asked for; ``break_after`` cuts the first answer."""

    class Answers(BaseHTTPRequestHandler):
        content, break_after, ranges, knows_ranges = bytes(range(256)) * 1000, None, [], True

        def do_GET(self):
            asked = self.headers.get("Range")
            self.ranges.append(asked)
            first = int(asked[6:-1]) if asked and self.knows_ranges else 0
            self.send_response(206 if first else 200)
            self.send_header("Content-Length", str(len(self.content) - first))
            self.end_headers()
            last = len(self.content) if self.break_after is None else self.break_after
            type(self).break_after = None
            self.wfile.write(self.content[first:last])

        def log_message(self, *_):
            pass

    monkeypatch.setattr(sources, "_stay_with_https", lambda *_, **__: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield Answers, f"http://127.0.0.1:{http.server_port}/a.bin"
        http.shutdown()
        thread.join()


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_an_interrupted_download_continues_where_it_stopped(tmp_path, server, knows_ranges):
    answers, url = server
    small, seen = one_file_source(answers.content, (url,)), []
    answers.break_after, answers.knows_ranges, answers.ranges = 100_000, knows_ranges, []
    with pytest.raises(InputError, match=r"a.bin could not be downloaded"):
        fetch(small, tmp_path)
    assert [path.name for path in (tmp_path / "small").iterdir()] == ["a.bin.part"]
    fetch(small, tmp_path, lambda *now: seen.append(now))
    assert (tmp_path / "small" / "a.bin").read_bytes() == answers.content
    assert answers.ranges == [None, f"bytes={sources.PIECE_BYTES}-"]
    assert seen[-1] == ("a.bin", 256_000, 256_000)
    assert [path.name for path in (tmp_path / "small").iterdir()] == ["a.bin"]


# ---- reading


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_are_read_packed_or_not(tmp_path, packed):
    images = read_mnist(write_mnist(tmp_path, packed))
    assert images.x.shape == (3, 784)
    assert images.y.tolist() == [7, 0, 9]
    assert images.test_y.tolist() == [7, 0]


def test_a_forged_idx_header_allocates_nothing(written):
    for shape in ((2**32 - 1, 28, 28), (1_000_000, 28, 28), (0, 28, 28)):
        with pytest.raises(DataBroken, match=r"announces|too early"):
            read_idx(written(bytes([0, 0, 8, 3]) + struct.pack(">3I", *shape), "images"), 3)


@pytest.mark.parametrize("packed", [True, False])
def test_the_official_archive_is_read(written, packed):
    images = read_cifar100_archive(written(cifar_archive(packed), "cifar-100-binary.tar.gz"))
    np.testing.assert_array_equal(images.x, PIXELS)
    np.testing.assert_array_equal(images.test_x, PIXELS[:2])
    assert images.y.tolist() == LABELS  # the fine ones
    assert images.test_y.tolist() == LABELS[:2]


def test_records_that_are_cut_or_have_no_such_label_are_one_sentence(written):
    good = cifar_records()
    for train, sentence in (
        (good[:-1], r"cannot be read: cannot reshape array of size 12295 into shape"),
        (b"", "holds 0 labels for 0 images"),
        (bytes([3, 100]) + good[2:], "holds the label 100; the largest is 99"),
    ):
        path = written(archive({"train.bin": train, "test.bin": good}), "cifar-100-binary.tar.gz")
        with pytest.raises(DataBroken, match=sentence):
            read_cifar100_archive(path)


def test_the_python_archive_under_another_name_is_refused(tmp_path):
    (tmp_path / "cifar100").mkdir()
    renamed = tmp_path / "cifar100" / "cifar-100-binary.tar.gz"
    renamed.write_bytes(archive({"cifar-100-python/train": b"x"}))
    with pytest.raises(DataBroken, match=r"lacks train.bin and test.bin; expected the binary version"):
        read_cifar100_archive(find(CIFAR100, tmp_path).files[0])
    renamed.write_bytes(cifar_archive())
    assert find(CIFAR100, tmp_path).files == (renamed,)


def cifar10_files():
    """The six files of the binary version: a label and the pixels of one image, numbered in its first pixel."""
    pixels = PIXELS[:1].repeat(6, axis=0)
    pixels[:, 0] = range(6)
    return {name: bytes([n]) + pixels[n].tobytes() for n, name in enumerate(BATCHES)}


def test_cifar_10_is_read_from_the_archive_or_extracted(tmp_path):
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for name, content in cifar10_files().items():
        (tmp_path / "cifar-10-batches-bin" / name).write_bytes(content)
    extracted = read_cifar10(find(CIFAR10, tmp_path).files)
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(
        archive({f"cifar-10-batches-bin/{name}": content for name, content in reversed(cifar10_files().items())})
    )
    packed = read_cifar10(find(CIFAR10, tmp_path).files)
    for images in (extracted, packed):
        assert images.x[:, 0].tolist() == images.y.tolist() == [0, 1, 2, 3, 4]
        assert images.test_x[:, 0].tolist() == images.test_y.tolist() == [5]
        np.testing.assert_array_equal(images.x[:, 1:], PIXELS[:1, 1:].repeat(5, axis=0))


def test_the_archive_of_one_cifar_is_not_read_as_the_other(written):
    with pytest.raises(DataBroken, match=r"lacks data_batch_1.bin and .*cifar-10-binary.tar.gz"):
        read_cifar10_archive(written(cifar_archive(), "cifar-10-binary.tar.gz"))


@pytest.mark.parametrize("compression", [zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_npz_parts_are_read_in_order(tmp_path, compression):
    rows = [slice(0, 1), slice(1, 3), slice(3, 4), slice(0, 2)]
    paths = [tmp_path / f"{number}.npz" for number in range(4)]
    for path, part in zip(paths, rows, strict=True):
        path.write_bytes(cifar_part(part, compression))
    images = read_cifar100_parts(paths)
    np.testing.assert_array_equal(images.x, PIXELS)
    assert images.y.tolist() == LABELS
    assert images.test_y.tolist() == LABELS[:2]


def test_nothing_is_written_where_an_archive_wants_it(tmp_path):
    path = tmp_path / "inner" / "cifar-100-binary.tar.gz"
    path.parent.mkdir()
    path.write_bytes(archive({"../escaped": b"x", "train.bin": cifar_records()}))
    with pytest.raises(DataBroken, match=r"lacks test.bin; expected"):
        read_cifar100_archive(path)
    assert sorted(tmp_path.rglob("*")) == [path.parent, path]


@pytest.mark.parametrize("windows", [True, False])
@pytest.mark.parametrize("name", ["all_data.json", "leaf_roles.json.gz"])
def test_leafs_json_is_read_with_lines_or_windows(written, windows, name):
    content = json.dumps(leaf_table(windows)).encode()
    roles = read_roles(written(gzip.compress(content) if name.endswith("gz") else content, name))
    assert roles == [
        Role("A_WOMAN", "A", "What say you? " * 6),
        Role("B_MAN", "B", "abc def " * 12 + "xy"),
    ]
    assert [role.samples for role in roles] == [4, 18]


def test_sampled_windows_are_refused(written):
    table = leaf_table(windows=True)
    del table["user_data"]["B_MAN"]["x"][5], table["user_data"]["B_MAN"]["y"][5]
    with pytest.raises(DataBroken, match="nor all windows of B_MAN"):
        read_roles(written(json.dumps(table).encode(), "all_data.json"))


def zipped(text):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("100.txt", text.replace("\n", "\r\n"))
    return buffer.getvalue()


def test_roles_are_cut_from_the_plays_by_leafs_rules(written):
    lear, dromio, luce = (
        Role(
            "A_SHORT_PLAY_LEAR",
            "A SHORT PLAY",
            " ".join(["One" + " one" * 11 + ".", "Two" + " two" * 10 + ".", "Three three.", "And four. "]),
        ),
        Role(
            "THE_COMEDY_OF_ERRORS_DROMIO_OF_EPHESUS",
            "THE COMEDY OF ERRORS",
            "Return'd so soon! rather approach'd too late. The capon burns, the pig falls from the spit; The clock hath strucken twelve upon the bell- ",
        ),
        Role("THE_COMEDY_OF_ERRORS_LUCE", "THE COMEDY OF ERRORS", "A B C "),
    )
    assert roles_of_text(PLAYS) == [lear, dromio, luce]
    assert read_roles(written(PLAYS.encode("utf-8-sig"), "raw_data.txt")) == [lear, dromio]
    assert read_roles(written(zipped(PLAYS), "1994-01-100.zip")) == [lear, dromio]


@pytest.mark.parametrize(
    ("above", "title"), [(["LEAR", "", ""], "LEAR"), (["", "LEAR", "HAMLET"], "LEAR"), (["", ""], "")]
)
def test_a_plays_title_is_the_nearest_line_two_or_more_above(above, title):
    assert _title_above([*above, "DRAMATIS PERSONAE"], len(above)) == title


# ---- reading malformed files


def damaged(content):
    """A file cut short, or with a few bytes changed."""
    cut = st.integers(0, len(content) - 1).map(lambda size: content[:size])

    def changed(places):
        copy = bytearray(content)
        for place, byte in places:
            copy[place] = byte
        return bytes(copy)

    # Headers say the most, so every second change is made in the first 100 bytes.
    place = st.integers(0, len(content) - 1) | st.integers(0, min(len(content), 100) - 1)
    return cut | st.lists(st.tuples(place, st.integers(0, 255)), min_size=1, max_size=4).map(changed)


IMAGES, LABEL_BYTES = mnist_bytes()[0], mnist_bytes()[1]
READERS = {
    "idx": (IMAGES, "images", lambda path: read_idx(path, 3)),
    "idx gz": (gzip.compress(IMAGES), "images.gz", lambda path: read_idx(path, 3)),
    "labels": (LABEL_BYTES, "labels", lambda path: read_idx(path, 1)),
    "tar": (cifar_archive(packed=False), "cifar-100-binary.tar", read_cifar100_archive),
    "tar gz": (cifar_archive(), "cifar-100-binary.tar.gz", read_cifar100_archive),
    "npz lzma": (cifar_part(), "test.npz", lambda path: read_cifar100_parts([path, path])),
    "npz plain": (
        cifar_part(compression=zipfile.ZIP_STORED),
        "test.npz",
        lambda path: read_cifar100_parts([path, path]),
    ),
    "roles": (json.dumps(leaf_table()).encode(), "leaf_roles.json", read_roles),
    "windows": (json.dumps(leaf_table(windows=True)).encode(), "all_data.json", read_roles),
    "text": (PLAYS.encode(), "raw_data.txt", read_roles),
    "text gz": (gzip.compress(PLAYS.encode()), "raw_data.txt.gz", read_roles),
    "text zip": (zipped(PLAYS), "1994-01-100.zip", read_roles),
}


def read_or_one_sentence(reader, path):
    begun = time.monotonic()
    sentence = None
    try:
        reader(path)
    except DataBroken as error:
        sentence = str(error)
    assert sentence is None or (str(path) in sentence and sentence.endswith(".") and "\n" not in sentence)
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("name", READERS)
def test_a_whole_file_is_read(written, name):
    content, file, reader = READERS[name]
    reader(written(content, file))


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_a_damaged_file_is_one_sentence(name, data):
    content, file, reader = READERS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file
        path.write_bytes(data.draw(damaged(content)))
        read_or_one_sentence(reader, path)


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        "null",
        "[]",
        '{"users": 1}',
        '{"users": ["a"], "hierarchies": ["b"], "user_data": {"a": 3}}',
        '{"users": [["a"]], "hierarchies": ["b"], "user_data": {}}',
        "9" * 10_000,
    ],
)
def test_other_json_is_one_sentence(written, content):
    path = written(content.encode(), "all_data.json")
    with pytest.raises(DataBroken) as caught:
        read_roles(path)
    assert "\n" not in str(caught.value)


def test_a_few_packed_bytes_do_not_become_gigabytes(written, monkeypatch):
    monkeypatch.setattr("perfeds2.learning.files.formats.MOST_BYTES", 1 << 20)
    bomb = gzip.compress(bytes(8 << 20))
    with pytest.raises(DataBroken, match="unpacks to more than"):
        read_cifar100_archive(written(gzip.compress(archive({"meta": bytes(8 << 20)}, packed=False)), "a.tar.gz"))
    with pytest.raises(DataBroken, match="unpacks to more than"):
        read_idx(written(bomb, "images.gz"), 3)
