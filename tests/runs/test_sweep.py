"""Does a sweep run every point of its grid once, whichever worker dies, and always end with the same tables?"""

import os
import random
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import told, train_here
from hypothesis import given, settings
from hypothesis import strategies as st
from in_numpy import train_in_numpy
from played_by_hand import by_hand

from perfeds2 import compare
from perfeds2.errors import InputError
from perfeds2.learning.metrics import METRICS
from perfeds2.report.live import counts_of, print_failures, progress
from perfeds2.report.read_studies import load_sweep_folder
from perfeds2.report.sweep import front_charts, front_line, print_sweep, setting_charts, write_sweep
from perfeds2.runs import training
from perfeds2.runs.costs import SPENT
from perfeds2.runs.pool import HERE, WorkerChoice, run_all
from perfeds2.runs.progress import Progress, Reporter
from perfeds2.runs.session import Execution
from perfeds2.runs.statistics import pareto
from perfeds2.runs.store import Result, Store
from perfeds2.runs.table import MEANS
from perfeds2.runs.training import groups_of, trainings_of
from perfeds2.runs.workers import Job, take_job
from perfeds2.spec.resolve import nested, resolve
from perfeds2.studies.grid import grid_from_flags, make_grid, parse_grid, read_sweep
from perfeds2.studies.sweep import load_sweep, run_sweep, sweep

TABLES = ("sweep.csv", "sweep_summary.csv")
SMALL = {"ues": 4, "batch": 4, "horizon_s": 0.3, "eval_every_s": 0.1, "algorithms": ["FedAvgS2"], "labels_per_ue": 10}
GRID = {"quorum": [1, 2], "seed": [0, 1]}


def tables(path):
    return [(path / name).read_bytes() for name in TABLES]


# Grids


def test_points_are_all_combinations_and_the_first_axis_varies_slowest():
    grid = grid_from_flags(nested(SMALL), ["quorum=1,2", "max-staleness=3,unbounded", "seed=0..2"], [])
    assert [point.values for point in grid.points] == [(1, 3), (1, "unbounded"), (2, 3), (2, "unbounded")]
    assert grid.seeds == (0, 1, 2)
    assert grid.trainings == 12
    assert [axis.name for axis in grid.axes] == ["quorum", "max_staleness"]
    assert grid.points[2].label == "quorum=2, max_staleness=3"


def test_what_follows_from_a_setting_follows_in_each_point():
    grid = make_grid({}, {"ues": [4, 40], "cell.radius_m": [100]})
    assert [point.spec.protocol.quorum for point in grid.points] == [1, 10]  # a quarter of the UEs
    assert grid.points[0].spec.cell.radius_m == 100.0


def test_the_grid_goes_over_the_base_and_survives_its_file(tmp_path):
    grid = make_grid(nested({**SMALL, "quorum": 3, "alpha": "0.050"}), {"quorum": ("1", "2"), "seeds": range(2)})
    assert "quorum" not in grid.base.get("protocol", {})
    assert grid.base["learning"]["alpha"] == 0.05
    (tmp_path / "sweep.toml").write_text(grid.to_toml())
    assert read_sweep(tmp_path) == grid


@pytest.mark.parametrize(
    ("texts", "flags", "sentence"),
    [
        (["quorun=1,2"], [], "quorun is not something a grid can vary; did you mean quorum"),
        (["cell.radius=1,2"], [], "did you mean cell.radius_m"),
        (["quorum"], [], "takes NAME=VALUES"),
        (["quorum="], [], "empty value"),
        (["quorum=1,,2"], [], "empty value"),
        (["seed=5..1"], [], "smaller number first"),
        (["seed=0..99999999999"], [], "at most 100,000"),
        (["quorum=1..4", "seed=0..30000"], [], "120,004 runs"),
        (["quorum=1", "quorum=2"], [], "quorum is given twice"),
        (["alpha=0.03,0.030"], [], "alpha has a value twice"),
        (["quorum=1,5"], [], "--quorum must be from 1 to the number of UEs, 4"),
        (["quorum=1,two"], [], "--quorum must be a whole number"),
        (["algorithms=PerFedS2"], [], "--algorithms instead"),
        (["quorum=1,2"], ["quorum"], "--quorum and --grid quorum were both given"),
        (["seed=0,1"], ["seeds"], "--seeds and --grid seed were both given"),
        ([], [], "at least one --grid"),
    ],
)
def test_a_bad_grid_is_one_sentence(texts, flags, sentence):
    with pytest.raises(InputError, match=sentence) as refused:
        grid_from_flags(nested(SMALL), texts, flags)
    assert "\n" not in str(refused.value)


