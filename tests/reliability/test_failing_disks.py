"""What does a user read, and keep, when the disk is full, read-only, or gone?"""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from killable_commands import Commands, Ended, files_of
from needs import needs

QUICK = "--task synthetic --ues 4 --quorum 2 --rounds 4 --eval-every-s 0.1 --batch 4 --quiet"
RUN = f"run {QUICK} --algorithms FedAvgS2 --out"
QUICKLY = {"in_numpy": True}  # what is trained does not matter here
EVERY_MOMENT = QUICKLY | {"checkpoint_every_s": 0.0}


def assert_one_sentence(ended: Ended, status: int, words: str) -> None:
    assert ended.status == status, ended.err
    assert words in ended.err
    assert ended.err.startswith("perfeds2 ")
    assert ended.err.strip().count("\n") == 0
    assert "Traceback" not in ended.err + ended.out


def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A small disk in memory; only root can have one."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "disk", "size=256k")


@pytest.fixture
def roomy_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "disk", "size=32m")


@pytest.fixture(scope="module")
def earlier(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A finished run, made where there is room."""
    place = tmp_path_factory.mktemp("earlier")
    assert commands(*RUN.split(), "out", cwd=place, setting=QUICKLY).status == 0
    return files_of(place / "out")


@needs("mount")
def test_a_full_disk_is_one_sentence_and_what_is_done_stays(commands: Commands, tmp_path, small_disk, earlier):
    (small_disk / "filler").write_bytes(bytes(200_000))
    full = commands(*RUN.split(), "disk/out", cwd=tmp_path, setting=EVERY_MOMENT)
    assert_one_sentence(full, 1, "No space left on device")
    assert "continue with: perfeds2 run --resume disk/out" in full.err
    (small_disk / "filler").unlink()
    subprocess.run(["mount", "-o", "remount,size=32m", str(small_disk)], check=True)  # plotly alone takes 5 MB
    resumed = commands("run", "--resume", "disk/out", "--quiet", cwd=tmp_path, setting=QUICKLY)
    assert (resumed.status, resumed.err) == (0, "")
    assert files_of(small_disk / "out") == earlier


@pytest.mark.parametrize("file_bytes", [400, 3_000, 1_000_000])
def test_a_disk_that_takes_no_more_is_one_sentence_whichever_file_it_is(
    commands: Commands, tmp_path, earlier, file_bytes
):
    """A limit on the size of any file stands in for a full disk where no one may mount one."""
    stopped = commands(*RUN.split(), "out", cwd=tmp_path, setting=EVERY_MOMENT | {"file_bytes": file_bytes})
    # The spec is written first of all: if not even that is possible, the folder cannot be used.
    assert_one_sentence(stopped, 2 if file_bytes < 1_000 else 1, os.strerror(errno.EFBIG))
    assert not list((tmp_path / "out").rglob(".*")), "half a file was left behind"
    resumed = commands(*RUN.split(), "out", cwd=tmp_path, setting=QUICKLY)
    assert (resumed.status, resumed.err) == (0, "")
    assert files_of(tmp_path / "out") == earlier


@needs("mount")
def test_a_read_only_disk_is_exit_2_and_leaves_its_files_alone(commands: Commands, tmp_path, small_disk, earlier):
    (small_disk / "begun").mkdir()
    (small_disk / "begun/spec.toml").write_bytes(earlier["spec.toml"])
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for out in ("disk/new", "disk/begun"):
        assert_one_sentence(commands(*RUN.split(), out, cwd=tmp_path), 2, f"--out {out} cannot be written: Read-only")
    assert files_of(small_disk) == {"begun/spec.toml": earlier["spec.toml"]}


@needs("mount")
def test_a_finished_run_can_be_looked_at_on_a_read_only_disk(commands: Commands, tmp_path, roomy_disk, earlier):
    for name, content in earlier.items():
        (roomy_disk / name).write_bytes(content)
    subprocess.run(["mount", "-o", "remount,ro", str(roomy_disk)], check=True)
    again = commands(*[word for word in RUN.split() if word != "--quiet"], "disk", cwd=tmp_path)
    assert (again.status, again.err) == (0, "")
    assert "already holds this finished run" in again.out


@pytest.mark.parametrize("operation", [2, 5, 9])
def test_a_folder_deleted_under_the_run_is_one_sentence_and_others_stay(
    commands: Commands, tmp_path, earlier, operation
):
    setting = EVERY_MOMENT | {"delete_at": [operation, str(tmp_path / "out")]}
    (tmp_path / "other").mkdir()
    for name, content in earlier.items():
        (tmp_path / "other" / name).write_bytes(content)
    gone = commands(*RUN.split(), "out", cwd=tmp_path, setting=setting)
    assert_one_sentence(gone, 1, "No such file or directory")
    assert "continue with" not in gone.err  # there is nothing left to go on with
    assert not (tmp_path / "out").exists()
    assert files_of(tmp_path / "other") == earlier
