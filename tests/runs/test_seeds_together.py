"""Is a comparison the same when its seeds are trained together, as a GPU does it?"""

import pytest
from in_numpy import train_in_numpy

from perfeds2 import compare
from perfeds2.runs import trainer
from perfeds2.runs.pool import WorkerChoice, run_all
from perfeds2.runs.store import Store
from perfeds2.runs.training import trainings_of
from perfeds2.spec import build
from perfeds2.spec.resolve import spec_from

pytestmark = pytest.mark.slow

SETTINGS = {"ues": 6, "quorum": 2, "horizon_s": 1.5, "batch": 8, "eval_every_s": 0.25, "algorithms": ("FedAvgS2",)}


@pytest.fixture
def untrained(monkeypatch):
    train_in_numpy(monkeypatch.setattr)


def assert_close(ours, theirs):
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["algorithm"] == other["algorithm"]
        numbers = ({key: value for key, value in row.items() if key != "algorithm"} for row in (mine, other))
        assert next(numbers) == pytest.approx(next(numbers), rel=1e-4, abs=1e-6)


def test_seeds_together_give_the_tables_of_seeds_apart():
    apart, both = (compare(**SETTINGS, seeds=(0, 1), together=together) for together in (False, True))
    assert_close(both.rows, apart.rows)
    assert_close(both.ue_rows, apart.ue_rows)


class KilledError(Exception):
    pass


@pytest.mark.usefixtures("untrained")
def test_seeds_together_go_on_after_a_kill(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "CHECKPOINT_EVERY_S", 0.0)
    whole = compare(**SETTINGS, seeds=(0, 1), together=True)
    count = 0

    def watch(now):
        nonlocal count
        count += now.rounds > 0  # not while the clock is played
        if count == 5:  # in the middle of a point: one seed has been told, the other not
            raise KilledError

    with pytest.raises(KilledError):
        compare(**SETTINGS, seeds=(0, 1), together=True, watch=watch, out=tmp_path / "run")
    assert len(list((tmp_path / "run" / "parts").glob("*.checkpoint.safetensors"))) == 2
    after = []
    again = compare(**SETTINGS, seeds=(0, 1), together=True, watch=after.append, out=tmp_path / "run")
    assert len([now for now in after if now.rounds]) < 12
    assert_close(again.rows, whole.rows)


@pytest.mark.usefixtures("untrained")
def test_without_enough_memory_half_of_the_seeds_are_trained_at_a_time(monkeypatch):
    import jax

    asked = []

    def short_of_memory(_work, alike):
        asked.append(len(alike))
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    whole = compare(**SETTINGS, seeds=(0, 1, 2), together=False)
    monkeypatch.setattr(trainer, "_train_together", short_of_memory)
    again = compare(**SETTINGS, seeds=(0, 1, 2), together=True)
    assert asked == [3, 2]
    assert again.rows == whole.rows


@pytest.mark.usefixtures("untrained")
def test_settings_of_one_shape_are_trained_together_from_one_timeline(tmp_path, monkeypatch):
    names = ("FedAvgS2", "PerFedS2")
    specs = [spec_from(**SETTINGS | {"algorithms": names, "beta": beta, "seeds": (0, 1)}) for beta in (0.05, 0.1)]
    trainings = [one for spec in specs for one in trainings_of(spec)]
    groups, clocks = [], []
    train, simulate = trainer._train_together, build.simulate
    monkeypatch.setattr(trainer, "_train_together", lambda work, ones: groups.append(ones) or train(work, ones))
    monkeypatch.setattr(build, "simulate", lambda *given, **more: clocks.append(given) or simulate(*given, **more))
    together = run_all(trainings, Store(tmp_path / "store"), WorkerChoice(together=True))
    assert [len(ones) for ones in groups] == [4, 4]  # two specs, two seeds; objectives differ in shape
    assert len(clocks) == 4  # two objectives, two seeds: β is nothing to the clock
    alone = run_all(trainings, Store(None), WorkerChoice(together=False))
    for one in trainings:
        assert_close(together[one].rows, alone[one].rows)
        first, *others = (other for other in trainings if (other.algorithm, other.seed) == (one.algorithm, one.seed))
        assert all(alone[first].rows[-1] != alone[other].rows[-1] for other in others)  # β counts
        assert together[one].group
        assert not alone[one].group