def test_names_given_twice_in_two_spellings_are_refused():
    with pytest.raises(InputError, match="twice"):
        make_grid({}, {"max-staleness": [1], "max_staleness": [2]})
    with pytest.raises(InputError, match="same setting"):
        make_grid({}, {"seed": [1], "seeds": [2]})
    assert parse_grid(["seed=0..2,7"]) == {"seed": [0, 1, 2, "7"]}


# Workers, played by hand


HAND = make_grid(
    nested({"algorithms": ["PerFedS2", "FedAvgS2"]}), {"quorum": [1, 2, 3], "alpha": [0, 0.1], "seed": [0, 1, 5]}
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("sweep") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        by_hand(patch)
        assert run_sweep(HAND, path).failures == ()
    return path


def test_the_tidy_table_has_every_run_in_grid_order(whole):
    table = load_sweep(whole)
    assert list(table.columns) == ["quorum", "alpha", "algorithm", "seed", "round", "time_s", *METRICS, *SPENT]
    assert len(table) == 3 * 2 * 2 * 3 * 3  # points, algorithms, seeds, evaluations
    runs = list(table.drop_duplicates(["quorum", "alpha", "algorithm", "seed"]).itertuples(index=False, name=None))
    assert [run[:4] for run in runs[:4]] == [
        (1, 0.0, "PerFedS2", 0),
        (1, 0.0, "PerFedS2", 1),
        (1, 0.0, "PerFedS2", 5),
        (1, 0.0, "FedAvgS2", 0),
    ]
    assert table[(table.quorum == 3) & (table.alpha == 0.1) & (table.seed == 5)].train_loss.iloc[0] == pytest.approx(
        3 + 1 + 5 / 7
    )


def test_the_summary_has_intervals_and_marks_who_never_arrives(whole):
    """Seeds 0, 1, 5 of A = 1, α = 0 end at 7/21, 8/21, 12/21; seed 1 never meets the target."""
    row = run_sweep(HAND, whole).summary.iloc[0]
    assert row.seeds == 3
    assert row.train_loss_mean == pytest.approx(9 / 21)
    assert row.train_loss_high - row.train_loss_mean == pytest.approx(4.302652729911275 * (7 / 441) ** 0.5 / 3**0.5)
    assert row.censored == 1
    assert row.time_to_target_s_median == 0.25
    assert row.isna().time_to_target_s_mean


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), groups=st.booleans(), stops=st.lists(st.integers(1, 12), max_size=2))
def test_tables_do_not_depend_on_order_failures_or_interruptions(whole, tmp_path_factory, seed, groups, stops):
    path, chance = tmp_path_factory.mktemp("sweep") / "again", random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        for stop in stops:
            left = [stop]

            def fails(_, __, left=left):
                left[0] -= 1
                return KeyboardInterrupt() if left[0] == 0 else None

            by_hand(patch, fails, shuffle=chance.shuffle)
            try:
                run_sweep(HAND, path)
            except KeyboardInterrupt:
                assert all((path / name).exists() for name in TABLES)  # what is done can be looked at
        out_of_luck = lambda _, attempt: "out of luck" if attempt < 3 and chance.random() < 0.3 else None  # noqa: E731
        by_hand(patch, out_of_luck, shuffle=chance.shuffle, groups=groups)
        assert run_sweep(HAND, path).failures == ()
    assert tables(path) == tables(whole)


def test_finished_trainings_are_not_done_again_and_damaged_ones_are(tmp_path, monkeypatch):
    done = []
    by_hand(monkeypatch, lambda job, _: done.append(job.title))
    run_sweep(HAND, tmp_path / "a")
    assert len(done) == len(set(done)) == 36
    (one,) = [one for one in trainings_of(HAND.points[1].spec) if one.title == "FedAvgS2 seed 5"]
    damaged = tmp_path / f"a/trainings/{one.key}.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:50])
    before = tables(tmp_path / "a")
    run_sweep(HAND, tmp_path / "a")
    assert done[36:] == ["quorum=1, alpha=0.1, FedAvgS2 seed 5"]
    assert tables(tmp_path / "a") == before


