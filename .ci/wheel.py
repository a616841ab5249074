"""Can the release be installed and run in an empty environment?

The source archive is built, the wheel out of the archive, and the wheel is put into empty environments: of the newest Python at
hand as users install it, without constraints; of the oldest with the oldest versions of what we depend on that we say will do; and
of this one with constraints.txt. With --every, each Python at hand also gets it without constraints. In an empty folder the help is
shown, a comparison is trained, and a federation runs. The archive must hold every file of the repository, and the tests in it must
run. What is not at hand is said and left out. `dist/` holds the two files afterwards.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
COMPARE = ["compare", "--ues", "6", "--quorum", "2", "--horizon-s", "1", "--batch", "8", "--seeds", "1", "--jobs", "1"]
COMPARE += ["--algorithms", "PerFedS2", "--out", "run"]
FEDERATE = ["federate", "local", "--devices", "2", "--quorum", "2", "--rounds", "2", "--out", "federation"]
INSTALLERS = [["uv", "pip"], ["pip", "--disable-pip-version-check"]]  # uv takes a tenth of the time
WRITES = {"spec.toml", "metrics.csv", "summary.json", "report.html"}
TRIED = ["tests/test_release.py", "tests/test_imports.py", "tests/timeline/test_rounds_by_hand.py"]  # of the archive's


def main() -> int:
    began, version = time.monotonic(), tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        installer = set_up_tools(folder)
        archive, wheel = build(folder, version)
        left_out = missing_files(archive)
        if left_out:
            return say(f"the source archive lacks {', '.join(left_out[:5])} of {len(left_out)} files.", 1)
        build_of_what_images_copy(folder)
        with ThreadPoolExecutor(3) as pool:
            tests = pool.submit(run_tests_of, folder / f"perfeds2-{version}")
            every = tries(folder, every="--every" in sys.argv)
            tried = pool.map(lambda one: try_wheel(*one, folder, wheel, installer), every)
            failures = [each for each in tried if each]
        failures += [tests.result()] if tests.result() else []
        shutil.copy(archive, ROOT / "dist")
        shutil.copy(wheel, ROOT / "dist")
    for failure in failures:
        say(failure, 1)
    if failures:
        return 1
    return say(f"{archive.name} and {wheel.name} work ({time.monotonic() - began:.0f} s).", 0)


def say(sentence: str, status: int) -> int:
    print(f"wheel: {sentence}", flush=True)
    return status


def call(command: list[str | Path], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Without what would lead back to this repository."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    words = list(map(str, command))
    return subprocess.run(  # noqa: S603
        words, cwd=folder, env=clean | environment, capture_output=True, text=True, check=False, timeout=3600
    )


def call_well(command: list[str | Path], folder: Path) -> str:
    done = call(command, folder)
    if done.returncode:
        raise SystemExit(f"wheel: {' '.join(map(str, command))} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def set_up_tools(folder: Path) -> list[str]:
    """Install what builds, and return the installer that could: pip where uv does not find the package index."""
    home = folder / "tools"
    call_well([sys.executable, "-m", "venv", "--without-pip", home], folder)
    for installer in ([sys.executable, "-m", *words] for words in INSTALLERS):
        done = call([*installer, "install", "--quiet", "--python", home / "bin" / "python", "hatchling>=1.27"], folder)
        if done.returncode == 0:
            return installer
    raise SystemExit(f"wheel: hatchling could not be installed:\n{done.stderr[-4000:]}")


def build(folder: Path, version: str) -> tuple[Path, Path]:
    """The source archive, and the wheel made of what is in it."""
    dist, python = folder / "dist", folder / "tools" / "bin" / "python"
    (ROOT / "dist").mkdir(exist_ok=True)
    call_well([python, "-m", "hatchling", "build", "-t", "sdist", "-d", dist], ROOT)
    archive = dist / f"perfeds2-{version}.tar.gz"
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    call_well([python, "-m", "hatchling", "build", "-t", "wheel", "-d", dist], folder / f"perfeds2-{version}")
    return archive, dist / f"perfeds2-{version}-py3-none-any.whl"


def build_of_what_images_copy(folder: Path) -> None:
    """The files that the container images copy are enough to install from."""
    source, python = folder / "image", folder / "tools" / "bin" / "python"
    source.mkdir()
    for line in (ROOT / "deploy" / "Dockerfile").read_text("utf-8").splitlines():
        if line.startswith("COPY "):
            for name in line.split()[1:-1]:
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                copy(ROOT / name, source / name)
    call_well([python, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "image-dist"], source)


def missing_files(archive: Path) -> list[str]:
    """What is in the repository and not in the archive. Nothing, where git cannot say."""
    listed = call(["git", "ls-files"], ROOT)
    with tarfile.open(archive) as packed:
        held = {name.partition("/")[2] for name in packed.getnames()}
    return sorted(set(listed.stdout.splitlines()) - held)


def tries(folder: Path, every: bool) -> list[tuple[str, str, Path | None]]:
    """The name and the interpreter of each environment, and its constraints."""
    found = list(at_hand())
    (newest, program), (oldest, oldest_program) = found[-1], found[0]
    unbound = found if every else [(newest, program)]
    return [
        *[(f"{version}, newest versions", python, None) for version, python in unbound],
        (f"{oldest}, oldest versions", oldest_program, oldest_versions(folder)),
        (
            f"{sys.version_info.major}.{sys.version_info.minor}, constraints.txt",
            sys.executable,
            ROOT / "constraints.txt",
        ),
    ]


def at_hand() -> Iterator[tuple[str, str]]:
    """On the path, or among pyenv's."""
    found = []
    for version in VERSIONS:
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
        candidates = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}*/bin/python"))]
        works = [str(each) for each in candidates if each and call([each, "-c", "import venv"], ROOT).returncode == 0]
        if works:
            found.append(version)
            yield version, works[0]
    if absent := [version for version in VERSIONS if version not in found]:
        say(f"no Python {', '.join(absent)} at hand: not tried.", 0)


