"""Is a user's file read as intended, and does an error name its line?"""

import io
import json
import zipfile

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfeds2 import Task
from perfeds2.learning.data import Shards
from perfeds2.learning.files.formats import DataBroken
from perfeds2.learning.files.own_file import OwnFile, in_words
from perfeds2.learning.files.tables import SampleTable
from perfeds2.learning.losses import binary, mse
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import ModelWithLoss, bare
from perfeds2.learning.partition import Dirichlet, Quantity, Samples
from perfeds2.learning.target import tenths

random = np.random.default_rng(0)


def table_of(path, target=(), ue_column=None, loss=None) -> SampleTable:
    return OwnFile.open(path).table(tuple(target), ue_column, loss)


def csv(tmp_path, text, name="mine.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def npz(tmp_path, name="mine.npz", **arrays):
    path = tmp_path / name
    np.savez(path, **arrays)
    return path


# ---- what is taken for what

PEOPLE = "ue,age,town,label\n7,30,Oslo,yes\n7,41.5,Rome,no\n9,22,Oslo,no\n9,35,Rome,yes\n"


def test_columns_are_found_by_their_names_and_texts_become_columns(tmp_path):
    table = table_of(csv(tmp_path, PEOPLE))
    assert table.labels == ("no", "yes")
    assert table.y.tolist() == [1, 0, 0, 1]
    assert table.names == ("7", "9")
    assert table.owners is not None
    assert table.owners.tolist() == [0, 0, 1, 1]
    assert table.x[:, 1:].tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]  # Oslo, Rome
    assert table.columns == ("age", "town=Oslo", "town=Rome")
    assert len(table.centre) == 1
    said = "; ".join(table.said)
    for words in (
        "4 lines",
        "town one-hot encoded",
        "column ue names the owner",
        "labels 0 to 1, which stand for no, yes",
    ):
        assert words in said
    other = table_of(csv(tmp_path, PEOPLE), ["age"], "town")
    assert (other.names, other.labels) == (("Oslo", "Rome"), ())
    np.testing.assert_allclose(other.y[:, 0] * other.unit[0] + other.shift[0], [30, 41.5, 22, 35], rtol=1e-6)


@pytest.mark.parametrize(("separator", "end"), [(";", "\n"), ("\t", "\r\n"), (",", "\n\n\n")])
def test_other_separators_and_line_ends_say_the_same(tmp_path, separator, end):
    text = "\ufeff" + PEOPLE.replace(",", separator).replace("\n", end.replace("\n\n\n", "\n")) + end
    table, usual = table_of(csv(tmp_path, text)), table_of(csv(tmp_path, PEOPLE, "usual.csv"))
    np.testing.assert_array_equal(table.x, usual.x)
    np.testing.assert_array_equal(table.y, usual.y)


@pytest.mark.parametrize(
    ("values", "loss", "labels"),
    [
        (["3", "7", "9"], None, 3),
        (["3", "7", "9"], "mse", 0),
        (["1.5", "2.5", "3.5"], None, 0),
        (["1.5", "2.5", "3.5"], "cross-entropy", 3),
        ([str(number) for number in range(40)], None, 0),
        ([str(number) for number in range(40)], "cross-entropy", 40),
        (["a", "b"], None, 2),
        (["true", "false"], None, 2),
    ],
)
def test_a_target_is_labels_or_numbers_by_its_look_or_by_the_loss(tmp_path, values, loss, labels):
    text = "x,y\n" + "".join(f"{number},{value}\n" for number, value in enumerate(values))
    assert len(table_of(csv(tmp_path, text), loss=loss).labels) == labels


def test_arrays_are_taken_as_they_are(tmp_path):
    x, y = random.integers(0, 256, (9, 4, 4, 3), dtype=np.uint8), np.array([2, 5, 5, 2, 2, 5, 5, 2, 2])
    table = table_of(
        npz(
            tmp_path,
            x=x,
            y=y,
            ue=np.array(list("aabbccaab")),
            x_test=x[:3],
            y_test=y[:3],
            ue_test=np.array(list("abc")),
        )
    )
    assert table.x.dtype == np.uint8
    np.testing.assert_array_equal(table.x[1], x[1].transpose(2, 0, 1).ravel())  # red, green, blue
    assert table.labels == ("2", "5")
    assert table.names == ("a", "b", "c")
    assert table.tests == 3
    assert table.y[-3:].tolist() == [0, 1, 1]
    several = table_of(npz(tmp_path, x=random.random((5, 2)), y=random.random((5, 2))))
    assert len(several.unit) == 2