@pytest.mark.slow
def test_a_training_that_always_fails_is_given_up_and_the_others_go_on(whole, tmp_path, monkeypatch, capsys):
    title = "quorum=2, alpha=0.0, PerFedS2 seed 1"
    path, told = tmp_path / "a", []
    by_hand(monkeypatch, lambda job, _: "ValueError: no luck" if job.title == title else None)
    with progress(False, "sweep") as watch:

        def both(now: Progress) -> None:
            watch(now)
            told.append(now)

        swept = run_sweep(HAND, path, Execution(watch=both))
    (failure,) = swept.failures
    assert (failure.label, failure.attempts) == (title, 3)
    assert capsys.readouterr().err.count(f"{title}: ValueError: no luck\n") == 3
    assert counts_of(told[-1]) == "35 of 36 trainings done, 1 failed, 2 tried again"
    assert len(swept.table.drop_duplicates(["quorum", "alpha", "algorithm", "seed"])) == 35
    assert "no luck" in (path / "failed.csv").read_text()
    print_failures(swept.failures)
    print_sweep(path)
    shown = capsys.readouterr()
    assert "no luck" in shown.err
    assert "PerFedS2" in shown.out
    by_hand(monkeypatch)
    assert run_sweep(HAND, path).failures == ()
    assert not (path / "failed.csv").exists()
    assert tables(path) == tables(whole)


def test_bad_input_is_not_tried_again(tmp_path, monkeypatch):
    by_hand(monkeypatch, lambda job, _: "bad input" if "quorum=1, alpha=0.0, PerFedS2" in job.title else None)
    swept = run_sweep(HAND, tmp_path / "some")
    assert {failure.attempts for failure in swept.failures} == {1}
    assert len(swept.failures) == 3
    by_hand(monkeypatch, lambda *_: "bad input: no data")
    with pytest.raises(InputError, match="bad input: no data"):
        run_sweep(HAND, tmp_path / "all")


def test_a_folder_with_something_else_is_refused(whole, tmp_path):
    with pytest.raises(InputError, match="different sweep"):
        run_sweep(make_grid({}, {"quorum": [1]}), whole)
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="holds other files"):
        run_sweep(HAND, tmp_path)
    with pytest.raises(InputError, match="holds no sweep"):
        read_sweep(tmp_path)
    with pytest.raises(InputError, match=r"holds no sweep\.csv"):
        load_sweep(tmp_path)
    for flag, wrong in (
        ("workers", WorkerChoice(0)),
        ("retries", WorkerChoice(1, retries=-1)),
    ):
        with pytest.raises(InputError, match=f"--{flag}"):
            run_sweep(HAND, tmp_path / "new", Execution(wrong))
        assert not (tmp_path / "new").exists()
    with pytest.raises(InputError, match=r"--reuse .*nowhere has no trainings"):
        run_sweep(HAND, tmp_path / "new", Execution(reuse=[tmp_path / "nowhere"]))
    assert not (tmp_path / "new").exists()


def test_trainings_of_another_sweep_are_reused_and_counted(whole, tmp_path, monkeypatch):
    done = []
    by_hand(monkeypatch, lambda job, _: done.append(job.title))
    grid = make_grid(nested({"algorithms": ["PerFedS2"]}), {"quorum": [2, 4], "seed": [0, 1]})  # α is 0.03 here
    assert run_sweep(grid, tmp_path / "other", Execution(reuse=[whole])).reused == 0
    base = nested({"algorithms": ["PerFedS2"], "alpha": 0.1, "target_accuracy": 0.5})
    done.clear()
    swept = run_sweep(make_grid(base, {"quorum": [2, 4], "seed": [0, 1]}), tmp_path / "again", Execution(reuse=[whole]))
    assert swept.reused == 2
    assert done == ["quorum=4, PerFedS2 seed 0", "quorum=4, PerFedS2 seed 1"]


def test_what_was_trained_in_another_group_is_not_reused(whole, tmp_path, monkeypatch):
    by_hand(monkeypatch, groups=True)
    assert run_sweep(HAND, tmp_path / "grouped", Execution(reuse=[whole])).reused == 0


