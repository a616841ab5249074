"""Do imports point one way, and is nothing looked up by a name in a text? Read from the code, late imports too."""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "perfeds2"
LEVELS = [  # what stands later may import what stands earlier, and what is beside it
    ["public", "errors", "files", "console", "chart", "shown", "http_server"],
    *[
        ["network"],
        ["allocation"],
        ["theory"],
        ["timeline"],
        ["privacy"],
        ["learning"],
        ["spec"],
        ["runs"],
        ["studies"],
    ],
    *[["paper"], ["report"], ["kinds"], ["api"], ["deployment"], ["play"], ["commands"], ["cli"], ["__main__"]],
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
ROOT = PACKAGE.parent
IMPORTED_AS = {"paho_mqtt": "paho", "pyyaml": "yaml", "scikit_learn": "sklearn", "pytest_xdist": "xdist"}
PARTS = {"jaxlib": "jax", "llvmlite": "numba", "pydantic_core": "pydantic"}  # neither works without the other
MODULE = r"[a-z_]\w*(\.[a-z_]\w*)+"
FOR_ONCE = {"sionna", "onnxruntime"}  # to make a file of the tests again, and to try what is exported
BY_NAME = {"public.py", "kinds.py", "spec/names.py"}  # the package's lazy names, kinds of studies, users' FILE.py:NAME


@cache
def modules() -> dict[str, list[ast.AST]]:
    """All nodes of every module of the package, parsed once."""
    return {
        str(path.relative_to(PACKAGE)): list(ast.walk(ast.parse(path.read_text("utf-8"))))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def imports(module: str, nodes: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    """Where an import is, and the module it asks for: at the top, inside a function or for the type checker only."""
    package = ["perfeds2", *Path(module).parent.parts]
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{origin}.{alias.name}" if origin == "perfeds2" else origin for alias in node.names]
        else:
            continue
        yield from ((f"{module}:{node.lineno}", name) for name in names)


def part(module: str) -> str:
    """The first step below the package: a folder or a file."""
    return Path(module).parts[0].removesuffix(".py")


def test_every_part_has_its_level():
    assert {part(module) for module in modules()} == {"__init__", *LEVEL}


@pytest.mark.parametrize("name", LEVEL)
def test_imports_point_one_way(name):
    back = [
        (where, imported)
        for module, nodes in modules().items()
        if part(module) == name
        for where, imported in imports(module, nodes)
        if imported.startswith("perfeds2.") and imported != "perfeds2.__version__"
        if LEVEL.get(imported.split(".")[1], len(LEVELS)) > LEVEL[name]  # the root's names count as above all
    ]
    assert back == []


def test_only_deployment_imports_what_an_extra_installs_when_it_is_imported():
    extras = {"cryptography", "paho", "prometheus_client", "torch"}
    found = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if part(str(path.relative_to(PACKAGE))) != "deployment"
        for _, name in imports(path.name, ast.parse(path.read_text("utf-8")).body)
        if name.split(".")[0] in extras
    ]
    assert found == []


def test_no_file_imports_itself_through_others():
    """Late imports count too: one that hides a circle is a circle. Imports for the type checker do not."""
    files = {dotted(module) for module in modules()}
    graph = {dotted(module): files_imported(nodes) & files - {dotted(module)} for module, nodes in modules().items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


def test_a_public_class_name_stands_for_one_thing():
    names = Counter(node.name for nodes in modules().values() for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1 and not name.startswith("_")] == []


def dotted(module: str) -> str:
    """The name by which a file is imported."""
    return ".".join(["perfeds2", *Path(module).with_suffix("").parts]).removesuffix(".__init__")


def files_imported(nodes: list[ast.AST]) -> set[str]:
    """What a file imports when it runs, at the top or in a function: modules, and names in them."""
    for_types = {
        id(child)
        for node in nodes
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for child in ast.walk(node)
    }
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and id(node) not in for_types:
            found.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
        elif isinstance(node, ast.Import) and id(node) not in for_types:
            found.update(alias.name for alias in node.names)
    return found


@pytest.mark.parametrize(
    ("folder", "besides", "forbidden"),
    [
        ("report", (), ("jax", "flwr")),
        ("deployment", (), ("flwr",)),
        ("deployment", ("deployment/mqtt/",), ("paho", "perfeds2.deployment.mqtt")),
        *[(folder, (), ("jax",)) for folder in ("network", "allocation", "timeline", "privacy")],
    ],
)
def test_what_a_folder_never_imports(folder, besides, forbidden):
    found = [
        (where, imported)
        for module, nodes in modules().items()
        if part(module) == folder and not module.startswith(besides or "-")
        for where, imported in imports(module, nodes)
        if any(f"{imported}.".startswith(f"{name}.") for name in forbidden)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("folder", "without"), [("perfeds2", {"dev", "docs"}), ("tests", set()), ("docs/site", {"dev"}), (".ci", {"*"})]
)
def test_whatever_is_imported_is_a_declared_dependency(folder, without):
    """What another dependency brings today may be gone tomorrow, so an import is declared, or in an extra."""
    declared, brought = declared_modules(without), names_of(ROOT / "constraints.txt") - declared_modules(set())
    ours = {path.stem for place in ("tests", "docs/site", "benchmarks") for path in (ROOT / place).rglob("*.py")}
    known = {*sys.stdlib_module_names, "perfeds2", "benchmarks", "examples", "mine", *ours, *declared}
    known |= FOR_ONCE if folder == "tests" else set()
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        found += [(where, name) for where, name in modules_in_texts(path, nodes) if name.split(".")[0] in brought]
        found += [(where, name) for where, name in imports(str(path), nodes) if name.split(".")[0] not in known]
    assert found == []


def declared_modules(without: set[str]) -> set[str]:
    """The modules of the package's dependencies and of its extras but these; ``*`` for no dependency at all."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    if "*" in without:
        return set()
    extras = [each for name, extra in project["optional-dependencies"].items() if name not in without for each in extra]
    return names_in([*project["dependencies"], *extras])


def names_of(constraints: Path) -> set[str]:
    return names_in(constraints.read_text("utf-8").splitlines())


def names_in(requirements: list[str]) -> set[str]:
    named = [re.match(r"[\w-]+", each) for each in requirements]
    modules = {each[0].lower().replace("-", "_") for each in named if each}
    return {IMPORTED_AS.get(name, name) for name in modules} | {part for part, of in PARTS.items() if of in modules}


def modules_in_texts(path: Path, nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Texts such as "pandas.io.formats", which a test may import, and where they are."""
    for node in nodes:
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.Constant) and isinstance(text, str) and re.fullmatch(MODULE, text):
            yield f"{path}:{node.lineno}", text


def test_nothing_is_looked_up_by_a_name_in_a_text():
    """A name has a table beside what it names. Only a record's own fields are read by ``getattr``."""
    found = []
    for module, nodes in modules().items():
        if module in BY_NAME:
            continue
        ours = names_of_fields(nodes)
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            by_text = called == "getattr" and not is_field(node.args[1], ours)
            if by_text or called.split(".")[-1] in {"import_module", "__import__"} or called in {"eval", "exec"}:
                found.append(f"{module}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def test_no_file_is_longer_than_five_hundred_lines():
    lengths = {str(path): len(path.read_text("utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {name: lines for name, lines in lengths.items() if lines > 500} == {}


def names_of_fields(nodes: list[ast.AST]) -> set[str]:
    """Variables that run over a record's fields, or over names written out on the spot."""
    named = set()
    for node in nodes:
        if isinstance(node, ast.For | ast.comprehension):
            over = ast.unparse(node.iter)
            target = node.target.elts[0] if isinstance(node.target, ast.Tuple) else node.target
            written_out = isinstance(node.iter, ast.Tuple) or over == "shapes.items()"  # Timeline's, by field
            if isinstance(target, ast.Name) and ("fields(" in over or over.endswith("._fields") or written_out):
                named.add(target.id)
    return named


def is_field(name: ast.expr, ours: set[str]) -> bool:
    if isinstance(name, ast.Attribute) and name.attr == "name":  # of a dataclass's field
        name = name.value
    return isinstance(name, ast.Constant) or (isinstance(name, ast.Name) and name.id in ours)


def test_documents_list_the_folders_in_this_order():
    """CONTRIBUTING, the design and the site's reference, as far as each goes."""

    def part(page: str, first: str, last: str) -> str:
        return (ROOT / page).read_text(encoding="utf-8").partition(first)[2].partition(last)[0]

    listed = [
        re.findall(r"\w+", part("CONTRIBUTING.md", "The order is ", " (`")),
        re.findall(r"^\| `(\w+)/`", part("docs/explanation/design.md", "| folder | question", "\n\n"), re.MULTILINE),
        re.findall(r'"(\w+)"', part("docs/site/reference.py", "FOLDERS = (", ")")),
    ]
    for names in listed:
        assert len(names) >= 13
        assert names == sorted(names, key=LEVEL.__getitem__)
