"""Does the example of docs/how-to/deploy.md, a user's own model and data, take part in a federation?"""

import json
import re
from pathlib import Path

import command_line
import numpy as np
import pytest
from in_process import InProcess
from needs import needs

from perfeds2.deployment.credentials import make_credentials
from perfeds2.deployment.device import do_job
from perfeds2.deployment.merging import StartModel
from perfeds2.deployment.messages import Run
from perfeds2.deployment.mqtt.local import run_locally
from perfeds2.deployment.own import own_samples
from perfeds2.deployment.preparation import Owner, prepare, travelling
from perfeds2.deployment.replay_run import replay_run
from perfeds2.deployment.server import serve
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
            lambda job, params: do_job(setup, tasks[job.ue], job, StartModel(params))[0], lambda job: 1.0 + job.ue, 3
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


@pytest.mark.slow
def test_own_samples_are_the_same_whatever_the_devices_number():
    data = own_samples(np.arange(20.0).reshape(10, 2), np.arange(10), test_share=0.3)
    import jax

    @jax.jit
    def looked_at(ue):
        return data.batches(jax.random.key(1), ue, (4,)), data.train_part(ue, 128), data.test_part(ue, 128)

    (first, train, test), (other, *_) = (looked_at(np.int32(ue)) for ue in (0, 17))
    assert np.array_equal(first[0], other[0])
    assert int(train[2].sum()) == 7
    assert int(test[2].sum()) == 3
    assert not set(np.asarray(train[1])[np.asarray(train[2])]) & set(np.asarray(test[1])[np.asarray(test[2])])
    with pytest.raises(ValueError, match="label for each"):
        own_samples(np.zeros((3, 2)), np.zeros(2))


# ---- PyTorch

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_task.py"
NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.layer = nn.Linear(inputs, classes)

    def forward(self, x):
        return self.layer(x)
"""


@pytest.fixture(scope="module")
def net_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("torch") / "mine.py"
    file.write_text(NET)
    return file


def test_the_documented_pytorch_example_is_the_file():
    text = (DOCUMENT.parent / "torch.md").read_text(encoding="utf-8")
    (documented,) = re.findall(r"```py\n# torch_task\.py\n(.*?)```", text, re.DOTALL)
    code = re.sub(r"  # noqa: .*", "", EXAMPLE.read_text(encoding="utf-8"))
    assert code.endswith(f'"""\n\n{documented}')


def federated(setup, owners, out):
    """Run a federation whose devices prepare from the server's announcement, as real ones do."""
    run = travelling(setup, "a-run")
    assert ".py" not in run.settings
    ready = [prepare(run, owner, device) for device, owner in enumerate(owners)]

    def answer(job, params):
        own = ready[job.ue]
        assert own.task is not None
        return do_job(own.setup, own.task, job, StartModel(params))[0]

    devices = InProcess(
        answer,
        lambda job: 1.0 + job.ue,
        setup.ues,
    )
    serve(setup, devices, out)
    setup.write(out)
    return json.loads((out / "summary.json").read_text())


@pytest.mark.slow
@needs("torch")
def test_the_pytorch_example_is_federated_and_replays_to_the_same_weights(tmp_path):
    for device in range(2):
        folder, labels = tmp_path / f"device-{device}", np.arange(20) % 2
        folder.mkdir()
        x = np.random.default_rng(device).normal(size=(20, 1, 8, 8)) + 3 * labels[:, None, None, None]
        np.savez(folder / "samples.npz", x=x, y=labels)
    texts = {"devices": 2, "quorum": 1, "rounds": 12, "beta": 0.1, "alpha": 0.02, "app-module": str(EXAMPLE)}
    texts["algorithm"] = "FedAvgS2"  # compiles in half of the time
    setup, data = Setup.from_texts(texts), str(tmp_path / "device-{}")
    owners = [Owner(EXAMPLE, data_folder=tmp_path / f"device-{device}") for device in range(2)]
    summary = federated(setup, owners, tmp_path / "run")
    assert summary["task"] == "torch_task"  # and not digits, which no device has
    assert "torch_task · 2 of 2 devices" in (tmp_path / "run" / "report.html").read_text()
    assert summary["algorithms"][0]["test_accuracy_personal"]["mean"] > 0.9
    assert set(setup.first_params()) == {"0.weight", "0.bias", "3.weight", "3.bias"}
    assert replay_run(tmp_path / "run", data).relative == 0.0
    with pytest.raises(InputError, match=r"--device-data .*/none-0 of device 0 does not exist"):
        replay_run(tmp_path / "run", str(tmp_path / "none-{}"))