@pytest.mark.slow
def test_a_finished_comparison_is_reused_to_the_last_digit(tmp_path, monkeypatch):
    train_in_numpy(monkeypatch.setattr)
    compared = compare(**SMALL, quorum=2, seeds=(0, 1), out=tmp_path / "compared")
    grid = make_grid(nested(SMALL), {"quorum": [2], "seed": [0, 1]})
    by_hand(monkeypatch, lambda *_: pytest.fail("trained again"))
    swept = run_sweep(grid, tmp_path / "swept", Execution(reuse=[tmp_path / "compared"]))
    assert swept.reused == 2
    columns = [*METRICS, *SPENT]
    assert swept.table[columns].to_numpy().tolist() == compared.metrics[columns].to_numpy().tolist()


def test_on_a_gpu_points_of_equal_shape_are_one_group(monkeypatch):
    """The quorum parts them, step sizes do not."""
    grid = make_grid(
        {"run": {"algorithms": ["PerFedS2"]}}, {"quorum": [1, 2], "alpha": [0, 0.1], "beta": [0.1, 0.2], "seed": [0, 5]}
    )
    every = [one for point in grid.points for one in trainings_of(point.spec)]
    assert [len(group) for group in groups_of(every)] == [8, 8]
    monkeypatch.setattr(training, "GROUP_SIZE", 3)
    groups = groups_of(every)
    assert [len(group) for group in groups] == [3, 3, 2, 3, 3, 2]
    assert sorted(one.key for group in groups for one in group) == sorted(one.key for one in every)


@pytest.mark.slow
def test_points_trained_together_get_what_they_get_alone(monkeypatch):
    train_in_numpy(monkeypatch.setattr)
    grid = make_grid(nested(SMALL) | {"learning": {"batch": 4, "beta": 0.5}}, {"alpha": [0.05, 0.5], "seed": [0, 1]})
    every = [one for point in grid.points for one in trainings_of(point.spec)]
    both, alone = (run_all(every, Store(None), WorkerChoice(together=together)) for together in (True, False))
    for one in every:
        for row, same in zip(both[one].rows, alone[one].rows, strict=True):
            assert row.pop("algorithm") == same.pop("algorithm")
            assert row == pytest.approx(same, rel=1e-4)
        assert both[one].facts == alone[one].facts


def test_a_worker_keeps_to_the_program_it_has_compiled():
    names = ("FedAvgS2", "FedAvgS2", "PerFedS2", "PerFedS2", "CA2FL")
    made = [trainings_of(resolve({"run": {"algorithms": [name], "seeds": [0]}})) for name in names]
    a, _, b, _, _ = (one[0].program for one in made)
    waiting = [Job(number, tuple(one)) for number, one in enumerate(made)]
    assert take_job(waiting).number == 0
    assert take_job(waiting, b, [a]).number == 2
    assert take_job(waiting, None, [a, b]).number == 4  # no other trains c
    assert [take_job(waiting, b).number, take_job(waiting, b).number] == [3, 1]
    assert not waiting


@pytest.mark.slow
def test_the_chart_has_the_same_bytes_every_time(whole, tmp_path, monkeypatch):
    swept = run_sweep(HAND, whole)
    first = [path.read_bytes() for path in write_sweep(swept.path)]
    assert [path.read_bytes() for path in write_sweep(swept.path)] == first
    assert len(first) == 5
    named = make_grid(nested({"algorithms": ["PerFedS2"]}), {"bandwidth": ["equal_share", "equal_finish"], "seed": [1]})
    by_hand(monkeypatch)
    assert len(write_sweep(run_sweep(named, tmp_path / "named").path)) == 3


def test_the_chart_leaves_out_seconds_to_a_target_no_one_reached(whole):
    sweep = load_sweep_folder(whole)
    never = sweep.summary.assign(time_to_target_s_median=float("nan"))
    assert [chart.x.label for chart in setting_charts(replace(sweep, summary=never))] == ["quorum"]
    assert len(setting_charts(replace(sweep, summary=sweep.summary.assign(time_to_target_s_median=3.0)))) == 2


