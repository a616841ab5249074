"""Do UEs whose adapters have different ranks send, compute and train only what they have?"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from perfeds2 import Cell, InputError, Learner, Protocol, compare, replay, simulate
from perfeds2.learning.datasets import digits
from perfeds2.learning.job import Known, Program, local_update
from perfeds2.learning.models.adapter import adapt
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.objectives import FedAvg, PerFed
from perfeds2.learning.replay import first_weights
from perfeds2.spec.build import Stage, check, make_algorithms, make_timelines
from perfeds2.spec.cells import cycles_per_sample, upload_bits, upload_bits_by_ue
from perfeds2.spec.resolve import spec_from
from perfeds2.spec.tasks import model_of

NET = MLP((64, 7, 10), activation=jnp.tanh)
BODY = {name: np.asarray(values) for name, values in NET.init(jax.random.key(5)).items()}


@pytest.fixture
def body(tmp_path):
    """Weights of the task's usual model."""
    weights = {name: np.asarray(w) for name, w in digits.model.init(jax.random.key(5)).items()}
    save_file(weights, tmp_path / "body.safetensors")
    return tmp_path / "body.safetensors"


FLEET = "distance_m,adapter_rank\n50,1\n80,4\n60,\n120,2\n"
RANKS = (1, 4, 4, 2)


def moved(model):
    """Parameters away from the start, where B = 0."""
    first = model.init(jax.random.key(3))
    keys = jax.random.split(jax.random.key(4), len(first))
    return {name: w + 0.3 * jax.random.normal(key, w.shape) for key, (name, w) in zip(keys, first.items(), strict=True)}


def of_ranks(body, tmp_path, text=FLEET, **more):
    (tmp_path / "fleet.csv").write_text(text)
    given: dict[str, Any] = {
        "task": "digits",
        "cell": str(tmp_path / "fleet.csv"),
        "adapter": "lora:4",
        "init": str(body),
    }
    return given | {"algorithms": ["PerFedS2"], "seeds": [0], "rounds": 6, "quorum": 2} | more


def test_an_upload_and_its_computing_follow_the_rank_of_the_ue(body, tmp_path):
    spec = spec_from(**of_ranks(body, tmp_path))
    alike = {rank: spec_from(task="digits", adapter=f"lora:{rank}", init=str(body)) for rank in RANKS}
    bits = np.asarray(upload_bits_by_ue(spec))
    assert bits.tolist() == [upload_bits(alike[rank]) for rank in RANKS] == [32 * 138 * rank for rank in RANKS]
    stage = Stage.of(spec, 0)
    (algorithm,) = make_algorithms(spec, stage)
    (timeline,) = make_timelines(spec, stage, [algorithm])
    cycles = np.array([cycles_per_sample(alike[rank]) for rank in RANKS])
    assert cycles[0] < cycles[3] < cycles[1]
    compute_s = cycles * algorithm.learner.samples / stage.cell.cpu_hz
    np.testing.assert_allclose(timeline.compute_s, compute_s, rtol=1e-12)
    load = {"payload_bits": np.array([138.0 * 32 * rank for rank in RANKS]), "bandwidth": algorithm.bandwidth}
    cell, samples = stage.cell, algorithm.learner.samples * cycles / stage.cell.cycles_per_sample
    expected = simulate(cell, algorithm.protocol, rounds=6, samples=samples, **load, schedule=algorithm.schedule)
    np.testing.assert_array_equal(timeline.ues, expected.ues)
    np.testing.assert_allclose(timeline.time_s, expected.time_s, rtol=1e-12)
    found = compare(**of_ranks(body, tmp_path))
    assert found.rows[-1]["merged_bits"] == bits[timeline.ues].sum()


def test_ranks_that_are_all_alike_change_no_byte(body, tmp_path):
    def run(text, name):
        found = compare(**of_ranks(body, tmp_path, text), out=tmp_path / name)
        return found, found.models["PerFedS2", 0]

    (one, plain), (other, alike) = (run(FLEET.replace(",1", f",{a}").replace(",2", f",{a}"), a) for a in ("4", "9"))
    assert one.rows == other.rows
    assert all(plain[name].tobytes() == alike[name].tobytes() for name in plain)
    without = run("distance_m\n50\n80\n60\n120\n", "none")[1]
    assert all(plain[name].tobytes() == without[name].tobytes() for name in plain)


