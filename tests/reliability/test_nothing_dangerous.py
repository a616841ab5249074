"""Is there nothing in the package that runs what it reads, leaves its folder, or speaks over an open line?"""

import ast
import csv
import io
import re
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import told, train_here
from in_numpy import train_in_numpy
from killable_commands import shorter
from plotly.offline import get_plotlyjs
from tiny_data import write_mnist

import perfeds2
from perfeds2.learning.datasets import sources
from perfeds2.learning.datasets.cifar import read_cifar100_archive
from perfeds2.learning.files.formats import DataBroken, read_text
from perfeds2.paper.figures import FIGURES
from perfeds2.report.document import packed_element

PACKAGE = Path(perfeds2.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "yaml",
    "telnetlib",
}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "extract",
    "extractall",
    "pickle.load",
}
EVIL = "<script>alert(1)</script>"


def name_of(call: ast.Call) -> str:
    match call.func:
        case ast.Name(name):
            return name
        case ast.Attribute(ast.Name(module), name):
            return f"{module}.{name}"
        case ast.Attribute(_, name):
            return name
    return ""


def dangers(source: str) -> list[str]:
    """What is found in a module that must not be there."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names):
                found += [alias.name for alias in names if alias.name.split(".")[0] in FORBIDDEN_MODULES]
            case ast.ImportFrom(module=str(module)):
                found += [module] if module.split(".")[0] in FORBIDDEN_MODULES else []
            case ast.Call():
                name = name_of(node)
                last = name.rpartition(".")[2]
                if name in FORBIDDEN_CALLS or last in ("extract", "extractall"):
                    found.append(name)
                for keyword in node.keywords:
                    value = getattr(keyword.value, "value", None)
                    if (keyword.arg, value) in {("shell", True), ("allow_pickle", True), ("verify", False)}:
                        found.append(f"{name}({keyword.arg}={value})")
                if last == "load" and name.startswith("np.") and "allow_pickle" not in {k.arg for k in node.keywords}:
                    found.append("np.load without allow_pickle=False")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_unpickles_evaluates_or_extracts(path):
    assert dangers(path.read_text(encoding="utf-8")) == []


def test_the_scan_finds_what_it_looks_for():
    lines = ["import pickle", "from dill import loads", "eval('1')", "archive.extractall()", "np.load(path)"]
    lines += [
        "subprocess.run(x, shell=True)",
        "os.system('x')",
        "np.load(p, allow_pickle=True)",
        "get(url, verify=False)",
    ]
    for line in lines:
        assert dangers(line), line


def test_every_address_is_https_and_every_download_is_checked():
    for source in sources().values():
        for download in source.downloads:
            assert all(url.startswith("https://") for url in download.urls)
            # The plays have no official checksum: their content is counted instead.
            assert re.fullmatch("[0-9a-f]{64}", download.sha256 or "") or source.name == "shakespeare"
    for path in MODULES:
        for address in re.findall(r"[\"'`(]http://[^\"'`)]+", path.read_text(encoding="utf-8")):
            assert "localhost" in address or "w3.org" in address or "127.0.0.1" in address, (path, address)


def test_archives_cannot_write_anywhere(tmp_path):
    """Their members are read in memory, by the end of their names; no path of theirs is ever opened."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in ("../../escaped/train.bin", "/tmp/escaped/test.bin"):
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"evil"))
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "cifar-100-binary.tar.gz").write_bytes(buffer.getvalue())
    with pytest.raises(DataBroken):
        read_cifar100_archive(inner / "cifar-100-binary.tar.gz")
    with zipfile.ZipFile(inner / "plays.zip", "w") as archive:
        archive.writestr("../../escaped.txt", "To be")
    assert read_text(inner / "plays.zip") == "To be"
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        "cifar-100-binary.tar.gz",
        "plays.zip",
    ]


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands of this process run; what they train does not matter here."""
    monkeypatch.chdir(tmp_path)
    train_here(monkeypatch)
    train_in_numpy(monkeypatch.setattr)
    return tmp_path


def without_plotly(path: Path) -> str:
    page, library = path.read_text(encoding="utf-8"), packed_element("library", get_plotlyjs())
    assert library in page
    return page.replace(library, "")


def test_no_word_of_the_user_becomes_markup_in_a_runs_report(in_a_folder: Path):
    flags = "run --task synthetic --ues 3 --quorum 2 --rounds 2 --batch 4 --algorithms FedAvgS2 --quiet"
    evil = EVIL.replace("/", "∕")  # a name of a folder has no slash
    status, _, err = told(*flags.split(), "--data-dir", EVIL, "--out", evil)
    assert status == 0, err
    page = without_plotly(in_a_folder / evil / "report.html")
    assert "alert(1)" in page  # the spec is shown
    assert "<script>alert" not in page


def test_no_word_of_the_user_becomes_markup_in_a_reproduction(in_a_folder: Path, monkeypatch):
    write_mnist(in_a_folder / "mnist" / "mnist")
    evil = EVIL.replace("/", "∕")
    flags = "reproduce exp_4 --task mnist --seeds 1 --data-dir mnist --quiet --out"
    panels = [
        replace(panel, lines=panel.lines[:1], settings=shorter(panel, {"mnist": 1.0}))
        for panel in FIGURES["exp_4"].panels
    ]
    monkeypatch.setitem(FIGURES, "exp_4", replace(FIGURES["exp_4"], panels=tuple(panels)))
    status, _, err = told(*flags.split(), evil)
    assert status == 0, err
    assert "alert(1)" in without_plotly(in_a_folder / evil / "reproduction.html")
    table = in_a_folder / evil / "exp_4.csv"
    rows = list(csv.DictReader(table.read_text().splitlines()))
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows([row | {"panel": EVIL, "line": EVIL, "algorithm": EVIL, "task": EVIL} for row in rows])
    status, _, err = told(*flags.split(), evil)
    assert status in (0, 2), err
    assert "<script>alert" not in without_plotly(in_a_folder / evil / "reproduction.html")