def oldest_versions(folder: Path) -> Path:
    """Constraints: of each package we depend on the first version that we say will do."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["mqtt"]]
    bounds = [re.match(r"([\w-]+)>=([\d.]+)", each) for each in named]
    (path := folder / "oldest.txt").write_text("".join(f"{each[1]}=={each[2]}\n" for each in bounds if each), "utf-8")
    return path


def try_wheel(
    name: str, python: str, versions: Path | None, folder: Path, wheel: Path, installer: list[str]
) -> str | None:
    """Install it with the extra for federations where nothing else is, and use it. What went wrong, if anything."""
    began, place = time.monotonic(), folder / name.replace(", ", "-").replace(" ", "-")
    home, empty = place / "environment", place / "empty"
    empty.mkdir(parents=True)
    into, program = ["--python", home / "bin" / "python"], home / "bin" / "perfeds2"
    steps: list[list[str | Path]] = [
        [python, "-m", "venv", "--without-pip", home],
        [*installer, "install", "--quiet", *into, *(["-c", versions] if versions else []), f"{wheel}[mqtt]"],
        [*installer, "check", *into],
        [program, "--version"],
        [program, "--help"],
        [program, *COMPARE],
        [program, *FEDERATE],
    ]
    for step in steps:
        done = call(step, empty, PERFEDS2_COMPILE_CACHE=str(place / "compiled"), PIP_NO_COMPILE="1")
        if done.returncode:
            said = (done.stdout + done.stderr).strip()[-2000:]
            return f"Python {name}: {' '.join(map(str, step[1:]))} failed: {said}"
        if step[-1] == "--version" and f"Python {name.partition(',')[0]}." not in done.stdout:
            return f"Python {name}: perfeds2 --version says {done.stdout!r}"
    written = {each.name for each in (empty / "run").iterdir()}
    if not written >= WRITES:
        return f"Python {name}: a comparison wrote {', '.join(sorted(written))} only."
    say(f"Python {name}: installed, compared and federated ({time.monotonic() - began:.0f} s).", 0)
    return None


def run_tests_of(source: Path) -> str | None:
    """Some of the tests that came with the archive, with the tools this repository has installed."""
    if importlib.util.find_spec("pytest") is None:
        say("no pytest at hand (make wheel has it): the archive's tests were not run.", 0)
        return None
    done = call([sys.executable, "-m", "pytest", "-q", *TRIED], source, PYTHONPATH=str(source))
    return None if done.returncode == 0 else f"the archive's tests fail: {done.stdout[-3000:]}"


if __name__ == "__main__":
    sys.exit(main())
