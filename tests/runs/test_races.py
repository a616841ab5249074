"""Do two processes that claim one folder with different settings ever share it?"""

import multiprocessing
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from perfeds2.errors import InputError
from perfeds2.runs.folder import PLAN, RUN, SWEEP, claimed, locked, read_run
from perfeds2.runs.session import Execution, Session
from perfeds2.spec.resolve import resolve
from perfeds2.studies.grid import make_grid, read_sweep
from perfeds2.studies.plan import PlanQuestion, read_question
from perfeds2.studies.plan_data import PlanRequest
from perfeds2.studies.plan_space import make_space
from perfeds2.studies.reproduce import open_set

RACES = 100
SPEC = {"task": {"name": "synthetic"}, "cell": {"ues": 4}, "run": {"algorithms": ["PerFedS2"], "rounds": 2}}


def open_run(path: Path, number: int) -> AbstractContextManager[object]:
    return claimed(path, resolve({**SPEC, "learning": {"beta": 0.1 + number}}))


def open_comparison(path: Path, number: int) -> AbstractContextManager[object]:
    spec = resolve({**SPEC, "learning": {"beta": 0.1 + number}})
    return Session.open(RUN, spec, path, Execution(), read_run)


def open_sweep(path: Path, number: int) -> AbstractContextManager[object]:
    return Session.open(SWEEP, make_grid(SPEC, {"beta": [0.1 + number]}), path, Execution(), read_sweep)


def open_plan(path: Path, number: int) -> AbstractContextManager[object]:
    asked = PlanQuestion(make_space(resolve(SPEC), {"quorum": [1 + number]}), PlanRequest())
    return Session.open(PLAN, asked, path, Execution(), read_question)


@contextmanager
def open_figures(path: Path, number: int):
    with locked(path):
        yield open_set(path, "quick", {"learning": {"beta": 0.1 + number}})


KINDS: dict[str, tuple[Callable[[Path, int], AbstractContextManager[object]], str]] = {
    "run": (open_run, "spec.toml"),
    "compare": (open_comparison, "spec.toml"),
    "sweep": (open_sweep, "sweep.toml"),
    "plan": (open_plan, "plan.toml"),
    "reproduce": (open_figures, "reproduce.toml"),
}


def race(number: int, folder: Path, start, texts) -> None:
    """Open one folder after the other at the same time as the rival; say what each held while it was ours."""
    said = []
    for lap in range(RACES):
        open_kind, file = list(KINDS.values())[lap % len(KINDS)]
        path = folder / str(lap)
        start.wait(60)
        with ExitStack() as stack:
            try:
                stack.enter_context(open_kind(path, number))
            except InputError:
                said.append("")
            else:
                said.append((path / file).read_text("utf-8"))
    texts.put((number, said))


def test_in_a_hundred_races_a_folder_never_has_two_owners(tmp_path):
    processes = multiprocessing.get_context("spawn")
    start, texts = processes.Barrier(2), processes.Queue()
    rivals = [processes.Process(target=race, args=(number, tmp_path, start, texts)) for number in (0, 1)]
    for rival in rivals:
        rival.start()
    said = dict(texts.get(timeout=120) for _ in rivals)
    for rival in rivals:
        rival.join()
    for place, (kind, (open_kind, file)) in enumerate(KINDS.items()):
        for number in (0, 1):
            with open_kind(path := tmp_path / f"{kind}-{number}", number):
                ours = (path / file).read_text("utf-8")
            assert set(said[number][place :: len(KINDS)]) <= {ours, ""}  # what a process holds is its own
    assert [bool(first) + bool(second) for first, second in zip(said[0], said[1], strict=True)] == [1] * RACES