@pytest.mark.parametrize("rank", [1, 2])
def test_a_ue_of_a_smaller_rank_trains_as_with_an_adapter_of_that_rank_padded_with_zeros(rank):
    """Of PerFed's exact gradient through factors of rank 4 with zeros, by hand: that of the narrow factors."""
    wide, narrow = adapt(NET, "lora:4", BODY, ranks=(rank, 4)), adapt(NET, f"lora:{rank}", BODY)
    task, learner = digits(2, 3, 0), Learner(PerFed(0.5), batch=8)
    params = moved(wide)
    few = {name: w[:rank] if name.endswith("a") else w[:, :rank] for name, w in params.items()}

    def upload(model, params, ue):
        program, known = Program.of(model, learner), Known.of(task, learner, 0)
        return local_update(program, known, params, jnp.int32(ue), jnp.int32(0))[0]

    ours, theirs = upload(wide, params, 0), upload(narrow, few, 0)
    for name, expected in theirs.items():
        gap = [(0, 4 - rank), (0, 0)] if name.endswith("a") else [(0, 0), (0, 4 - rank)]
        np.testing.assert_allclose(ours[name], np.pad(expected, gap), rtol=1e-4, atol=1e-6)
    whole = upload(wide, params, 1)  # of the UE with the whole rank
    assert all(np.asarray(w if name.endswith("a") else w.T)[3].any() for name, w in whole.items())


@pytest.mark.parametrize("name", ["FedAvgS2", "Ditto", "PerFedS2"])
def test_a_round_merges_zero_padded_updates(body, tmp_path, name):
    """One round of UEs of ranks 1 and 2 with A = 2: the model moves by the mean of what each uploads, padded."""
    run = of_ranks(body, tmp_path, "distance_m,adapter_rank\n50,1\n60,2\n", algorithms=[name], quorum=2)
    found = compare(**run | {"adapter": "lora:3", "rounds": 3, "ues": 2, "labels_per_ue": 5})
    params = next(iter(found.models.values()))
    start = model_of(spec_from(task="digits", adapter="lora:3", init=str(body)))
    first = first_weights(start, 0)
    for part, w in params.items():
        w, before = np.asarray(w), np.asarray(first[part])
        w, before = (w, before) if part.endswith("a") else (w.T, before.T)
        assert (w[:2] != before[:2]).any(axis=1).all()
        assert (w[2] == before[2]).all()  # neither UE has a third row


@pytest.mark.parametrize("objective", [FedAvg(), PerFed(0.5)])
def test_rounds_are_means_of_narrow_uploads_padded_with_zeros(objective):
    """UEs of ranks 1 and 3, each with an adapter of its own rank, and two rounds of both by hand."""
    wide, learner = adapt(NET, "lora:3", BODY, ranks=(1, 3)), Learner(objective, 0.2, batch=8)
    task = replace(digits(2, 5, 0), model=wide)
    known, by_hand = Known.of(task, learner, 0), {n: np.asarray(w) for n, w in first_weights(wide, 0).items()}
    for version in (0, 1):
        after = dict(by_hand)
        for ue, rank in enumerate((1, 3)):
            cut = {name: w[:rank] if name.endswith("a") else w[:, :rank] for name, w in by_hand.items()}
            narrow = {name: jnp.asarray(w) for name, w in cut.items()}
            program = Program.of(adapt(NET, f"lora:{rank}", BODY), learner)
            upload = local_update(program, known, narrow, jnp.int32(ue), jnp.int32(version))[0]
            for name, part in upload.items():
                gap = [(0, most - size) for most, size in zip(by_hand[name].shape, part.shape, strict=True)]
                after[name] = after[name] - 0.2 / 2 * np.pad(part, gap)
        by_hand = after
    timeline = simulate(Cell.draw(2, seed=0), Protocol(2), payload_bits=1e5, samples=24, rounds=2)
    for name, w in replay(task, timeline, learner, seed=0).items():
        np.testing.assert_allclose(w, by_hand[name], rtol=1e-4, atol=1e-6)


def test_ranks_are_whole_numbers_and_need_uploads_of_any_size(body, tmp_path):
    for more, words in [
        ({"text": "distance_m,adapter_rank\n50,1.5\n"}, "expected a whole number"),
        ({"top_k": 0.1}, "--top-k needs uploads of one size"),
        ({"secure_aggregation": True}, "--secure-aggregation needs uploads of one size"),
    ]:
        with pytest.raises(InputError, match=words):
            check(spec_from(**of_ranks(body, tmp_path, **more)), trains=False)
