"""Do the real data reach the UEs as they should?"""

import gzip
import json
import struct
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from needs import needs
from small_files import har_archive, write_femnist

from perfeds2.errors import InputError
from perfeds2.learning.datasets import TASKS, source_of
from perfeds2.learning.datasets.cifar import BATCHES
from perfeds2.learning.datasets.shakespeare import (
    ALPHABET,
    WHOLE,
    WINDOW,
    Role,
    Windows,
    count_roles,
    letters,
    read_roles,
)
from perfeds2.learning.files import sources
from perfeds2.learning.files.sources import find
from perfeds2.learning.models.mlp import MLP
from perfeds2.spec.resolve import resolve

pytestmark = pytest.mark.slow

CLASSES = {"cifar100": 100, "shakespeare": 80, "femnist": 62, "har": 6}
NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Small data sets in the real layout: an image of digit d is grey d·20, of set 0 (training) or 1 (test)."""
    monkeypatch.setattr(sources, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.delenv(sources.VARIABLE, raising=False)
    arrays = []
    for number, each in enumerate((40, 20)):
        y = np.repeat(np.arange(10, dtype=np.uint8), each)
        x = np.broadcast_to((20 * y)[:, None, None] + number, (y.size, 28, 28)).astype(np.uint8)
        arrays += [x, y]
    for task in ("mnist", "fashion-mnist"):
        (tmp_path / task).mkdir()
        for name, array in zip(NAMES, arrays, strict=True):
            (tmp_path / task / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    (tmp_path / "cifar10").mkdir()
    for name in BATCHES:
        records = [bytes([label]) + bytes([label] * 3072) for label in range(10) for _ in range(8)]
        (tmp_path / "cifar10" / name).write_bytes(b"".join(records))
    (tmp_path / "har.zip").write_bytes(har_archive(persons=3, each=24))
    write_femnist(tmp_path, writers=8, each=620)
    (tmp_path / "cifar100").mkdir()
    for number, name in enumerate(("train_1", "train_2", "train_3", "train_4", "train_5", "test")):
        y = np.repeat(np.arange(100, dtype=np.uint8), 4)
        x = np.concatenate([np.full((400, 1024), channel, np.uint8) for channel in (1, 2, number)], axis=1)
        np.savez(tmp_path / "cifar100" / f"{name}.npz", data=x, fine_labels=y)
    users = [f"PLAY_{number}" for number in range(6)]
    raw = {user: {"raw": (f"{user} says something else. " * 40)[: 200 + 90 * n]} for n, user in enumerate(users)}
    table = {"users": users, "hierarchies": ["PLAY"] * 6, "user_data": raw}
    (tmp_path / "leaf_roles.json").write_text(json.dumps(table))
    return tmp_path


def test_mnist_tests_with_the_official_test_set_and_the_ues_labels(folder):
    data: Any = TASKS["mnist"](5, 2, 0, folder).data
    assert data.x.dtype == jnp.uint8
    assert data.ues == 5
    for ue in range(5):
        first, train, test = (int(numbers[ue]) for numbers in (data.start, data.train_count, data.test_count))
        x, y = np.asarray(data.x[:, 0]), np.asarray(data.y)
        mine, held = slice(first, first + train), slice(first + train, first + train + test)
        assert set(y[mine]) == set(y[held])
        assert np.unique(y[mine]).size == 2
        assert np.array_equal(x[mine], 20 * y[mine])
        assert np.array_equal(x[held], 20 * y[held] + 1)


def test_cifar_100_keeps_its_colours_and_has_any_number_of_its_labels(folder):
    data: Any = TASKS["cifar100"](4, 30, 0, folder).data
    colours = np.asarray(data.x, int).reshape(-1, 3, 1024).swapaxes(1, 2) @ [1 << 16, 1 << 8, 1]
    assert set(np.unique(colours)) == {0x010200 + n for n in range(6)}
    for ue in range(4):
        first, train = int(data.start[ue]), int(data.train_count[ue])
        assert np.unique(data.y[first : first + train]).size == 30
        assert set(np.asarray(data.test_part(jnp.asarray(ue), 64)[0][:, -1])) == {5}
    with pytest.raises(ValueError, match="from 1 to the task's 100 labels, got 101"):
        TASKS["cifar100"](4, 101, 0, folder)


def test_ues_are_roles_that_say_enough_drawn_by_the_seed(folder):
    sizes = [int(n) for n in np.sort(TASKS["shakespeare"](5, 3, 0, folder).data.train_count)]
    # Of 200 + 90n characters, 80 are no window's start and 80 keep the parts apart; a fifth of the rest is for tests.
    assert sizes == [130 + 90 * n - round((130 + 90 * n) / 5) for n in range(5)]
    with pytest.raises(ValueError, match="only 5 roles have enough text, got 6 UEs"):
        TASKS["shakespeare"](6, 3, 0, folder)
    chosen = [
        np.asarray(TASKS["shakespeare"](3, 3, seed, folder).data.train_count).tolist() for seed in (0, 0, 1, 2, 3)
    ]
    assert chosen[0] == chosen[1]
    assert len({str(sizes) for sizes in chosen}) > 1


def test_a_missing_data_set_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.delenv(sources.VARIABLE, raising=False)
    for name, recipe in TASKS.items():
        if recipe.source is None:
            continue
        with pytest.raises(InputError, match=f"perfeds2 data fetch {name}"):
            TASKS[name](2, 2, 0, tmp_path)


@pytest.mark.parametrize("name", TASKS)
def test_every_recipe_makes_its_task_and_the_model_takes_the_data(folder, name):
    task = TASKS[name](3, 2, 0, folder)
    assert (task.name, task.ues, task.model) == (name, 3, TASKS[name].model)
    assert task.sample == TASKS[name].sample

    @jax.jit
    def looked_at(data, key):
        x, y = data.batches(key, jnp.int32(1), (2, 5))
        return task.model(task.model.init(key), x), y

    logits, y = looked_at(task.data, jax.random.key(0))
    assert logits.shape == (2, 5, CLASSES.get(name, 10))
    assert y.shape == (2, 5)
    assert np.isfinite(logits).all()
    assert task.data.train_count.shape == (3,)


def test_what_fits_a_task_is_a_setting():
    for name, recipe in TASKS.items():
        values = {section: dict(own) for section, own in recipe.defaults.items()}
        spec = resolve({**values, "task": {"name": name, **values.get("task", {})}})
        for section, own in recipe.defaults.items():
            assert {key: getattr(spec, section).model_dump(mode="json")[key] for key in own} == own


def test_pixels_are_scaled_to_one():
    model = TASKS["mnist"].model
    params = jax.jit(model.init)(jax.random.key(0))
    x = np.random.default_rng(0).integers(0, 256, (3, 784)).astype(np.uint8)
    ours, theirs = jax.jit(lambda w, x: (model(w, x), MLP((784, 100, 10))(w, x / 255.0)))(params, x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert sum(w.size for w in params.values()) == 79_510


# ---- windows


def test_a_sample_is_eighty_characters_and_the_next():
    role = Role("A", "A", "".join(chr(97 + n * n % 26) for n in range(300)))
    data = Windows.of([Role("B", "A", "x" * 200), role])
    x, y = map(np.asarray, jax.jit(lambda ue: data.batches(jax.random.key(0), ue, (50,)))(1))
    said = letters(role.text)
    windows = {bytes(said[i : i + 81]) for i in range(300 - 80)}
    assert {bytes([*a, int(b)]) for a, b in zip(x, y, strict=True)} <= windows


def test_training_and_test_part_have_no_character_in_common():
    for size in (82 + WINDOW, 300, 1000):
        role = Role("A", "A", "".join(map(chr, 32 + np.arange(size) % 90)))
        data = Windows.of([role, role])
        start, train, test_start, test = (
            int(a[1]) for a in (data.start, data.train_count, data.test_start, data.test_count)
        )
        assert start == size
        last_trained = start + train - 1 + WINDOW
        assert test_start == last_trained + 1
        assert test_start + test - 1 + WINDOW == 2 * size - 1, "the last test sample ends with the role's last word"


def test_evaluations_look_at_evenly_spaced_windows_or_at_all():
    role = Role("A", "A", "".join(map(chr, 32 + np.arange(1000) % 90)))
    data = Windows.of([role, Role("B", "A", "y" * 170)])
    assert data.lengths() == (64, 64)
    parts = jax.jit(lambda ue: (data.train_part(ue, 64), data.test_part(ue, 64)))
    x, y, mask = map(np.asarray, parts(0)[0])
    said = letters(role.text)
    at = [n * int(np.asarray(data.train_count)[0]) // 64 for n in range(64)]
    np.testing.assert_array_equal(x, [said[i : i + 80] for i in at])
    np.testing.assert_array_equal(y, said[np.array(at) + 80])
    assert mask.all()
    assert np.asarray(parts(1)[1][2]).sum() == np.asarray(data.test_count)[1] == 2


def test_a_role_too_short_to_be_split_is_an_error():
    with pytest.raises(ValueError, match="needs 82 samples to be split, got 81"):
        Windows.of([Role("A", "A", "x" * 161)])


def test_unknown_characters_are_one_letter():
    assert len(ALPHABET) == len(set(ALPHABET)) == 80
    assert letters("a\u00e9\u2019\U0001f600\ud800").tolist()[:4] == [ALPHABET.index("a"), 0, 0, 0]
    assert letters(ALPHABET).tolist() == list(range(80))


# ---- the real data, where they are at hand


@needs("shakespeare")
def test_the_real_plays_give_leafs_counts():
    found = find(source_of("shakespeare"))
    texts = [path for path in found.folder.iterdir() if path.name.startswith(("leaf_roles", "raw_data", "1994"))]
    every = [read_roles(path) for path in texts]
    assert count_roles(every[0]) == WHOLE
    assert all(roles == every[0] for roles in every)


@needs("mnist")
def test_the_real_digits_have_their_counts():
    data: Any = TASKS["mnist"](1, 10, 0).data
    assert (int(data.train_count[0]), int(data.test_count[0])) == (60_000, 10_000)
    assert np.bincount(np.asarray(data.y)[:60_000]).tolist() == [
        5923,
        6742,
        5958,
        6131,
        5842,
        5421,
        5918,
        6265,
        5851,
        5949,
    ]
    assert abs(float(np.asarray(data.x[:60_000]).mean()) / 255 - 0.1307) < 1e-4