def test_a_folder_has_a_file_a_ue_in_the_order_of_their_numbers(tmp_path):
    for name in ("w10", "w9", "w1"):
        npz(tmp_path, f"{name}.npz", x=np.full((3, 2), int(name[1:]), float), y=np.array([0, 1, 1]))
    table = table_of(tmp_path)
    assert table.names == ("w1", "w9", "w10")
    assert table.x[:, 0].tolist() == [1] * 3 + [9] * 3 + [10] * 3


# ---- what is made of it


def test_columns_are_scaled_by_the_training_parts_alone(tmp_path):
    """A test sample that is far out moves nothing: another seed tests another, and the rest has mean 0 and deviation 1."""
    lines = [f"{random.normal():.6f},{1e9 + number},{number % 3}" for number in range(60)]
    task = Task.of_file(csv(tmp_path, "a,second,label\n" + "\n".join(lines) + "\n"), ues=4)
    assert isinstance(task.data, Shards)
    start, train = np.asarray(task.data.start), np.asarray(task.data.train_count)
    seen = np.concatenate([np.asarray(task.data.x)[at : at + count] for at, count in zip(start, train, strict=True)])
    np.testing.assert_allclose(seen.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(seen.std(axis=0), 1, rtol=1e-5)
    assert np.unique(np.asarray(task.data.x)[:, 1]).size == 60  # seconds beyond single precision are kept apart
    assert abs(np.asarray(task.data.x).mean(axis=0)).max() > 1e-4


def test_a_model_is_told_with_the_scale_of_its_inputs_and_outputs(tmp_path):
    """By which the file's own numbers become what the model was trained on."""
    raw = np.stack([random.normal(30, 5, 40), random.normal(-2e6, 1e5, 40)], axis=1)
    lines = [f"{a:.9g},{b:.9g},{'uv'[n % 2]},{3 * a:.9g}" for n, (a, b) in enumerate(raw)]
    file = OwnFile.open(csv(tmp_path, "a,b,kind,price\n" + "\n".join(lines) + "\n"))
    split, table = Quantity(0.5), file.table(("price",), None, None)
    told = {name: json.loads(text) for name, text in in_words(table, 4, split, 7).items()}
    assert told["inputs"] == ["a", "b", "kind=u", "kind=v"]
    order = split(Samples.of(tenths(table.y[:, 0])), 4, 7).order
    whole = np.concatenate([raw, np.arange(40)[:, None] % 2 == [[0, 1]]], axis=1)[order]
    task = Task.of_file(file.path, target=["price"], ues=4, seed=7, split=split)
    assert isinstance(task.data, Shards)
    seen = (whole - told["input_mean"]) / told["input_deviation"]
    np.testing.assert_allclose(task.data.x, seen, atol=1e-4)
    price = np.asarray(task.data.y) * told["output_deviation"] + told["output_mean"]
    np.testing.assert_allclose(price[:, 0], 3 * whole[:, 0], rtol=1e-5)


@pytest.mark.parametrize(
    ("y", "loss", "outputs"), [([0, 1], binary, 1), ([0, 1, 2], None, 3), ([0.5, 1.5, 7.25], mse, 1)]
)
def test_the_model_and_the_loss_follow_from_the_target(tmp_path, y, loss, outputs):
    task = Task.of_file(npz(tmp_path, x=random.random((60, 5)), y=np.resize(y, 60)), ues=3)
    if loss is None:
        assert task.model == MLP((5, 32, outputs))
    else:
        assert isinstance(task.model, ModelWithLoss)
        assert task.model.loss is loss
        assert task.model.model == MLP((5, 32, outputs))


def test_another_file_of_the_same_name_has_another_digest(tmp_path):
    before = OwnFile.open(csv(tmp_path, PEOPLE)).digest
    assert OwnFile.open(csv(tmp_path, PEOPLE.replace("30", "31"))).digest != before
    folder = tmp_path / "many"
    folder.mkdir()
    npz(folder, "a.npz", x=np.ones((2, 1)), y=np.array([0, 1]))
    one = OwnFile.open(folder).digest
    (folder / "a.npz").rename(folder / "b.npz")
    assert OwnFile.open(folder).digest != one


# ---- what is wrong with it


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "must have a different name for each column in line 1"),
        ("a,label\n", "has no lines after the column names"),
        ("a,label\n\n\n", "has no lines after"),
        ("1,2\n3,4\n", "must have a different name for each column in line 1; got '1,2'"),
        ("a,,label\n1,2,0\n", "must have a different name for each column in line 1"),
        ("a,label\n1,0\n2,1\nthree,1\n", "line 4: column a holds 'three'; expected a number"),
        ("a,label\n1,0\n,1\n", "line 3: column a is empty or NaN; expected a number"),
        ("a,label\n1,0\n\n2,1\n", "line 3: column a is empty"),
        ("a,label\n1,0\nnan,1\n", "line 3: column a is empty or NaN; expected a number"),
        ("a,label\n1,up\n2,nan\n", "line 3: column label is empty or NaN; expected a text"),
        ("a,a,label\n1,2,0\n", "must have a different name for each column in line 1; got 'a,a,label'"),
        ("a,label\n1,0\ninf,1\n", "line 3: column a holds"),
        ("a,label\n1,0\n2,1,5\n", "line 3"),
        ("a,label\n1,0,9\n2,1,5\n", "Length of header or names does not match length of data"),
        ("a,label\n1,x\n2,\n", "line 3: column label is empty"),
        ("a,label\n,1\n,2\n", "line 2: column a is empty"),
        ("a,label\n1,\n2,\n", "line 2: column label is empty"),
        ("a,label\n1,0\n2,0\n", "column label holds 1 different labels; expected from 2"),
        ("a,b\n1,0\n", "has no column called label or target or y; choose the target with --target from a, b"),
        ("a,label,y\n1,0,0\n", "has columns label and y; choose one with --target"),
        ("label\n1\n0\n", "has no input column besides label"),
        ("ue,a,label\n1,2,0\n,3,1\n", "line 3: column ue is empty"),
        ("a,label\n" + "".join(f"n{i},{i % 2}\n" for i in range(40)), "column a holds 40 different texts"),
        (b"\xff\xfe\x00a,label\n1,0", "cannot be read: 'utf-8' codec can't decode"),
    ],
)
def test_a_bad_csv_is_one_sentence_with_its_line(tmp_path, text, sentence):
    with pytest.raises(DataBroken) as refused:
        table_of(csv(tmp_path, text))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": np.ones((3, 2))}, "holds x; expected x and y"),
        ({"x": np.ones((3, 2)), "y": np.ones(4)}, "has y of shape 4 and 3 rows of samples"),
        ({"x": np.ones((0, 2)), "y": np.ones(0)}, "has x of shape 0×2"),
        ({"x": np.ones(3), "y": np.ones(3)}, "has x of shape 3 and 3 rows of samples"),
        ({"x": np.array([[1.0], [np.nan]]), "y": np.array([0, 1])}, "row 1 of x holds NaN"),
        ({"x": np.ones((2, 1)), "y": np.array([np.inf, 1])}, "row 0 of y holds NaN or a number beyond 1e+30"),
        (
            {"x": np.ones((2, 1)), "y": np.array([{}, 1], object)},
            "Object arrays cannot be loaded when allow_pickle=False",
        ),
        ({"x": np.ones((2, 1), complex), "y": np.array([0, 1])}, "holds complex128 under x; expected numbers"),
        ({"x": np.ones((2, 1)), "y": np.array([0, 1]), "ue": np.array([1])}, "has ue of shape 1 and 2 rows of samples"),
        (
            {"x": np.ones((2, 1)), "y": np.array([0, 1]), "x_test": np.ones((1, 1))},
            "holds x, y, x_test; expected x and y",
        ),
        (
            {"x": np.ones((2, 1)), "y": np.array([0, 1]), "x_test": np.ones((1, 2)), "y_test": np.array([0])},
            "has x_test of 2 float64 per sample, but x of 1 float64",
        ),
        (
            {"x": np.ones((2, 1)), "y": np.array([0, 1]), "x_test": np.ones((1, 1)), "y_test": np.array([7])},
            "row 0 of y_test is 7, which is not in y",
        ),
        (
            {
                "x": np.ones((2, 1)),
                "y": np.array([0, 1]),
                "ue": np.array([0, 1]),
                "x_test": np.ones((1, 1)),
                "y_test": np.array([0]),
            },
            "and ue_test if there is ue",
        ),
    ],
)
def test_bad_arrays_are_one_sentence_with_the_row(tmp_path, arrays, sentence):
    with pytest.raises(DataBroken) as refused:
        table_of(npz(tmp_path, **arrays))
    assert sentence in str(refused.value)