@pytest.mark.slow
@needs("torch")
def test_a_pytorch_model_given_by_name_is_federated_and_replays(net_file, tmp_path):
    net = f"{net_file}:Net"
    setup = Setup.from_texts({"devices": 2, "quorum": 1, "rounds": 3, "algorithm": "FedAvgS2"}, {"model": net})
    federated(setup, [Owner(files={"model": net})] * 2, tmp_path / "run")
    assert set(setup.first_params()) == {"layer.weight", "layer.bias"}
    assert Setup.read(tmp_path / "run") == setup
    assert replay_run(tmp_path / "run").holds
    with pytest.raises(InputError, match="start this device with --app-module FILE or --model"):
        prepare(travelling(setup, "a-run"), Owner(), 0)


@pytest.mark.slow
@needs("torch")
def test_a_model_from_the_network_is_never_loaded(net_file):
    run = Run(run="a-run", settings=f'devices = 2\nquorum = 1\nmodel = "{net_file}:Net"')
    for owner in (Owner(), Owner(files={"model": f"{net_file}:Net"})):
        with pytest.raises(InputError, match="refers to a file or module, which a federation does not run"):
            prepare(run, owner, 0)


@pytest.mark.slow
@needs("torch")
def test_a_pytorch_model_without_the_shape_of_a_sample_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text(EXAMPLE.read_text(encoding="utf-8").replace("sample_shape", "shape"))
    setup = Setup.from_texts({"devices": 2, "quorum": 1, "app-module": str(tmp_path / "mine.py")})
    with pytest.raises(InputError, match=r"needs the shape of a sample; add sample_shape = \(1, 28, 28\)"):
        setup.model()


# ---- folders


def test_a_resumed_federation_on_one_machine_remembers_the_data_folders(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("perfeds2.deployment.local.make_credentials", killed)
    setup = Setup.from_texts({"devices": 2, "quorum": 1})
    for device in range(2):
        (tmp_path / f"data-{device}").mkdir()
    with pytest.raises(KeyboardInterrupt):
        run_locally(setup, tmp_path / "run", "data-{}")
    monkeypatch.chdir(tmp_path / "run")
    (tmp_path / "data-1").rmdir()
    with pytest.raises(InputError, match=r"--device-data /.*: /.*/data-1 of device 1 does not exist"):
        run_locally(setup, tmp_path / "run")


def test_a_missing_data_folder_is_named_at_once(tmp_path):
    setup = Setup.from_texts({"devices": 2, "quorum": 1})
    (tmp_path / "data-0").mkdir()
    with pytest.raises(InputError, match=r"--device-data .*: /.*/data-1 of device 1 does not exist"):
        run_locally(setup, tmp_path / "run", str(tmp_path / "data-{}"))
    assert not (tmp_path / "run").exists()
    make_credentials(tmp_path / "credentials", 1, ["127.0.0.1"])
    flags = ("--number", "0", "--server", "127.0.0.1:1", "--credentials", str(tmp_path / "credentials"))
    status, said = command_line.perfeds2("federate", "device", *flags, "--data", str(tmp_path / "none"))
    assert status == 2
    assert str(tmp_path / "none") in said
