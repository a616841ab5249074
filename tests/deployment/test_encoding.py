"""Does an upload take the bytes that the clock counts, and is a hostile one refused before it is unpacked?"""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_broker import FakeBroker
from test_memory import check_memory
from worlds import check, survive_kills, world

from perfeds2.deployment.encoding import Encoding
from perfeds2.deployment.preparation import Owner, prepare, travelling
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.transport import Request
from perfeds2.deployment.validate import form_of, wrong_update
from perfeds2.errors import InputError
from perfeds2.learning.job import job_key, run_key
from perfeds2.learning.learner import Learner
from perfeds2.learning.objectives import FedAvg
from perfeds2.learning.transforms import OwnCompression, RandomK, Sending
from perfeds2.spec.cells import upload_bits

UPDATE = {
    name: np.random.default_rng(number).normal(size=shape)
    for number, (name, shape) in enumerate({"b": (7,), "w": (40, 30), "zero": (5,)}.items())
}
UPDATE = {name: (values * (name != "zero")).astype(np.float32) for name, values in UPDATE.items()}
NUMBERS = 1212
JOB = Request(0, 2, 5)
HEADER = 400  # bytes: names and shapes of a safetensors file
PAGE = Path(__file__).parents[2] / "docs/how-to/own-methods.md"


def own_file(folder):
    """The compression of the page, with what a federation needs."""
    text = PAGE.read_text(encoding="utf-8")
    parts = re.findall(r"```py(?:thon)?\n# (?:in )?random_k\.py.*?\n(.*?)```", text, re.DOTALL)
    assert len(parts) == 2
    (folder / "random_k.py").write_text("\n".join(parts))
    return f"{folder / 'random_k.py'}:tenth"


def encoding(**settings):
    return Encoding(Learner(FedAvg(), **settings), form_of(UPDATE), seed=3)


def compressed(made, seed=0):
    """An upload as its device sends it."""
    scaled = {name: jnp.asarray(np.float32(1 + seed) * values) for name, values in UPDATE.items()}
    chain, key = made.learner.chain, job_key(run_key(3), JOB.ue, JOB.version)
    unsent = {name: jnp.zeros_like(values) for name, values in scaled.items()}
    sent, _ = chain(scaled, unsent if chain.has_feedback else None, Sending(jnp.int32(JOB.ue), scaled, key))
    return {name: np.asarray(values) for name, values in sent.items()}


