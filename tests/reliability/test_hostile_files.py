"""Is every file that could come from anywhere read, or refused in one sentence, at once?"""

import gzip
import io
import json
import tarfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import perfeds2
from hostile_bytes import hostile, npz, plain, refused_or_read, spoiled, text
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import config
from tiny_data import idx

from perfeds2.errors import InputError
from perfeds2.learning.datasets.cifar import read_cifar100_archive, read_cifar100_parts
from perfeds2.learning.datasets.mnist import read_mnist
from perfeds2.learning.datasets.shakespeare import WINDOW, read_roles
from perfeds2.learning.files.formats import DataBroken, read_idx
from perfeds2.network.cell import Cell
from perfeds2.report import run as _run  # noqa: F401 (now, so that the first input is not charged with the import)
from perfeds2.runs.store import load_arrays, save_arrays
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import simulate

RANDOM = np.random.default_rng(1)
TIMELINE = simulate(Cell.draw(6, 1), Protocol(2, 1, "ignore"), payload_bits=1e5, samples=50.0, rounds=12)
ARRAYS = TIMELINE.columns
PIXELS = {"data": RANDOM.integers(0, 256, (3, 3072), dtype=np.uint8), "fine_labels": np.array([5, 99, 0], np.uint8)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(autouse=True)
def as_in_production():
    """No type checks but the package's own; what NumPy warns of is not what is looked for here."""
    config.update("jaxtyping_disable", True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    config.update("jaxtyping_disable", False)


def put(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


@given(data=st.data())
@hostile
def test_a_timeline_is_sound_or_refused(folder, data):
    path = put(folder, "timeline.npz", data.draw(npz(ARRAYS)))
    read = refused_or_read(lambda: Timeline.load(path), ValueError)
    if isinstance(read, Timeline):
        assert np.isfinite(read.end_s)
        assert set(read.seconds()) == {"computing", "sending", "waiting", "idle"}
        assert read.jobs().ue.max(initial=0) < read.population


def checkpoint(folder: Path) -> bytes:
    arrays = {"0000": np.arange(12, dtype=np.float32).reshape(3, 4), "0001": np.array(7, np.int32)}
    save_arrays(folder / "good.safetensors", arrays, {"values": [{"train_loss": 1.5}], "rows": ["é"]})
    return (folder / "good.safetensors").read_bytes()


@given(data=st.data())
@hostile
def test_a_checkpoint_is_as_it_was_written_or_refused(folder, data):
    good = checkpoint(folder)
    path = put(folder, "part.safetensors", data.draw(spoiled(good)))
    read = refused_or_read(lambda: load_arrays(path), InputError)
    assert read is None or content_of(read) == content_of(load_arrays(folder / "good.safetensors"))


def content_of(part: Any) -> object:
    arrays, facts = part
    return {key: (values.dtype, values.shape, values.tolist()) for key, values in arrays.items()}, facts


@pytest.mark.slow
def test_no_flipped_bit_of_a_checkpoint_goes_unnoticed(folder):
    good = checkpoint(folder)
    known = content_of(load_arrays(folder / "good.safetensors"))
    for at in range(0, 8 * len(good), 5):
        content = bytearray(good)
        content[at // 8] ^= 1 << at % 8
        path = put(folder, "flipped.safetensors", bytes(content))
        read = refused_or_read(lambda path=path: load_arrays(path), InputError)
        assert read is None or content_of(read) == known  # the padding of the header says nothing


@pytest.mark.parametrize(("old", "new"), [(b'"F32"', b'"I32"'), (b"[3,4]", b"[4,3]")])
def test_a_checkpoint_whose_numbers_would_be_read_differently_is_refused(folder, old, new):
    good = checkpoint(folder)
    assert good.count(old) == 1
    with pytest.raises(InputError, match="its checksum does not match"):
        load_arrays(put(folder, "other.safetensors", good.replace(old, new)))


IDX = idx(RANDOM.integers(0, 256, (3, 28, 28), dtype=np.uint8))


@given(content=spoiled(IDX), packed=st.booleans(), dimensions=st.sampled_from([1, 3]), again=st.booleans())
@hostile
def test_an_idx_file_is_an_array_or_refused(folder, content, packed, dimensions, again):
    packed_up = gzip.compress(content) if packed else content
    path = put(folder, "images.gz", packed_up[:-9] if again else packed_up)
    read = refused_or_read(lambda: read_idx(path, dimensions), DataBroken)
    assert read is None or (isinstance(read, np.ndarray) and read.ndim == dimensions)


@given(data=st.data())
@hostile
def test_four_idx_files_are_mnist_or_refused(folder, data):
    good = [IDX, idx(np.array([1, 2, 9], np.uint8))] * 2
    files = [
        put(folder, f"part{number}", data.draw(spoiled(content)) if data.draw(st.booleans()) else content)
        for number, content in enumerate(good)
    ]
    read = refused_or_read(lambda: read_mnist(files), DataBroken)
    assert read is None or (read.x.shape[0] == read.y.size and read.y.max() < 10)  # type: ignore[attr-defined]


@given(data=st.data())
@hostile
def test_npz_parts_are_images_or_refused(folder, data):
    files = [put(folder, f"{number}.npz", data.draw(npz(PIXELS))) for number in range(2)]
    read = refused_or_read(lambda: read_cifar100_parts(files), DataBroken)
    assert read is None or (read.x.shape[1] == 3072 and read.y.max() < 100)  # type: ignore[attr-defined]


@st.composite
def tars(draw: st.DrawFn) -> bytes:
    """An archive with links, devices and escapes in it, and members that may be records of images."""
    buffer = io.BytesIO()
    kinds = [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE]
    names = ["cifar-100-binary/train.bin", "cifar-100-binary/test.bin", "../../train.bin", "/tmp/test.bin", "train.bin"]
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in draw(st.lists(st.sampled_from(names), max_size=4)):
            member = tarfile.TarInfo(name)
            member.type = draw(st.sampled_from(kinds))
            member.linkname = draw(st.sampled_from(["", "/etc/passwd", "../../x", "train.bin"]))
            content = draw(st.one_of(st.binary(max_size=80), records()))
            member.size = len(content) if member.type == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(content))
    content = draw(spoiled(buffer.getvalue())) if draw(st.booleans()) else buffer.getvalue()
    return gzip.compress(content) if draw(st.booleans()) else content


def records() -> st.SearchStrategy[bytes]:
    """Some images; a few bytes too many, or a label that does not exist, is no data set."""
    labels = st.lists(st.tuples(st.integers(0, 19), st.sampled_from([0, 7, 99, 100, 255])), max_size=3)
    whole = labels.map(lambda pairs: b"".join(bytes(pair) + bytes(3072) for pair in pairs))
    return whole | st.tuples(whole, st.binary(max_size=8)).map(b"".join)


@given(content=tars())
@hostile
def test_an_archive_is_images_or_refused_and_nothing_is_extracted(folder, content):
    path = put(folder, "cifar-100-binary.tar.gz", content)
    before = sorted(folder.rglob("*"))
    read = refused_or_read(lambda: read_cifar100_archive(path), DataBroken)
    assert read is None or (read.x.shape == (read.y.size, 3072) and read.y.max() < 100 and read.test_y.max() < 100)  # type: ignore[attr-defined]
    assert sorted(folder.rglob("*")) == before


def leaf(lines: str = "What say you? " * 12) -> dict[str, object]:
    return {"users": ["A", "B"], "hierarchies": ["P", "P"], "user_data": {user: {"raw": lines} for user in "AB"}}


@st.composite
def leaf_files(draw: st.DrawFn) -> bytes:
    table = leaf()
    match draw(st.sampled_from(["value", "deep", "spoiled", "windows", "anything"])):
        case "value":
            table[draw(st.sampled_from([*table, "more"]))] = draw(plain)
        case "deep":
            return b"[" * draw(st.sampled_from([10, 1_000, 100_000]))
        case "spoiled":
            return draw(spoiled(json.dumps(table).encode()))
        case "windows":
            table["user_data"] = {user: {"x": draw(st.lists(text)), "y": draw(st.lists(text))} for user in "AB"}
        case "anything":
            return json.dumps(draw(plain)).encode()
    return json.dumps(table).encode()


@given(content=leaf_files(), packed=st.booleans())
@hostile
def test_a_leaf_file_is_roles_or_refused(folder, content, packed):
    path = put(folder, "all_data.json", gzip.compress(content) if packed else content)
    roles = refused_or_read(lambda: read_roles(path), DataBroken)
    assert roles is None or all(len(role.text) > WINDOW for role in roles)  # type: ignore[attr-defined]


PLAY = (
    "x\nby William Shakespeare\n\nA PLAY\n\n\nby William Shakespeare\n\n"
    + "  LEAR. {0}\n    {0}\n  FOOL. {0}\n".format("Blow winds and crack your cheeks " * 2) * 4
)


@given(
    content=spoiled(PLAY.encode()) | text.map(str.encode), kind=st.sampled_from(["txt", "gz", "zip"]), two=st.booleans()
)
@hostile
def test_a_text_is_roles_or_refused(folder, content, kind, two):
    path = folder / f"raw_data.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name in ["100.txt", "../../200.txt"][: 1 + two]:
                archive.writestr(name, content)
    else:
        path.write_bytes(gzip.compress(content) if kind == "gz" else content)
    roles = refused_or_read(lambda: read_roles(path), DataBroken)
    assert roles is None or all(len(role.text) > WINDOW for role in roles)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_few_bytes_never_become_gigabytes(folder):
    """A bomb: 64 MiB of zeros in 64 KiB, announced as far more."""
    packed = gzip.compress(bytes([0, 0, 8, 1]) + (2**31).to_bytes(4, "big") + bytes(1 << 26))
    assert len(packed) < 1 << 17
    with pytest.raises(DataBroken, match="announces"):
        read_idx(put(folder, "bomb", packed), 1)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("time_s.npy", b"")
    content = buffer.getvalue()
    at = content.index(b"PK\x01\x02") + 24  # the central directory's size of the member, unpacked
    forged = content[:at] + (2**32 - 2).to_bytes(4, "little") + content[at + 4 :]
    with pytest.raises(ValueError, match="timeline"):
        Timeline.load(put(folder, "bomb.npz", forged))


@given(
    content=st.one_of(
        spoiled(b'{"algorithms": [], "command": "run", "seeds": [0]}'), plain.map(lambda v: json.dumps(v).encode())
    )
)
@hostile
def test_a_folder_with_a_strange_summary_has_no_report_and_one_sentence(folder, content):
    run = folder / "strange"
    run.mkdir(exist_ok=True)
    put(run, "summary.json", content)
    status, said = perfeds2("report", run)
    assert status in (0, 2), said
    assert said.strip().count("\n") == 0, said