def test_a_forged_header_costs_no_memory(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**12, 4)})
    with zipfile.ZipFile(tmp_path / "forged.npz", "w") as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, header.getvalue())
    with pytest.raises(DataBroken, match=r"cannot be read: (Unable to allocate|EOF: )"):
        table_of(tmp_path / "forged.npz")


def test_a_folder_says_which_file_is_wrong(tmp_path):
    with pytest.raises(DataBroken, match="is a folder without npz files"):
        table_of(tmp_path)
    npz(tmp_path, "a.npz", x=np.ones((2, 3)), y=np.array([0, 1]))
    npz(tmp_path, "b.npz", x=np.ones((2, 4)), y=np.array([0, 1]))
    with pytest.raises(
        DataBroken, match=r"b\.npz has x of f×4, y of i×single; expected x of f×3, y of i×single, as a\.npz has"
    ):
        table_of(tmp_path)
    npz(tmp_path, "b.npz", x=np.ones((1, 3)), y=np.array([0]))
    with pytest.raises(ValueError, match="UE b has 0 training and 1 test samples, too few to train and test on"):
        Task.of_file(tmp_path)


hostile = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
cells = st.one_of(
    st.sampled_from(["", "1", "0", "2.5", "nan", "-inf", "1e400", "a", '"b,c"', '"', "\t", ";", "\x00", "é", "1_0"]),
    st.text(max_size=4),
)


