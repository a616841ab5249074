"""Does an upload take the bytes that the clock counts, and is a hostile one refused before it is unpacked?"""

import re

import jax
import numpy as np
import pytest
from fake_broker import FakeBroker
from worlds import check, world

from perfeds2.deployment.encoding import decoded, encoded
from perfeds2.deployment.validate import form_of
from perfeds2.learning.transforms import quantised
from perfeds2.spec.cells import upload_bits

UPDATE = {
    name: np.random.default_rng(number).normal(size=shape)
    for number, (name, shape) in enumerate({"b": (7,), "w": (40, 30), "zero": (5,)}.items())
}
UPDATE = {name: (values * (name != "zero")).astype(np.float32) for name, values in UPDATE.items()}
HEADER = 400  # bytes: names and shapes of a safetensors file


@pytest.mark.parametrize("bits", [2, 4, 5, 8, 16])
def test_a_quantised_upload_is_read_as_it_was_written_bit_for_bit(bits):
    for seed in range(5):
        sent = {name: np.asarray(values) for name, values in quantised(jax.random.key(seed), UPDATE, bits).items()}
        came = encoded(sent, bits)
        assert came["numbers"].nbytes == -(-1212 * bits // 8)
        for name, values in decoded(came, form_of(UPDATE), bits).items():
            np.testing.assert_array_equal(values, sent[name])
            assert values.dtype == np.float32


def test_an_upload_that_is_not_quantised_is_sent_as_it_is():
    for bits in (None, 32):
        assert decoded(encoded(UPDATE, bits), form_of(UPDATE), bits) is UPDATE


GOOD = encoded(UPDATE, 8)


@pytest.mark.parametrize(
    ("hostile", "why"),
    [
        ({"numbers": GOOD["numbers"][:-1]}, "not an update of 8 bits"),
        ({"numbers": np.zeros(10**6, np.uint8)}, "not an update of 8 bits"),
        ({"numbers": GOOD["numbers"].astype(np.float32)}, "not an update of 8 bits"),
        ({"numbers": GOOD["numbers"].reshape(2, -1)}, "not an update of 8 bits"),
        ({"units": GOOD["units"][:-1]}, "not an update of 8 bits"),
        ({"more": GOOD["units"]}, "not an update of 8 bits"),
        ({"units": GOOD["units"] * np.float32("nan")}, "a unit that is not a finite number"),
        ({"units": GOOD["units"] + np.float32("inf")}, "a unit that is not a finite number"),
        ({"units": -1 - GOOD["units"]}, "a unit that is not a finite number"),
        ({"numbers": np.full_like(GOOD["numbers"], 255)}, "a number beyond the scale"),
    ],
)
def test_a_hostile_encoding_is_refused(hostile, why):
    with pytest.raises(ValueError, match=why):
        decoded(GOOD | hostile, form_of(UPDATE), 8)
    with pytest.raises(ValueError, match="not an update of 8 bits"):
        decoded(UPDATE, form_of(UPDATE), 8)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 4])
def test_what_crosses_the_broker_is_what_the_clock_counts(tmp_path, monkeypatch, bits):
    sent = list[int]()

    def take(self, topic, data, retain):
        if re.fullmatch("perfeds2/reply/device-[0-9]+/[0-9]+/[0-9]+", topic):
            sent.append(len(data))
        original(self, topic, data, retain)

    original = FakeBroker.take
    monkeypatch.setattr(FakeBroker, "take", take)
    made = world(tmp_path, bits=bits, algorithm="FedAvgS2", rounds=6)
    made.run()
    counted = upload_bits(made.setup.spec) / 8
    assert len(sent) >= 12
    assert all(counted <= size <= 1.05 * counted + HEADER for size in sent)
    check(made)
