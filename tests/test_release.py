"""Is what we would release told alike everywhere: its version, how it is installed, how it is cited?"""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from command_line import told

import perfeds2
from perfeds2.commands import version as shown

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
ISSUE_CONFIG = ROOT / ".github/ISSUE_TEMPLATE/config.yml"
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
TEXTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "deploy/README.md",
]


# ---- the version


def test_the_version_is_the_same_everywhere():
    assert perfeds2.__version__ == PROJECT["version"] == CITATION["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?", PROJECT["version"])


def test_the_version_comes_with_the_platform():
    status, said, _ = told("--version")
    assert status == 0
    first, python, packages, machine = said.splitlines()
    assert first == f"perfeds2 {PROJECT['version']}"
    assert python.startswith("Python 3.")
    assert re.fullmatch(r"jax [\d.]+, jaxlib [\d.]+, numpy [\d.]+, numba ([\d.]+|is not installed)", packages)
    assert "core" in machine


def test_the_version_says_which_gpus_there_are_and_whether_jax_can_use_them(tmp_path, monkeypatch):
    assert "no NVIDIA GPU" in shown._accelerator(tmp_path)
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    assert shown._accelerator(tmp_path).startswith("2 NVIDIA GPUs, ")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert shown._accelerator(tmp_path).endswith("JAX_PLATFORMS=cpu")
    assert shown._installed("perfeds2-that-does-not-exist") == "is not installed"


# ---- the changelog


def test_the_changelog_has_a_section_for_this_version_and_it_is_the_first():
    sections = re.findall(r"^## (.+)$", CHANGES, re.MULTILINE)
    for each in sections:
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\S*\] - (?:\d{4}-\d\d-\d\d|unreleased)", each), each
    assert sections[0].startswith(f"[{PROJECT['version']}]")
    assert all("unreleased" not in each for each in sections[1:])
    numbers = [tuple(map(int, re.findall(r"\d+", each.partition("]")[0])[:3])) for each in sections]
    assert numbers == sorted(set(numbers), reverse=True)


def test_the_changelog_says_of_every_change_which_kind_it_is():
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    for section in re.split(r"^## ", CHANGES, flags=re.MULTILINE)[1:]:
        before, *parts = re.split(r"^### ", section, flags=re.MULTILINE)
        assert parts
        assert not re.search(r"^- ", before, re.MULTILINE), "a change without a kind"
        for part in parts:
            assert part.partition("\n")[0] in kinds
            assert re.search(r"^- ", part, re.MULTILINE)


# ---- how it is cited


def test_the_citation_has_what_its_format_asks_for():
    asked = {"cff-version", "message", "title", "authors"}
    known = {"type", "version", "date-released", "license", "abstract", "keywords", "references"}
    assert asked | known == CITATION.keys()  # without an address, until there is one
    assert CITATION["license"] == PROJECT["license"]
    (paper,) = CITATION["references"]
    assert paper["title"] in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert [each["family-names"] for each in paper["authors"]] == ["You", "Feng", "Guo", "Yang", "Feng", "Quek"]


# ---- how it is installed


def installs(text):
    """What each ``pip install``, ``pipx`` and ``uvx`` of a text installs."""
    for words in re.findall(r"\b(?:pip|pipx|uv|uvx)\s+(?:install|run|tool|pip|--from|--spec)\b[^`\n]*", text):
        yield shlex.split(words.replace("\\", ""), comments=True)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_installed_from_an_index_we_are_not_on(path):
    for words in installs(path.read_text(encoding="utf-8")):
        for word in words:
            ours = re.fullmatch(r"perfeds2(?:\[[\w,]+\])?(?:[=<>~!].*)?", word.rstrip(").,;"))
            behind_a_wheel = any(".whl" in each for each in words)
            assert not ours or behind_a_wheel, f"{' '.join(words)}: install from the clone (.) or the wheel (dist/…whl)"


def test_an_install_line_from_an_index_is_noticed():
    ((words),) = installs("Install it with `pip install 'perfeds2[mqtt]'`.")
    assert "perfeds2[mqtt]" in words


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_extras_that_are_told_of_exist(path):
    for extras in re.findall(r"(?:\.|\.whl|perfeds2)\[([\w,]+)\]", path.read_text(encoding="utf-8")):
        assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()