@pytest.mark.slow
@given(st.lists(st.lists(cells, min_size=1, max_size=4), max_size=6), st.sampled_from(["", "a,label\n", "ue,a,y\n"]))
@hostile
def test_any_csv_is_read_or_refused_in_a_sentence(tmp_path, lines, head):
    is_read_or_refused(csv(tmp_path, (head + "\n".join(map(",".join, lines))).encode("utf-8", "surrogatepass")))


@pytest.mark.slow
@given(st.binary(max_size=60), st.integers(0, 400), st.integers(0, 200))
@hostile
def test_any_npz_is_read_or_refused_in_a_sentence(tmp_path, noise, at, cut):
    path = npz(tmp_path, x=np.arange(6.0).reshape(3, 2), y=np.array([0, 1, 1]))
    whole = path.read_bytes()
    path.write_bytes((whole[:at] + noise + whole[at + len(noise) :])[: len(whole) - cut])
    is_read_or_refused(path)


def is_read_or_refused(path):
    table, said = None, ""
    try:
        table = table_of(path)
    except DataBroken as error:
        said = str(error)
    assert "\n" not in said.strip()
    if table is not None:
        assert len(table.x) == len(table.y) > 0
        assert np.isfinite(table.x.astype(float)).all()
        assert np.isfinite(table.y).all()


@pytest.mark.parametrize("shape", [(8, 8), (4, 4, 3), (5, 5, 5)], ids=str)
def test_images_are_the_same_task_from_a_file_and_from_an_array(tmp_path, shape):
    """Bytes stay bytes, which the model divides by 255; colours come first; the hidden layer depends on the inputs."""
    x, y = random.integers(0, 256, (40, *shape), np.uint8), np.arange(40) % 4
    file = Task.of_file(npz(tmp_path, x=x, y=y), ues=4, split=Dirichlet(100.0))
    array = Task.of_arrays("mine", x, y, ues=4, seed=0, split=Dirichlet(100.0))
    inputs = int(np.prod(shape))
    assert bare(file.model) == array.model == MLP((inputs, 32 if inputs <= 64 else 100, 4), input_scale=255)
    for one, other in zip(jax.tree.leaves(file.data), jax.tree.leaves(array.data), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    numbers = Task.of_arrays("mine", x.astype(float), y, ues=4, seed=0, split=Dirichlet(100.0))
    assert numbers.model == MLP((inputs, 32 if inputs <= 64 else 100, 4), input_scale=1)