SETTINGS = [
    *({"bits": bits} for bits in (2, 4, 5, 8, 16)),
    *({"top_k": share} for share in (1e-9, 0.02, 0.05, 0.1, 0.5, 0.999, 1.0)),
    *({"top_k": share, "bits": bits} for share in (0.05, 0.5) for bits in (4, 8)),
    {"compress": RandomK(0.1)},
    {"compress": RandomK(0.3), "bits": 4},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_an_upload_is_read_as_it_was_written_bit_for_bit_and_has_the_counted_bits(settings):
    made = encoding(**settings)
    for seed in range(3):
        sent = compressed(made, seed)
        came = made.encode(sent, JOB)
        shapes = {name: jax.ShapeDtypeStruct(values.shape, values.dtype) for name, values in UPDATE.items()}
        bits = 8 * sum(values.nbytes for values in came.values())
        assert 0 <= bits - made.learner.chain.size(shapes) < 8 * len(came)
        for name, values in made.decode(came, JOB).items():
            np.testing.assert_array_equal(values, sent[name])
            assert values.dtype == np.float32


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_quantised_top_k_is_what_the_wire_page_says(share):
    """Read the strings of bits as a device in another language would write them."""
    made = encoding(top_k=share, bits=5)
    sent = compressed(made)
    came = made.encode(sent, JOB)
    numbers, places = ("".join(f"{byte:08b}" for byte in came[name]) for name in ("numbers", "places"))
    count = round(share * NUMBERS)
    if 11 * count < NUMBERS:
        where = [int(places[11 * k : 11 * k + 11], 2) for k in range(count)]
    else:
        where = [place for place in range(NUMBERS) if places[place] == "1"]
    assert len(where) == count
    units = [came["units"][int(np.searchsorted([7, 1207], place, side="right"))] for place in where]
    flat = np.zeros(NUMBERS, np.float32)
    for k, (place, unit) in enumerate(zip(where, units, strict=True)):
        flat[place] = np.float32(int(numbers[5 * k : 5 * k + 5], 2) - 15) * unit
    np.testing.assert_array_equal(flat, np.concatenate([sent[name].ravel() for name in ("b", "w", "zero")]))


def bits_of(places, width=11):
    return np.packbits([int(digit) for place in places for digit in f"{place:0{width}b}"])


def mask_of(places):
    return np.packbits(np.isin(np.arange(NUMBERS), places).astype(np.uint8))


QUANTISED, SPARSE, MASKED = encoding(bits=8), encoding(top_k=0.05), encoding(top_k=0.5)
FEW = range(61)  # places of SPARSE
WRONG_FORM, WRONG_PLACES = "not an upload in the encoding of this run", "places that are"


@pytest.mark.parametrize(
    ("made", "hostile", "why"),
    [
        *(
            (QUANTISED, hostile, WRONG_FORM)
            for hostile in (
                {"numbers": np.zeros(NUMBERS - 1, np.uint8)},
                {"numbers": np.zeros(10**6, np.uint8)},
                {"numbers": np.zeros(NUMBERS, np.float32)},
                {"numbers": np.zeros((2, NUMBERS // 2), np.uint8)},
                {"units": np.zeros(2, np.float32)},
                {"more": np.zeros(3, np.float32)},
            )
        ),
        (QUANTISED, {"units": np.array([1, np.nan, 1], np.float32)}, "a number that is not finite"),
        (QUANTISED, {"units": np.array([1, np.inf, 1], np.float32)}, "a number that is not finite"),
        (QUANTISED, {"units": np.array([1, -1, 1], np.float32)}, "a unit below 0"),
        (QUANTISED, {"numbers": np.full(NUMBERS, 255, np.uint8)}, "a number beyond the scale"),
        (SPARSE, {"numbers": np.full(61, np.nan, np.float32)}, "a number that is not finite"),
        (SPARSE, {"numbers": np.zeros(62, np.float32)}, WRONG_FORM),
        (SPARSE, {"places": bits_of(range(62))}, WRONG_FORM),
        (SPARSE, {"places": mask_of(FEW)}, WRONG_FORM),
        (SPARSE, {"places": bits_of([0, *FEW][:61])}, WRONG_PLACES),
        (SPARSE, {"places": bits_of([*FEW][::-1])}, WRONG_PLACES),
        (SPARSE, {"places": bits_of([*FEW[:-1], NUMBERS])}, WRONG_PLACES),
        (SPARSE, {"places": bits_of([*FEW[:-1], 2047])}, WRONG_PLACES),
        (MASKED, {"places": mask_of(range(605))}, WRONG_PLACES),
        (MASKED, {"places": mask_of(range(607))}, WRONG_PLACES),
        (MASKED, {"places": mask_of(range(NUMBERS))}, WRONG_PLACES),
        (MASKED, {"places": mask_of(())}, WRONG_PLACES),
    ],
)
def test_a_hostile_encoding_is_refused(made, hostile, why):
    good = made.encode(compressed(made), JOB)
    made.decode(good, JOB)
    with pytest.raises(ValueError, match=why):
        made.decode(good | hostile, JOB)
    with pytest.raises(ValueError, match=WRONG_FORM):
        made.decode(UPDATE, JOB)


# ---- a user's own


def own(encode=None, decode=None, bits=32 * 121):
    """A compression that keeps the first 121 numbers of w."""

    def first(upload, _):
        return {name: values * (name == "w") for name, values in upload.items()}, bits

    def written(upload, _):
        return {"w": np.asarray(upload["w"]).ravel()[:121]}

    def as_read(came, _, zeros):
        w = zeros["w"].copy()
        w.ravel()[:121] = came["w"]
        return zeros | {"w": w}

    first.encode, first.decode = encode or written, decode or as_read
    return first


@pytest.mark.filterwarnings("error")
def test_numbers_that_overflow_with_their_unit_are_refused_with_the_update():
    came = QUANTISED.encode(compressed(QUANTISED), JOB)
    huge = QUANTISED.decode({**came, "units": np.full(3, 3e38, np.float32)}, JOB)
    assert "that are not finite" in (wrong_update(huge, QUANTISED.form) or "")


def test_an_own_encoding_is_checked_before_and_after_its_decode():
    made = encoding(compress=OwnCompression(own()))
    sent = {name: np.zeros_like(values) for name, values in UPDATE.items()}
    sent["w"].ravel()[:121] = 1
    good = made.encode(sent, JOB)
    np.testing.assert_array_equal(made.decode(good, JOB)["w"], sent["w"])
    for hostile in ({"w": good["w"][:-1]}, {"w": good["w"].astype(np.float64)}, {"v": good["w"]}):
        with pytest.raises(ValueError, match=WRONG_FORM):
            made.decode(hostile, JOB)
    with pytest.raises(ValueError, match="not finite"):
        made.decode({"w": good["w"] * np.float32("inf")}, JOB)
    with pytest.raises(InputError, match="decode does not give the upload back"):
        made.encode(UPDATE, JOB)  # more than 121 numbers
    broken = encoding(compress=OwnCompression(own(decode=lambda came, _, zeros: 1 / 0 if came["w"].any() else zeros)))
    with pytest.raises(ValueError, match="decode raised ZeroDivisionError"):
        broken.decode(good, JOB)


@pytest.mark.parametrize(
    ("compress", "why"),
    [
        (lambda upload, _: (upload, 8), "--compress has no encode and decode"),
        (own(encode=lambda *_: 1 / 0), "--compress: ZeroDivisionError: division by zero"),
        (own(decode=lambda *_: {}), "decode does not give the upload back"),
        (own(bits=32 * 100), "says that an upload has 3,200 bits, but its encode writes 3,872"),
    ],
)
def test_an_own_compression_that_a_federation_cannot_send_is_refused(compress, why):
    with pytest.raises(InputError, match=why):
        encoding(compress=OwnCompression(compress))


def test_two_kinds_of_sparse_uploads_at_once_are_refused():
    with pytest.raises(InputError, match="--top-k and --compress were both given"):
        encoding(top_k=0.5, compress=RandomK(0.1))


def test_a_device_needs_the_file_of_the_compression_with_the_servers_content(tmp_path):
    file = own_file(tmp_path)
    run = travelling(Setup.from_texts({"devices": 2, "quorum": 1, "algorithm": "FedAvgS2"}, {"compress": file}), "r")
    assert "random_k" not in run.settings
    with pytest.raises(InputError, match="start this device with --compress FILE"):
        prepare(run, Owner(state=tmp_path), 0)
    (tmp_path / "other").mkdir()
    other = own_file(tmp_path / "other")
    Path(other.removesuffix(":tenth")).write_text(Path(file.removesuffix(":tenth")).read_text() + "\n# changed\n")
    with pytest.raises(InputError, match="has another content than the server's file"):
        prepare(run, Owner(files={"compress": other}, state=tmp_path), 0)
    hostile = run.model_copy(update={"settings": run.settings + f"\ncompress = '{file}'"})
    with pytest.raises(InputError, match="refers to a file or module, which a federation does not run"):
        prepare(hostile, Owner(files={"compress": other}, state=tmp_path), 0)


# ---- over a broker


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"bits": 8}, {"bits": 4}, {"top-k": 0.05}, {"top-k": 0.5, "bits": 8}, {"compress": "random-k:0.1"}, {"own": True}],
    ids=str,
)
def test_what_crosses_the_broker_is_what_the_clock_counts(tmp_path, monkeypatch, settings):
    sent = list[int]()

    def take(self, topic, data, retain):
        if re.fullmatch("perfeds2/reply/device-[0-9]+/[0-9]+/[0-9]+", topic):
            sent.append(len(data))
        original(self, topic, data, retain)

    original = FakeBroker.take
    monkeypatch.setattr(FakeBroker, "take", take)
    files = {"compress": own_file(tmp_path)} if "own" in settings else {}
    settings = {name: value for name, value in settings.items() if name != "own"}
    made = world(tmp_path, files=files, algorithm="FedAvgS2", rounds=6, **settings)
    made.run()
    counted = upload_bits(made.setup.spec) / 8
    assert len(sent) >= 12
    assert all(counted <= size <= 1.05 * counted + HEADER for size in sent)
    check(made)
    if "bits" not in settings:  # what quantisation keeps back is at the mercy of the last digits
        check_memory(made)


@pytest.mark.slow
def test_what_is_not_sent_yet_survives_kills_of_devices_server_and_broker(tmp_path):
    made = world(tmp_path, algorithm="FedAvgS2", rounds=24, **{"top-k": 0.05})
    survive_kills(made, 0, 18)
    check(made)
    check_memory(made)


@pytest.mark.slow
def test_a_device_that_sends_a_hostile_encoding_is_set_aside_and_the_others_go_on(tmp_path, monkeypatch):
    made = world(tmp_path, algorithm="FedAvgS2", rounds=30, **{"top-k": 0.05, "set-aside-after": 2, "quorum": 1})
    original = Encoding.encode

    def hostile(self, update, request):
        sent = dict(original(self, update, request))
        return sent if request.ue else sent | {"places": np.zeros_like(sent["places"])}

    monkeypatch.setattr(Encoding, "encode", hostile)
    made.run()
    assert any("failed: UE 0" in line and "places that are" in line for line in made.log)
    assert made.federation.devices[0].set_aside
    assert made.federation.devices[0].merges == 0