@pytest.mark.parametrize("extra", sorted({*PROJECT["optional-dependencies"]} - {"dev"}))  # tests run in it
def test_every_extra_is_named_in_a_test(extra):
    """In quotes, or in brackets as pip takes it."""
    named = re.compile(rf"[\"'\[,]{extra}[\"'\],]")
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    assert any(named.search(path.read_text(encoding="utf-8")) for path in tests)


@pytest.mark.parametrize("extra", sorted({*PROJECT["optional-dependencies"]} - {"gpu"}))
def test_ci_installs_every_extra_that_needs_no_gpu_and_no_account(extra):
    installed = re.findall(r"-e '\.\[([\w,]+)\]'", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert extra in ",".join(installed).split(",")
    assert "make RETRY=1 test-needs" in (ROOT / ".ci/run").read_text(encoding="utf-8")


# ---- what CI does


def test_ci_begins_with_the_two_commands_of_the_readme_on_a_bare_machine():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make run" in readme
    assert "make test" in readme
    parts = re.findall(r'^part "([^"]+)"', (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
    assert parts == ["bare machine", "extras and servers", "wheel", "lint and audit"]


def test_the_bare_machine_sees_no_tool_but_the_few_it_lists():
    look = "for tool in gcc npm chromium perfeds2 pip; do type $tool >/dev/null 2>&1 && echo $tool; done; ls -A $HOME; git --version"
    ended = subprocess.run([ROOT / ".ci/bare.sh", look], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("git version")
    failed = subprocess.run(
        [ROOT / ".ci/bare.sh", "exit 3", "echo not run"], capture_output=True, text=True, check=False
    )
    assert failed.returncode == 3
    assert "'exit 3' ended with status 3" in failed.stdout
    assert "not run" not in failed.stdout


@pytest.mark.parametrize(("lucky", "broken", "expected"), [(0, 0, 0), (1, 0, 0), (3, 0, 0), (4, 0, 1), (1, 1, 1)])
def test_a_test_that_fails_and_then_passes_alone_is_listed_and_four_are_too_many(lucky, broken, expected, tmp_path):
    fake = tmp_path / "fake_pytest.py"
    fake.write_text(
        "import json, pathlib, sys\n"
        "alone = '--last-failed' in sys.argv\n"
        "assert alone == ('-n' not in sys.argv) and '-q' in sys.argv\n"
        f"failed = ['broken'] * {broken} + [f'lucky-{{n}}' for n in range({lucky})] * (not alone)\n"
        "cache = pathlib.Path('.pytest_cache/v/cache/lastfailed')\n"
        "cache.parent.mkdir(parents=True, exist_ok=True)\n"
        "cache.write_text(json.dumps(dict.fromkeys(failed, True)))\n"
        "sys.exit(1 if failed else 0)\n"
    )
    command = [sys.executable, str(ROOT / ".ci/again.py"), sys.executable, str(fake), "-n", "4", "-q"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == expected, ended.stderr
    assert re.findall(r"^failed, then passed alone: (.+)$", ended.stdout, re.MULTILINE) == [
        f"lucky-{n}" for n in range(lucky)
    ]


# ---- what GitHub reads


FORMS = {
    "vendor.github-workflows": sorted((ROOT / ".github/workflows").glob("*.yml")),
    "vendor.github-issue-forms": sorted(set((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")) - {ISSUE_CONFIG}),
    "vendor.github-issue-config": [ISSUE_CONFIG],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}


@pytest.mark.parametrize("schema", FORMS)
def test_what_github_reads_follows_its_schema(schema):
    assert FORMS[schema]
    assert_passes("check-jsonschema", "--builtin-schema", schema, *map(str, FORMS[schema]))


def test_workflows_are_safe():
    assert_passes("zizmor", "--offline", "--no-progress", str(ROOT / ".github/workflows"))


def test_nothing_is_published_until_a_maintainer_says_so():
    for name, variable in (("release", "PUBLISH"), ("pages", "PAGES")):
        jobs = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text(encoding="utf-8"))["jobs"]
        for job in jobs.values():
            assert job.get("if") == f"vars.{variable} == 'true'" or job["needs"] in jobs


def test_ci_runs_the_script_that_everybody_can_run():
    steps = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]["test"]["steps"]
    assert any(".ci/run" in step.get("run", "") for step in steps)


def assert_passes(tool: str, *arguments: str) -> None:
    ended = subprocess.run([Path(sys.executable).parent / tool, *arguments], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
