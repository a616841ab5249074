"""Does a command that is killed at any moment lose nothing, and end with the bytes of one that was not?"""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from killable_commands import Commands, files_of
from tiny_data import write_mnist

from perfeds2.runs.folder import alone

KILLS = 20
TINY = "--task synthetic --ues 4 --horizon-s 1 --eval-every-s 0.1 --batch 4 --quiet"
WHOLE_OR_ABSENT = ("spec.toml", "timeline.npz", "model.safetensors", "ue_metrics.csv", "summary.json", "report.html")


@dataclass(frozen=True)
class Case:
    """A command that writes into ``out``, and the one that goes on with it."""

    start: str
    go_on: str
    setting: dict[str, Any] = field(default_factory=dict)


def case(start: str, go_on: str | None = None, **setting: Any) -> Case:
    return Case(start, go_on or start, {"checkpoint_every_s": 0.0, **setting})


CASES = {
    "run": case(f"run {TINY} --algorithms FedAvgS2 --quorum 2 --out out", "run --resume out --quiet"),
    "compare": case(
        f"compare {TINY} --quorum 2 --algorithms FedAvgS2,FedAvg-SYN --seeds 2 --out out",
        "compare --resume out --quiet",
    ),
    "sweep": case(
        f"sweep {TINY} --algorithms FedAvgS2 --grid quorum=1,2 --grid seed=0..1 --workers 1 --out out",
        "sweep --resume out --quiet",
        in_process=True,
    ),
    "reproduce": case(
        "reproduce exp_4 --task mnist --seeds 1 --data-dir ../mnist --out out --quiet",
        horizon_s={"mnist": 3.0},
        checkpoint_every_s=0.2,
        most_lines=1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_command_killed_at_twenty_random_moments_ends_with_the_same_bytes(commands: Commands, tmp_path, name):
    write_mnist(tmp_path / "mnist" / "mnist")
    case, chance = CASES[name], random.Random(name)
    (tmp_path / "whole").mkdir()
    for again in ("compiling", "whole"):  # the first fills the cache: the second is as quick as those to be killed
        (tmp_path / again).mkdir(exist_ok=True)
        unbroken = commands(*case.start.split(), cwd=tmp_path / again, setting=case.setting)
        assert unbroken.status == 0, unbroken.err
    whole = files_of(tmp_path / "whole")
    assert files_of(tmp_path / "compiling") == whole
    kills, runs = 0, 0
    while kills < KILLS:
        runs += 1
        cwd = tmp_path / f"killed-{runs}"
        cwd.mkdir()
        ended = unbroken
        while ended.killed or ended is unbroken:
            command = case.go_on if begun(cwd / "out") and chance.random() < 0.5 else case.start
            moment: dict[str, Any] = {"after_s": chance.uniform(0, unbroken.seconds)}
            if chance.random() < 0.5:
                moment = {"before_operation": chance.randint(1, unbroken.operations)}
            ended = commands(*command.split(), cwd=cwd, setting=case.setting, **(moment if kills < KILLS else {}))
            kills += ended.killed
            assert_nothing_is_half_written(cwd, whole)
        assert ended.status == 0, ended.err
        assert files_of(cwd) == whole


@pytest.mark.parametrize("name", CASES)
def test_a_folder_that_somebody_else_writes_is_left_to_them(commands: Commands, tmp_path, name):
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
    assert set(files_of(here)) <= {f"out/{begins}" for begins in ("spec.toml", "sweep.toml", "reproduce.toml")}


def begun(out: Path) -> bool:
    return (out / "spec.toml").exists() or (out / "sweep.toml").exists()


def assert_nothing_is_half_written(cwd: Path, whole: dict[str, bytes]) -> None:
    for name, content in whole.items():
        if Path(name).name in WHOLE_OR_ABSENT and (cwd / name).exists():
            assert (cwd / name).read_bytes() == content, name
