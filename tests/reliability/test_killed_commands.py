"""Does a command that is killed at any moment lose nothing, and end with the bytes of one that was not?"""

import os
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from killable_commands import Commands, files_of
from tiny_data import write_mnist

from perfeds2.report.live import is_live
from perfeds2.runs.folder import alone, read_run
from perfeds2.runs.store import load_arrays
from perfeds2.runs.training import trainings_of

KILLS = int(os.environ.get("PERFEDS2_KILLS", "5"))  # of each command, at least
EVALUATIONS = 4  # of a training with these flags
TINY = "--task synthetic --ues 4 --horizon-s 0.1 --eval-every-s 0.034 --batch 4 --quiet"
FIRST = ("spec.toml", "sweep.toml", "arena.toml", "reproduce.toml")  # what says whose folder it is
WHOLE_OR_ABSENT = (
    *("spec.toml", "timeline.npz", "model.safetensors", "ue_metrics.csv", "summary.json", "report.html"),
    *("arena.toml", "arena.csv", "arena.json", "arena.tex", "tuned.json"),
)


@dataclass(frozen=True)
class Case:
    """A command that writes into ``out``, and the one that goes on with it."""

    start: str
    go_on: str
    setting: dict[str, Any] = field(default_factory=dict)


def case(start: str, go_on: str | None = None, **setting: Any) -> Case:
    return Case(start, go_on or start, {"checkpoint_every_s": 0.0, "in_numpy": True, **setting})


CASES = {
    "run": case(f"run {TINY} --algorithms FedAvgS2 --quorum 2 --out out", "run --resume out --quiet"),
    "compare": case(
        f"compare {TINY} --quorum 2 --algorithms FedAvgS2,FedAvg-SYN --seeds 2 --out out",
        "compare --resume out --quiet",
    ),
    "sweep": case(
        f"sweep {TINY} --algorithms FedAvgS2 --quorum 2 --grid beta=0.05,0.1 --grid seed=0..1 --workers 1 --out out",
        "sweep --resume out --quiet",
        in_process=True,
    ),
    "arena": case(
        f"arena {TINY} --methods FedAvgS2,FedBuff --seeds 2 --tune 2 --tuning-seeds 1 --rungs 1 --workers 1 --out out",
        "arena --resume out --quiet",
        in_process=True,
    ),
    "reproduce": case(
        "reproduce exp_4 --task mnist --seeds 1 --data-dir ../mnist --out out --quiet",
        horizon_s={"mnist": 3.0},
        most_lines=1,
    ),
}


@pytest.mark.parametrize("name", [name for name in CASES if name != "run"])  # which does what compare does
def test_a_command_killed_at_any_moment_ends_with_the_same_bytes(commands: Commands, tmp_path, name):
    """Before each kind of operation on files, then at random moments; it goes on in the same folder, to be killed again."""
    write_mnist(tmp_path / "mnist" / "mnist")
    case, chance = CASES[name], random.Random(name)
    (tmp_path / "whole").mkdir()
    unbroken = commands(*case.start.split(), cwd=tmp_path / "whole", setting=case.setting)
    assert unbroken.status == 0, unbroken.err
    whole, often = files_of(tmp_path / "whole"), Counter(unbroken.operations)
    assert {"open", "os.mkdir", "os.chmod", "os.rename"} <= often.keys()
    kinds = chance.sample(sorted(often), len(often))
    kills = runs = 0
    while kinds or kills < KILLS:
        runs += 1
        cwd = tmp_path / f"killed-{runs}"
        cwd.mkdir()
        ended = None
        while ended is None or ended.killed:
            command = case.go_on if begun(cwd / "out") and chance.random() < 0.5 else case.start
            moment: dict[str, Any] = {}
            if kinds:  # of what is left to do after a kill, the first; there may be none
                moment = {"before": (kinds[-1], chance.randint(1, often[kinds[-1]]) if ended is None else 1)}
            elif kills < KILLS:
                by_clock, by_number = chance.uniform(0, unbroken.seconds), chance.randint(1, len(unbroken.operations))
                moment = {"after_s": by_clock} if chance.random() < 0.5 else {"before": ("", by_number)}
            ended = commands(*command.split(), cwd=cwd, setting=case.setting, **moment)
            if ended.killed:
                kills += 1
                del kinds[-1:]
            assert_nothing_is_half_written(cwd, whole)
        assert ended.status == 0, ended.err
        assert files_of(cwd) == whole


@pytest.mark.slow
def test_what_methods_keep_survives_every_kill(commands: Commands, tmp_path):
    """Control variates, own models and cached updates: killed in the middle of each, again and again, and resumed."""
    names = ("SCAFFOLD", "pFedMe", "Ditto", "CA2FL")
    start = f"compare {TINY} --quorum 2 --local-steps 2 --seeds 1 --algorithms {','.join(names)} --out out"
    setting = {"checkpoint_every_s": 0.0, "workers": 1, "in_numpy": True}
    (tmp_path / "whole").mkdir()
    unbroken = commands(*start.split(), cwd=tmp_path / "whole", setting=setting)
    assert unbroken.status == 0, unbroken.err
    (cwd := tmp_path / "killed").mkdir()
    interrupted, command, resume = set[str](), start, "compare --resume out --quiet"
    for _ in range(12):
        killed = commands(*command.split(), cwd=cwd, setting=setting, before=("os.rename", 4))
        assert killed.killed, killed.err
        methods = {one.key: one.algorithm for one in trainings_of(read_run(cwd / "out"))}
        for path in cwd.rglob("*.checkpoint.safetensors"):
            if len(load_arrays(path)[1]["values"]) < EVALUATIONS:
                interrupted.add(methods[path.name.partition(".")[0]])
        command = resume
        if interrupted == set(names):
            break
    assert interrupted == set(names)
    ended = commands(*resume.split(), cwd=cwd, setting=setting)
    assert ended.status == 0, ended.err
    assert files_of(cwd) == files_of(tmp_path / "whole")


@pytest.mark.parametrize("name", CASES)
def test_a_folder_that_someone_else_writes_is_left_to_them(commands: Commands, tmp_path, name):
    write_mnist(tmp_path / "mnist" / "mnist")
    here, out = tmp_path / "here", tmp_path / "here" / "out"
    out.mkdir(parents=True)
    with alone(out):
        refused = commands(*CASES[name].start.split(), cwd=here, setting=CASES[name].setting)
    assert refused.status == 2, refused.err
    assert (
        refused.err
        == f"perfeds2 {name}: another process is writing into out; wait until it has ended, or choose another folder.\n"
    )
    assert files_of(here) == {}


def begun(out: Path) -> bool:
    return any((out / name).exists() for name in FIRST[:3])


def assert_nothing_is_half_written(cwd: Path, whole: dict[str, bytes]) -> None:
    for name, content in whole.items():
        there = (cwd / name).exists() and not is_live(cwd / name)  # the page may still be that of a run that goes on
        if Path(name).name in WHOLE_OR_ABSENT and there:
            assert (cwd / name).read_bytes() == content, name
