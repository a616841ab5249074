"""Is a comparison the same when its seeds are trained together, as a GPU does it?"""

import pytest

from perfeds2 import compare
from perfeds2.runs import checkpoint, entrants, execute
from perfeds2.runs.comparison import load_comparison
from perfeds2.runs.folder import open_folder
from perfeds2.spec import build
from perfeds2.spec.resolve import spec_from

pytestmark = pytest.mark.slow

SETTINGS = {"ues": 6, "quorum": 2, "horizon_s": 1.5, "batch": 8, "eval_every_s": 0.25, "algorithms": ("FedAvgS2",)}


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


def test_seeds_together_go_on_after_a_kill(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "CHECKPOINT_EVERY_S", 0.0)
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


def test_without_enough_memory_half_of_the_seeds_are_trained_at_a_time(monkeypatch):
    import jax

    asked = []

    def short_of_memory(entrants, _folder, _teller):
        asked.append(len(entrants))
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    whole = compare(**SETTINGS, seeds=(0, 1, 2), together=False)
    monkeypatch.setattr(entrants, "_train_together", short_of_memory)
    again = compare(**SETTINGS, seeds=(0, 1, 2), together=True)
    assert asked == [3, 2]
    assert again.rows == whole.rows


def test_specs_of_one_shape_are_trained_together_each_into_its_own_folder_from_one_timeline(tmp_path, monkeypatch):
    names = ("FedAvgS2", "PerFedS2")
    specs = [spec_from(**SETTINGS | {"algorithms": names, "beta": beta, "seeds": (0, 1)}) for beta in (0.05, 0.1)]
    folders = [open_folder(tmp_path / f"run-{number}", spec) for number, spec in enumerate(specs)]
    companies, clocks = [], []
    train, simulate = entrants._train_together, build.simulate
    monkeypatch.setattr(entrants, "_train_together", lambda ones, *more: companies.append(ones) or train(ones, *more))
    monkeypatch.setattr(build, "simulate", lambda *given, **more: clocks.append(given) or simulate(*given, **more))
    found = execute.execute_all(specs, "compare", folders, together=True)
    assert [len(ones) for ones in companies] == [4, 4]  # two specs, two seeds; objectives differ in shape
    assert len(clocks) == 4  # two objectives, two seeds: β is nothing to the clock
    for spec, folder, comparison in zip(specs, folders, found, strict=True):
        assert folder.finished
        alone = execute.execute(spec, "compare", None, together=False)
        assert_close(comparison.rows, alone.rows)
        assert_close(load_comparison(spec, folder).rows, alone.rows)
        assert [row["algorithm"] for row in comparison.summary["algorithms"]] == list(names)
