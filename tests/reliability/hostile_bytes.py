"""Files that were cut, mixed up or forged."""

import io
import os
import struct
import zipfile
from collections.abc import Callable, Mapping

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

INPUTS = int(os.environ.get("PERFEDS2_HOSTILE_INPUTS", "25"))  # of each kind; `make test-slow` asks for a thousand
hostile = settings(
    max_examples=INPUTS,
    deadline=20_000,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
    derandomize=INPUTS < 100,
)  # the deadline is in milliseconds: nothing may hang

text = st.text(max_size=40)
number = st.one_of(
    st.integers(), st.floats(), st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 10**400, 1e308, 5e-324, 1e-9])
)
plain = st.recursive(
    st.one_of(st.none(), st.booleans(), number, text),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=8,
)


@st.composite
def spoiled(draw: st.DrawFn, content: bytes) -> bytes:
    """A good file with bytes flipped, cut out, put in or repeated; or something else altogether."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(content) - 1, 0)))
        match draw(st.sampled_from(["flip", "cut", "drop", "insert", "repeat", "zero", "other"])):
            case "flip" if content:
                content = content[:at] + bytes([content[at] ^ draw(st.integers(1, 255))]) + content[at + 1 :]
            case "cut":
                content = content[:at]
            case "drop":
                content = content[:at] + content[at + draw(st.integers(1, 64)) :]
            case "insert":
                content = content[:at] + draw(st.binary(max_size=64)) + content[at:]
            case "repeat":
                content = content[:at] + content[max(at - 64, 0) :]
            case "zero":
                content = content[:at] + bytes(draw(st.sampled_from([1, 8, 512]))) + content[at:]
            case "other":
                content = draw(st.sampled_from([content, b"", draw(st.binary(max_size=200))]))
    return content


@st.composite
def npy(draw: st.DrawFn, good: np.ndarray) -> bytes:
    """An array; or one whose header announces another type, or more than there is."""
    buffer = io.BytesIO()
    kind = draw(st.sampled_from(["good", "values", "header", "spoiled", "object"]))
    if kind == "object":
        np.save(buffer, np.array([{"a": 1}], object), allow_pickle=True)
        return buffer.getvalue()
    if kind == "values" and good.size:
        raw, item = bytearray(good.tobytes()), good.itemsize
        at = item * draw(st.integers(0, good.size - 1))
        words = [struct.pack("<d", value) for value in (float("nan"), float("inf"), -1e308, 1e308)]
        words += [struct.pack("<q", value) for value in (-1, 1, 2**31, 2**62, -(2**63))]
        raw[at : at + item] = draw(st.sampled_from(words))[-item:]
        good = np.frombuffer(raw, good.dtype).reshape(good.shape)
    np.save(buffer, good)
    content = buffer.getvalue()
    if kind == "header":
        shape = draw(st.lists(st.sampled_from([0, 1, 3, 12, 10**6, 2**40, 2**63, -1]), max_size=4))
        kinds = ["<f8", "<i8", "|u1", "|O", "<U5", "<c16", "<M8[s]", "|V9999", "nonsense", "|b1"]
        fields = {"descr": draw(st.sampled_from(kinds)), "fortran_order": draw(st.booleans()), "shape": tuple(shape)}
        header = repr(fields).encode().ljust(117) + b"\n"
        content = content[:8] + len(header).to_bytes(2, "little") + header + content[128:]
    return draw(spoiled(content)) if kind == "spoiled" else content


@st.composite
def npz(draw: st.DrawFn, arrays: Mapping[str, np.ndarray]) -> bytes:
    """An archive of arrays, some forged, some missing, some twice, some beside the point."""
    buffer = io.BytesIO()
    names = list(arrays)
    forged = set(draw(st.lists(st.sampled_from(names), max_size=2)))
    missing = set(draw(st.lists(st.sampled_from(names), max_size=1))) if draw(st.booleans()) else set()
    with zipfile.ZipFile(buffer, "w", draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))) as archive:
        for name in names:
            if name not in missing:
                content = draw(npy(arrays[name])) if name in forged else saved(arrays[name])
                archive.writestr(f"{name}.npy", content)
        if draw(st.integers(0, 4)) == 0:
            archive.writestr(draw(st.sampled_from(["../evil.npy", "/etc/evil", "x/y.npy", "data"])), b"evil")
    content = buffer.getvalue()
    return draw(spoiled(content)) if draw(st.integers(0, 3)) == 0 else content


def saved(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def refused_or_read(read: Callable[[], object], *refusals: type[Exception]) -> object | None:
    """What is read, or None if it is refused in one sentence; any other error is a bug."""
    try:
        return read()
    except refusals as error:
        sentence = str(error)
        assert sentence
        assert "\n" not in sentence, sentence
        return None