@pytest.fixture
def costly(tmp_path, monkeypatch):
    """A sweep whose points met the target of 90 % after this many seconds, with this many joules: A = 1 slow and frugal, 4 the reverse."""
    spent = {1: (9.0, 1.0), 2: (6.0, 2.0), 3: (7.0, 2.5), 4: (3.0, 8.0), 5: (3.0, 9.0), 6: None}

    def result(one):
        quorum, which = one.spec.protocol.quorum, {"algorithm": "PerFedS2", "seed": one.seed}
        rows = [(0, 0.0, 0.0, 0.0, 0.1)]
        if spent[quorum] is not None:
            seconds, joules = spent[quorum]
            rows.append((quorum, seconds + 0.1 * one.seed, joules, 1e3 * quorum, 0.95))
        keys = ("round", "time_s", "joules", "merged_bits", "test_accuracy_personal")
        made = [which | dict.fromkeys(METRICS, 0.5) | dict(zip(keys, row, strict=True)) for row in rows]
        return Result(made, [], {**which, **dict.fromkeys(MEANS, 1.0), "end_s": 9.0})

    base = nested({"algorithms": ["PerFedS2"], "target_accuracy": 0.9})
    grid = make_grid(base, {"quorum": list(spent), "seed": [0, 1, 2]})
    by_hand(monkeypatch, formula=result)
    return run_sweep(grid, tmp_path / "costly")


def test_the_front_is_what_nothing_beats(costly):
    """A = 3 is later than 2 with more joules, 5 is as soon as 4 with more; 6 never met the target."""
    front = costly.front
    assert front is not None
    assert front[front.on_front == 1].quorum.tolist() == [4, 2, 1]
    assert front.quorum.tolist() == [4, 5, 2, 3, 1]
    assert front.time_to_target_s_median.tolist() == pytest.approx([3.1, 3.1, 6.1, 7.1, 9.1])
    assert front.joules_to_target_median.tolist() == [8.0, 9.0, 2.0, 2.5, 1.0]
    said = front_line(load_sweep_folder(costly.path))
    assert said.startswith(
        "Time-energy front, 3 of 5 that met the target: PerFedS2, quorum=4 (3.1 s, 8 J); PerFedS2, quorum=2 ("
    )
    assert costly.summary.bits_to_target_median.tolist()[:2] == [1000.0, 2000.0]
    assert costly.summary.rounds_to_target_median.tolist()[:2] == [1.0, 2.0]


def test_a_sweep_that_nowhere_met_the_target_has_no_front(costly):
    file = costly.path / "sweep_front.csv"
    file.write_text(file.read_text(encoding="utf-8").splitlines(keepends=True)[0], encoding="utf-8")
    assert front_charts(load_sweep_folder(costly.path)) == []


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_pareto_is_its_definition(costs):
    kept = pareto(np.array(costs, float).reshape(-1, 2)).tolist()
    for one, on in zip(costs, kept, strict=True):
        beaten = any(a <= one[0] and b <= one[1] and (a, b) != one for a, b in costs)
        assert on == (not beaten)


@pytest.mark.slow
def test_a_sweep_is_drawn_again_over_what_one_asks_for(costly):
    drawn, sweep = write_sweep(costly.path), load_sweep_folder(costly.path)
    assert [path.name for path in drawn] == ["report.html", "sweep.pdf", "sweep.png", "front.pdf", "front.png"]
    for cost, label in (("joules", "Joules to 90 %"), ("bits", "Uploaded bits to 90 %"), ("rounds", "Rounds to 90 %")):
        assert setting_charts(replace(sweep, axis=cost))[1].title.startswith(label)
    (chart,) = front_charts(sweep)
    assert {text for line in chart.series for text in line.texts} == {"quorum=1", "quorum=2", "quorum=4"}
    front = next(path for path in drawn if path.name == "front.png").read_bytes()
    status, said, _ = told("report", costly.path, "--x", "joules")
    assert (status, len(said.splitlines())) == (0, 5)
    assert (costly.path / "front.png").read_bytes() == front


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cost", "first"),
    [
        ("seconds", "PerFedS2, quorum=4 and PerFedS2, quorum=5 reached 90 % personalised accuracy first, after 3.1 s."),
        ("joules", "PerFedS2, quorum=1 reached 90 % personalised accuracy with fewest joules, after 1 J."),
        ("rounds", "PerFedS2, quorum=1 reached 90 % personalised accuracy with fewest rounds, after 1 rounds."),
    ],
)
def test_a_sweeps_page_leads_with_what_needs_least(costly, tmp_path, cost, first):
    status, _, error = told("report", costly.path, "--x", cost, "--paper", "--out", tmp_path / "paper")
    assert status == 0, error
    page = (tmp_path / "paper/report.html").read_text()
    assert f"<h1>{first}</h1>" in page
    assert page.count('<th scope="row">') == 6
    assert "perfeds2 sweep --resume costly" in page
    assert {path.name for path in (tmp_path / "paper").iterdir()} == {
        "sweep.pdf",
        "sweep.png",
        "sweep.tex",
        "front.pdf",
        "front.png",
        "report.html",
    }
    assert r"PerFedS2, quorum=4 & \textbf{95.0}" in (tmp_path / "paper/sweep.tex").read_text()


