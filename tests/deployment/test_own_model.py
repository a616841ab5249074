"""Does the example of docs/how-to/deploy.md, a user's own model and data, take part in a federation?"""

import re
from pathlib import Path

import numpy as np
import pytest
from in_process import InProcess

from perfeds2.deployment.device import do_job
from perfeds2.deployment.merging import Handed
from perfeds2.deployment.own import own_samples
from perfeds2.deployment.replay_run import replay_run
from perfeds2.deployment.serve import serve
from perfeds2.deployment.setup import Setup
from perfeds2.errors import InputError

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "deploy.md"


def example():
    return re.findall(r"```py\n(# my_task\.py\n.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)[0]


def write_samples(data):
    """Of three devices, as the example reads them."""
    random = np.random.default_rng(0)
    for device in range(3):
        folder = data / f"device-{device}"
        folder.mkdir(parents=True)
        labels = random.integers(0, 3, 30 + device)
        np.savez(
            folder / "samples.npz", x=np.eye(3, 8)[labels] + 0.1 * random.standard_normal((len(labels), 8)), y=labels
        )


def test_the_example_has_at_most_twenty_lines():
    lines = [line for line in example().splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 20


@pytest.mark.slow
def test_the_example_takes_part_and_replays_to_the_same_weights(tmp_path):
    pytest.importorskip("equinox")
    module = tmp_path / "my_task.py"
    module.write_text(example())
    write_samples(tmp_path / "data")
    setup = Setup.from_texts(
        {"devices": 3, "quorum": 1, "rounds": 20, "beta": 0.5, "alpha": 0.1, "app-module": str(module)}
    )
    tasks = [setup.task(device, tmp_path / "data" / f"device-{device}") for device in range(3)]

    out = tmp_path / "run"
    serve(
        setup,
        InProcess(
            lambda job, params: do_job(setup, tasks[job.ue], job, Handed(params))[0], lambda job: 1.0 + job.ue, 3
        ),
        out,
    )
    setup.write(out)
    rows = (out / "metrics.csv").read_text().splitlines()
    accuracies = [float(row.rsplit(",", 1)[1]) for row in rows[1:]]
    assert accuracies[-1] > max(accuracies[0], 0.9)
    with pytest.raises(InputError, match="the devices used their own data"):
        replay_run(out)
    assert replay_run(out, str(tmp_path / "data" / "device-{}")).holds


def test_a_module_without_what_is_needed_is_refused(tmp_path):
    (tmp_path / "empty.py").write_text("model = 1\n")
    setup = Setup.from_texts({"devices": 2, "quorum": 1, "app-module": str(tmp_path / "empty.py")})
    with pytest.raises(InputError, match="has no load_data"):
        setup.model()
    missing = Setup.from_texts({"devices": 2, "quorum": 1, "app-module": str(tmp_path / "missing.py")})
    with pytest.raises(InputError, match="was not found"):
        missing.model()


def test_own_samples_are_the_same_whatever_the_devices_number():
    data = own_samples(np.arange(20.0).reshape(10, 2), np.arange(10), test_share=0.3)
    import jax
    import jax.numpy as jnp

    key = jax.random.key(1)
    first, other = (data.batches(key, jnp.int32(ue), (4,)) for ue in (0, 17))
    assert np.array_equal(first[0], other[0])
    train, test = data.train_part(jnp.int32(5), 128), data.test_part(jnp.int32(5), 128)
    assert int(train[2].sum()) == 7
    assert int(test[2].sum()) == 3
    assert not set(np.asarray(train[1])[np.asarray(train[2])]) & set(np.asarray(test[1])[np.asarray(test[2])])
    with pytest.raises(ValueError, match="label for each"):
        own_samples(np.zeros((3, 2)), np.zeros(2))
