"""A device of a federation in plain PyTorch, without JAX or perfeds2.

    python -m pip install torch numpy safetensors paho-mqtt cryptography
    python torch_device.py --number 3 --server fl.example.org:8883 --credentials credentials --data mine.npz

mine.npz holds x (one sample per row) and y (labels from 0). The data stays here; only gradients and four metrics are
sent. Supports FedAvg and PerFed on networks of dense layers. docs/explanation/wire.md describes the wire format.
"""

import argparse
import hashlib
import json
import queue
import ssl
import time
import tomllib
import uuid
from pathlib import Path

import numpy as np
import paho.mqtt.client as mqtt
import torch
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from safetensors.torch import load, save
from torch.func import grad, jvp

CHUNK_BYTES = 240 * 1024


def logits(params, x):
    """Apply dense layers with ReLU in between: dense1.weight [inputs, outputs], dense1.bias, dense2.weight, …"""
    last = len(params) // 2
    for number in range(1, last + 1):
        x = x @ params[f"dense{number}.weight"] + params[f"dense{number}.bias"]
        x = torch.relu(x) if number < last else x
    return x


def loss(params, x, y):
    return torch.nn.functional.cross_entropy(logits(params, x), y)


def step(params, gradient, size):
    return {name: values - size * gradient[name] for name, values in params.items()}


def perfed(params, draw, alpha):
    """Return Per-FedAvg's exact gradient (I − α∇²f(w; D_h)) ∇f(w − α∇f(w; D_in); D_o) on three independent batches."""
    outer = grad(loss)(step(params, grad(loss)(params, *draw()), alpha), *draw())
    batch = draw()
    return step(outer, jvp(lambda w: grad(loss)(w, *batch), (params,), (outer,))[1], alpha)


def train(params, data, settings):
    """Return the sum of the local steps' gradients: PerFed's, or for FedAvg ∇f on one batch."""
    x, y = data["train"]
    numbers = iter(lambda: torch.randint(len(y), (settings["batch"],)), None)
    draw, is_perfed = lambda: (x[at := next(numbers)], y[at]), settings["algorithm"].startswith("PerFed")
    total = {name: torch.zeros_like(values) for name, values in params.items()}
    for _ in range(settings["local-steps"]):
        gradient = perfed(params, draw, settings["alpha"]) if is_perfed else grad(loss)(params, *draw())
        total, params = step(total, gradient, -1), step(params, gradient, settings["beta"])
    return total


def evaluate(params, data, alpha):
    """Return the model's loss and accuracy on this device, before and after one personal step."""
    (x, y), (test_x, test_y), said = data["train"], data["test"], {}
    for suffix, w in (("", params), ("_personal", step(params, grad(loss)(params, x, y), alpha))):
        said[f"train_loss{suffix}"] = float(loss(w, x, y))
        said[f"test_accuracy{suffix}"] = float((logits(w, test_x).argmax(1) == test_y).float().mean())
    return said


def read_data(path):
    """Read the data: three quarters for training, the rest for testing."""
    with np.load(path) as file:
        x, y = torch.tensor(file["x"]), torch.tensor(file["y"], dtype=torch.int64)
    x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train_at, test_at = order[len(y) // 4 :], order[: len(y) // 4]
    return {"train": (x[train_at], y[train_at]), "test": (x[test_at], y[test_at])}


def connect(me, server, folder, inbox):
    """Connect, and reconnect automatically. Each connection has its own session, so an old will does not count."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=me, userdata={})
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.load_verify_locations(folder / "ca.crl")  # brokers whose key was stolen
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    context.load_cert_chain(folder / "devices" / f"{me}.crt", folder / "devices" / f"{me}.key")
    client.tls_set_context(context)

    def before(_, mine):
        mine["session"] = uuid.uuid4().hex
        client.will_set(f"perfeds2/here/{me}", json.dumps({"here": False, **mine}), qos=1)

    client.on_pre_connect = before
    client.on_connect = lambda *_: client.subscribe([("perfeds2/run", 1), (f"perfeds2/job/{me}", 1)])
    client.on_message = lambda _, mine, message: inbox.put((message.topic, message.payload, mine["session"]))
    client.connect_async(server.rpartition(":")[0], int(server.rpartition(":")[2]), keepalive=20)
    client.loop_start()  # in a thread, so that the broker gets its pings during computation
    return client


def work(client, me, inbox, data):
    """Handle messages forever. A repeated job is answered with the same bytes."""
    run, settings = "", {}
    while True:
        topic, payload, session = inbox.get()
        told = json.loads(payload) if payload and "/model/" not in topic else None
        if topic == "perfeds2/run" and told:  # a new run, or a roll call by the server
            if told["run"] != run:
                run, settings = told["run"], tomllib.loads(told["settings"])
                job, chunks, answer = {"ticket": -1}, None, (-1,)  # tickets restart
            here = {"here": True, "session": session, "run": run}
            if not settings["algorithm"].startswith(("FedAvg", "PerFed")) or any("." in name for name in settings):
                here["error"] = "this device knows FedAvg and PerFed without settings of their own"
            client.publish(f"perfeds2/here/{me}", json.dumps(here), qos=1)
        elif topic == f"perfeds2/job/{me}" and told and told["run"] == run:
            if told["ticket"] == answer[0]:
                send(client, me, *answer)
            elif told["ticket"] > job["ticket"]:
                job, chunks = told, {}
                client.subscribe(f"perfeds2/model/{job['version']}/+", 1)
        elif payload and run and chunks is not None and topic.startswith(f"perfeds2/model/{job['version']}/"):
            chunks[int(topic.rpartition("/")[2])] = payload
            model = b"".join(chunks[number] for number in sorted(chunks))
            if hashlib.sha256(model).hexdigest() == job["sha256"]:  # complete
                client.unsubscribe(f"perfeds2/model/{job['version']}/+")
                model = AESGCM(bytes.fromhex(job["key"])).decrypt(bytes(12), model, None)
                began_s, params, chunks = time.monotonic(), load(model), None
                update = save(train(params, data, settings)) if job["kind"] == "train" else b""
                head = {"run": run, "version": job["version"], "compute_s": time.monotonic() - began_s}
                answer = job["ticket"], head | {"metrics": evaluate(params, data, settings["alpha"])}, update
                send(client, me, *answer)


def send(client, me, ticket, head, update):
    """Publish a head that gives the size, then the update in chunks."""
    parts = [update[start : start + CHUNK_BYTES] for start in range(0, len(update), CHUNK_BYTES)]
    size = {"bytes": len(update), "sha256": hashlib.sha256(update).hexdigest()}
    for name, part in (("head", json.dumps(head | size).encode()), *enumerate(parts)):
        client.publish(f"perfeds2/reply/{me}/{ticket}/{name}", part, qos=1)


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--number", "--server", "--credentials", "--data"):
        flags.add_argument(name, required=True)
    given, inbox = flags.parse_args(), queue.SimpleQueue()
    me = f"device-{int(given.number)}"
    work(connect(me, given.server, Path(given.credentials), inbox), me, inbox, read_data(given.data))