def test_a_sweep_that_has_not_come_to_an_end_says_how_to_go_on(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "begun")
    (tmp_path / "begun/sweep_summary.csv").unlink()
    status, _, error = told("report", tmp_path / "begun")
    assert status == 2
    assert "holds an unfinished sweep; continue it by adding --resume" in error


# Real workers


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A sweep one of whose workers is killed at work, and what it told."""
    path, told = tmp_path_factory.mktemp("sweep") / "real", []

    def watch(now):
        told.append(now)
        if len(told) == 1:
            (worker,) = set(children()) - before
            os.kill(worker, signal.SIGKILL)

    before = set(children())
    return sweep(SMALL, GRID, out=path, workers=1, watch=watch), told


def children() -> list[int]:
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return [int(child) for threads in found for child in threads.read_text().split()]


def test_a_killed_worker_is_replaced_and_nothing_is_lost(real):
    swept, told = real
    errors = [now.error for now in told if now.error]
    assert errors == ["quorum=1, FedAvgS2 seed 0: its process was killed by SIGKILL (out of memory?)"]
    assert swept.failures == ()
    assert (told[-1].done, told[-1].retried) == (4, 1)
    assert told[-1].share == 1.0


def test_a_sweep_trains_what_compare_trains(real):
    swept, _ = real
    single = compare(**SMALL, quorum=2, seeds=(1,)).metrics
    table = swept.table
    mine = table[(table.quorum == 2) & (table.seed == 1)]
    assert list(mine.time_s) == list(single.time_s)
    assert list(mine["round"]) == list(single["round"])
    for name in METRICS:
        assert mine[name].to_numpy() == pytest.approx(single[name].to_numpy(), rel=1e-4)


@pytest.mark.slow
def test_an_interrupted_sweep_ends_with_the_same_bytes(tmp_path, monkeypatch):
    """test_jobs.py interrupts and kills a command from outside: its results are kept in the same way."""
    train_in_numpy(monkeypatch.setattr)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.toml").write_text(
        '[cell]\nues = 4\n[task]\nlabels_per_ue = 10\n[learning]\nbatch = 4\n[run]\nalgorithms = ["FedAvgS2"]\n'
    )
    begin = ["base.toml", "--horizon-s", "0.3", "--eval-every-s", "0.1", "--grid", "quorum=1,2", "--grid", "seed=0..1"]
    whole = run_sweep(make_grid(nested(SMALL), GRID), tmp_path / "whole", Execution(WorkerChoice(on=HERE)))
    path, before, crew = tmp_path / "out", set(children()), []

    def interrupt(_, __):
        crew.extend(set(children()) - before)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Reporter, "done", interrupt)
        status, _, said = told("sweep", *begin, "--out", "out", "--workers", "1")
    assert status == 130
    assert "perfeds2 sweep --resume out" in said
    assert (path / "sweep.csv").exists()
    assert len(list(path.glob("trainings/*.safetensors"))) == 1
    assert len(crew) == 1
    assert set(children()) <= before
    train_here(monkeypatch)
    assert told("sweep", "--resume", "out", "--quiet") == (0, "", "")
    assert tables(path) == tables(whole.path)
    assert not list(path.rglob(".*"))  # nothing half-written is left


def test_the_command_says_in_one_sentence_what_is_wrong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def refused(*arguments):
        status, out, error = told("sweep", *arguments)
        assert (status, out) == (2, "")
        assert error.count("\n") == 1
        return error

    assert "did you mean quorum" in refused("--grid", "quorom=1,2")
    assert "--resume takes everything" in refused("--resume", "x", "--grid", "quorum=1,2")
    assert not list(tmp_path.iterdir())
