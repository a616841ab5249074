"""Claims about the sentences at the top of the page."""

from pathlib import Path

from perfeds2.report.answer import answer
from perfeds2.report.read import AlgorithmResult, RunResults, load_run
from perfeds2.report.results import energy_line
from perfeds2.report.tables import listed, seconds
from perfeds2.runs.statistics import censored_median


def an_algorithm(
    name: str, accuracy: tuple[float, float, float] | None, times: tuple[float | None, ...]
) -> AlgorithmResult:
    mean, low, high = accuracy or (None, None, None)
    median = censored_median(times)
    estimates = {
        "test_accuracy_personal": {"mean": mean, "low": low, "high": high, "values": ()},
        "time_to_target_s": {"values": times, "median": median},
    }
    return AlgorithmResult(name, estimates, "PerFed", "S2")


def a_run(*algorithms: AlgorithmResult, target: float | None = 0.8, seeds: tuple[int, ...] = (0, 1, 2)) -> RunResults:
    return RunResults("compare", seeds, algorithms, target, "0", "digits", 4, 60.0)


def test_the_headline_names_who_reached_the_target_first():
    headline, paragraphs = answer(
        a_run(
            an_algorithm("slow", (0.9, 0.88, 0.92), (30.0, 31.0, 32.0)),
            an_algorithm("fast", (0.85, 0.84, 0.86), (10.0, 40.0, 12.0)),
        )
    )
    assert headline == "fast reached 80 % personalised accuracy first, after 12 s."
    assert "3 of 3 seeds reached it, after 10 s to 40 s" in paragraphs[0]
    assert "Next came slow, after 31 s" in paragraphs[0]


def test_a_tie_has_no_single_winner():
    times = (10.0, 10.0, 10.0)
    tied = [an_algorithm(name, (0.9, 0.8, 1.0), times) for name in "abcd"]
    late = an_algorithm("late", (0.9, 0.8, 1.0), (20.0, None, 20.0))
    assert answer(a_run(*tied[:2]))[0] == "a and b reached 80 % personalised accuracy first, after 10 s."
    assert answer(a_run(*tied))[0].startswith("a, b, c and d reached 80 % personalised accuracy first")
    headline, paragraphs = answer(a_run(*tied, late))
    assert headline == "a, b, c and d reached 80 % personalised accuracy first, after 10 s."
    assert "Next came late, after 20 s (in 2 of 3 seeds)." in paragraphs[0]
    first = an_algorithm("first", (0.9, 0.8, 1.0), (5.0, 5.0, 5.0))
    assert "Next came a and b, after 10 s." in answer(a_run(first, *tied[:2]))[1][0]


def test_a_lucky_seed_does_not_win():
    lucky = an_algorithm("lucky", (0.7, 0.6, 0.8), (1.0, None, None))
    steady = an_algorithm("steady", (0.9, 0.88, 0.92), (50.0, 51.0, 52.0))
    assert answer(a_run(lucky, steady))[0].startswith("steady reached")


def test_fewer_than_half_of_the_seeds_give_no_median():
    lucky = [an_algorithm(name, (0.7, 0.6, 0.8), (4.0, None, None)) for name in "ab"]
    headline, paragraphs = answer(a_run(*lucky, an_algorithm("c", (0.5, 0.4, 0.6), (None,) * 3)))
    assert headline == "No algorithm reached 80 % personalised accuracy in most seeds."
    assert paragraphs[0] == "Most often: a and b, in 1 of 3 seeds. Never reached by c."


def test_overlapping_intervals_are_admitted():
    best, near, far = (0.90, 0.87, 0.93), (0.89, 0.86, 0.92), (0.5, 0.45, 0.55)
    run = a_run(
        an_algorithm("best", best, ()), an_algorithm("near", near, ()), an_algorithm("far", far, ()), target=None
    )
    headline, paragraphs = answer(run)
    assert headline == "best ends with the best personalised accuracy of 90.0 % (95 % interval 87.0 to 93.0 %)."
    assert paragraphs == ["Its interval overlaps with near."]


def test_a_target_no_one_reached_is_said_first():
    run = a_run(an_algorithm("a", (0.5, 0.4, 0.6), (None,) * 3), an_algorithm("b", (0.6, 0.5, 0.7), (None,) * 3))
    assert answer(run)[0] == "No algorithm reached 80 % personalised accuracy."
    assert answer(run)[1][0].startswith("b ends with the best")


def test_a_diverged_run_is_never_the_best():
    run = a_run(an_algorithm("gone", None, ()), an_algorithm("there", (0.3, 0.2, 0.4), ()), target=None)
    assert answer(run)[0].startswith("there ends")


def test_nothing_finite_is_said_and_not_ranked():
    assert answer(a_run(an_algorithm("gone", None, ()), target=None))[0] == "No run ended with a finite accuracy."


def test_one_seed_gives_no_interval(make_run):
    run = load_run(make_run(seeds=[4], algorithms=[("FedAvgS2", "FedAvg", "S2"), ("PerFedS2", "PerFed", "S2")]))
    _, paragraphs = answer(run)
    assert any("a difference may be chance" in paragraph for paragraph in paragraphs)
    assert not any("% interval" in paragraph for paragraph in paragraphs)


def test_a_simulation_is_told_by_its_waiting(make_run):
    folder: Path = make_run(command="simulate", seeds=[0])
    assert answer(load_run(folder))[0].startswith("UEs waited least with FedAvg-ASY: 0.0 % of the time, against 36.5 %")


def test_numbers_and_lists_read_well():
    assert [seconds(value) for value in (0.1234, 12.34, 1234.5)] == ["0.123 s", "12.3 s", "1,234 s"]
    assert [listed(["a"]), listed(["a", "b", "c"])] == ["a", "a, b and c"]


def test_energy_is_printed_in_millijoules():
    cheap, dear = (
        AlgorithmResult(name, {"joules_per_merge": {"mean": j, "values": ()}})
        for name, j in (("a", 0.0123), ("b", 2.5))
    )
    assert energy_line(a_run(cheap, dear)) == "Energy of all UEs, mJ per merged update: a 12.3, b 2.5e+03."
