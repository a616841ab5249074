"""Do the container images use only files that exist, pin their bases and run without rights? As far as can be seen without Docker."""

import json
import re
import shlex
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from test_docs import parse

ROOT = Path(__file__).parent.parent
IMAGES = [ROOT / "deploy" / name for name in ("Dockerfile", "Dockerfile.cuda")]
INSTRUCTIONS = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "ENTRYPOINT", "CMD"}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]


def instructions(path):
    """(instruction, rest) of each line, with continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", path.read_text(encoding="utf-8"))
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def of(path, instruction):
    return [rest for word, rest in instructions(path) if word == instruction]


def copied(path):
    """What is copied, and where to."""
    return [(shlex.split(rest)[:-1], shlex.split(rest)[-1]) for rest in of(path, "COPY")]


def is_sent(name):
    """Whether .dockerignore lets a file through: its last line that fits decides, as Docker has it."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!").removeprefix("**/")
        parts = Path(name).parts
        paths = ["/".join(parts[: n + 1]) for n in range(len(parts))] + (list(parts) if "**/" in line else [])
        if any(fnmatch(each, pattern) for each in paths):
            sent = line.startswith("!")
    return sent


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_an_image_has_only_instructions_there_are_and_one_pinned_base(path):
    assert {word for word, _ in instructions(path)} <= INSTRUCTIONS
    (base,) = of(path, "FROM")
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base)  # no host, no tag that moves to another Python


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_what_an_image_copies_exists_and_is_sent_to_the_builder(path):
    for sources, _ in copied(path):
        for name in sources:
            assert (ROOT / name).exists(), name
            assert is_sent(name), name
            assert is_sent(f"{name}/cli.py") or (ROOT / name).is_file()


@pytest.mark.parametrize(
    "name",
    [
        "deploy/credentials/ca.key",
        ".git/config",
        ".venv/bin/python",
        "runs/a/model.safetensors",
        "perfeds2/__pycache__/cli.pyc",
    ],
)
def test_what_an_image_needs_not_is_not_sent(name):
    assert not is_sent(name)


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_an_image_runs_as_someone_without_rights(path):
    (user,) = of(path, "USER")
    assert user not in ("root", "0")
    words = [word for word, _ in instructions(path)]
    assert words.index("RUN") < words.index("USER") < words.index("ENTRYPOINT")
    assert f"useradd --uid 1000 --create-home {user}" in of(path, "RUN")[0]
    home = of(path, "WORKDIR")[-1]
    assert f"-o {user} -g {user} {home} " in of(path, "RUN")[0]  # what it works in is its own
    assert all(folder.startswith("/") for folder in of(path, "WORKDIR"))


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_an_image_installs_pinned_versions_keeps_no_cache_and_names_no_host(path):
    (run,) = of(path, "RUN")
    assert subprocess.run(["sh", "-n", "-c", run], capture_output=True, check=False).returncode == 0
    (install,) = [shlex.split(step) for step in run.split("&&") if "pip" in step]
    assert install[:3] == ["pip", "install", "--no-cache-dir"]
    assert install[3:5] == ["-c", "constraints.txt"]
    extras = re.fullmatch(r"\.\[([\w,]+)\]", install[5])
    assert extras
    assert set(extras[1].split(",")) <= EXTRAS.keys()
    assert ("gpu" in extras[1]) == (path.suffix == ".cuda")
    assert "://" not in path.read_text(encoding="utf-8")
    assert not re.search(r"\b(?:sudo|curl|wget|apt-get|--index-url|--trusted-host)\b", run)


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_an_image_starts_a_command_there_is(path):
    (entry,), (usual,) = of(path, "ENTRYPOINT"), of(path, "CMD")
    assert json.loads(entry) == ["perfeds2"]  # in a list: signals reach it, not a shell
    assert json.loads(usual) == ["--help"]
    for command in re.findall(r"docker run [^&\n]*?perfeds2(?:-cuda)? ([^&\n`]+)", path.read_text(encoding="utf-8")):
        parse(shlex.split(command))


def test_the_two_images_differ_in_what_a_gpu_needs_only():
    plain, cuda = ([each for each in instructions(path) if each[0] not in ("RUN", "ENV")] for path in IMAGES)
    assert plain == cuda
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in of(IMAGES[1], "ENV")[0]
