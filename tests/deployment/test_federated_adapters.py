"""Does only the adapter of a frozen body travel in a federation, and must all machines have the same body?"""

import re
from typing import Any

import numpy as np
import pytest
from fake_broker import FakeBroker
from safetensors.numpy import save_file
from test_own_model import example
from worlds import check, world

from perfeds2.deployment.preparation import Owner, prepare, travelling
from perfeds2.deployment.setup import Setup
from perfeds2.errors import InputError
from perfeds2.learning.models.mlp import MLP

HEADER = 400  # bytes: names and shapes of a safetensors file


def body(folder, seed=0):
    """Weights of the task digits' model."""
    draw = np.random.default_rng(seed)
    shapes = {"dense1.weight": (64, 32), "dense1.bias": (32,), "dense2.weight": (32, 10), "dense2.bias": (10,)}
    file = folder / f"body-{seed}.safetensors"
    save_file({name: draw.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}, file)
    return str(file)


@pytest.mark.slow
@pytest.mark.parametrize(("adapter", "numbers"), [("lora:2", 2 * (64 + 32 + 32 + 10)), ("head", 330)])
def test_only_the_adapter_travels_and_the_simulator_comes_to_the_same_weights(tmp_path, monkeypatch, adapter, numbers):
    sent = {"reply": list[int](), "model": list[int]()}

    def take(self, topic, data, retain):
        found = re.fullmatch("perfeds2/(reply/device-[0-9]+|model)/[0-9]+/[0-9]+", topic)
        if found is not None and data:
            sent[found[1].partition("/")[0]].append(len(data))
        original(self, topic, data, retain)

    original = FakeBroker.take
    monkeypatch.setattr(FakeBroker, "take", take)
    made = world(tmp_path, files={"init": body(tmp_path)}, adapter=adapter, rounds=5)
    model: Any = made.setup.model()
    assert model.model == MLP((64, 32, 10))
    made.run()
    check(made)
    for sizes in sent.values():
        assert all(4 * numbers < size < 4 * numbers + HEADER for size in sizes)
        assert len(sizes) >= 3
    assert sum(values.size for values in made.federation.params.values()) == numbers


def test_a_device_needs_the_servers_body(tmp_path):
    files = {"init": body(tmp_path)}
    setup = Setup.from_texts({"devices": 2, "quorum": 1, "adapter": "lora:2"}, files)
    run = travelling(setup, "r")
    assert "safetensors" not in run.settings
    with pytest.raises(InputError, match="start this device with --init FILE"):
        prepare(run, Owner(), 0)
    with pytest.raises(InputError, match="has another content than the server's file"):
        prepare(run, Owner(files={"init": body(tmp_path, seed=1)}), 0)
    sneaked = run.model_copy(update={"settings": run.settings + f'\ninit = "{files["init"]}"'})
    with pytest.raises(InputError, match="the server sent the setting init, which only this device's owner may choose"):
        prepare(sneaked, Owner(files=files), 0)
    setup.write(tmp_path)
    assert Setup.read(tmp_path) == setup


def test_a_setup_from_elsewhere_names_no_body(tmp_path):
    with pytest.raises(InputError, match="refers to a file or module"):
        Setup.from_texts({"devices": 2, "init": body(tmp_path)})


def test_a_model_from_ones_own_module_has_its_adapter_too(tmp_path):
    (tmp_path / "my_task.py").write_text(
        example().replace(
            "model = EquinoxModel(make)", "from perfeds2.learning.models.mlp import MLP\nmodel = MLP((8, 16, 3))"
        )
    )
    shapes = {"dense1.weight": (8, 16), "dense1.bias": (16,), "dense2.weight": (16, 3), "dense2.bias": (3,)}
    save_file({name: np.ones(shape, np.float32) for name, shape in shapes.items()}, tmp_path / "own.safetensors")
    texts = {"devices": 2, "app-module": str(tmp_path / "my_task.py"), "adapter": "head"}
    setup = Setup.from_texts(texts, {"init": str(tmp_path / "own.safetensors")})
    assert set(setup.first_params()) == {"dense2.weight", "dense2.bias"}
