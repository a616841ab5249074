"""What does a name stand for? Something of ours, or anybody's own: ``FILE.py:NAME`` or ``package.module:NAME``.

A name is listed once, in a table beside the object it names. Wherever a name is accepted, a reference to one's own
object is too, and from Python the object itself. A spec writes down the reference and the sha256 of its file, so that a
run whose file has changed is not taken for the same run. A spec that names files runs them: treat it like a program.
"""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from pydantic_core import core_schema

from perfeds2.errors import InputError, did_you_mean

GIVEN = "python:"  # how a spec names an object that has no place in a file
MODES = ("SYN", "S2", "ASY")  # synchronous, semi-synchronous and asynchronous rounds


def algorithm_name(method: str, mode: str) -> str:
    """Return a method's name in one of the modes, as in the paper: PerFedS2, PerFed-SYN, PerFed-ASY."""
    return f"{method}S2" if mode == "S2" else f"{method}-{mode}"


def method_name(algorithm: str) -> str:
    """Return the method of an algorithm: PerFed for PerFedS2, and Ditto for Ditto."""
    return algorithm.removesuffix("S2").removesuffix("-SYN").removesuffix("-ASY")


@dataclass(frozen=True)
class Named:
    """A name and what it stands for."""

    text: str  # as a spec writes it
    value: Any = field(compare=False, repr=False)
    source: str = ""  # of somebody's own: the file or module it is in
    digest: str = ""  # … and its sha256
    identity: int = 0  # of an object that is written down nowhere

    def __str__(self) -> str:
        return self.text

    @property
    def label(self) -> str:
        """For people and folders: without the file it is in; of data, what their file or folder is called."""
        if self.source and self.source == self.text:
            return Path(self.text).resolve().stem
        return self.text.rpartition(":")[2] if self.source else self.text

    @property
    def is_written(self) -> bool:
        """Whether another process can find it by its text."""
        return not self.identity


@dataclass(frozen=True)
class Kind:
    """All that one kind of name may stand for."""

    what: str  # "bandwidth policy"
    place: str = ""  # of its table, MODULE:NAME; empty if there are only users' own
    is_called: bool = True  # else a thing may stand for itself: a Task, a Cell, an Algorithm
    opens: Callable[[str], Named | None] | None = None  # what a text may be besides: the place of data
    files: str = ""  # … and which files these are

    def table(self) -> Mapping[str, Any]:
        """The names, and what they stand for. Some tables load JAX."""
        module, _, name = self.place.partition(":")
        return getattr(importlib.import_module(module), name) if module else {}

    def __get_pydantic_core_schema__(self, *_: Any) -> Any:
        """Let ``Annotated[Named, TASK]`` read what a task is named by, and write its text."""
        text = core_schema.plain_serializer_function_ser_schema(str, return_schema=core_schema.str_schema())
        return core_schema.no_info_plain_validator_function(self.find, serialization=text)

    def find(self, given: Any) -> Named:
        """What a text, or an object given from Python, stands for. Raises ValueError that goes behind what was given."""
        if isinstance(given, Named):
            return given
        given, table = str(given) if isinstance(given, Path) else given, self.table()
        if not isinstance(given, str):
            ours = next((name for name, value in table.items() if value is given and value is not None), None)
            return self._checked(_written_down(given) if ours is None else Named(ours, given))
        if (family := self._family(given)) is not None:
            return Named(given, _of_family(table[family], given))
        if given in table:
            return Named(given, table[given])
        if self.opens is not None and (found := self.opens(given)) is not None:
            return found
        if ":" in given:
            return self._checked(_referred(given))
        own = "FILE.py:NAME" if self.opens is None else f"{self.files} or FILE.py:NAME"
        raise ValueError(f"is not known; {did_you_mean(given, table)} or your own as {own}")

    def is_reference(self, text: str) -> bool:
        """Whether a text refers to somebody's file or module, being no name of ours."""
        return ":" in text and text not in self.table() and self._family(text) is None

    def _family(self, text: str) -> str | None:
        """``between:THETA`` for ``between:0.5``."""
        families = {name.partition(":")[0]: name for name in self.table() if name.partition(":")[2].isupper()}
        return families.get(text.partition(":")[0])

    def _checked(self, own: Named) -> Named:
        if callable(own.value) or not (self.is_called or type(own.value).__module__ == "builtins"):
            return own
        raise ValueError(f"is no {self.what}; expected a name such as {next(iter(self.table()), 'FILE.py:NAME')}")


def _of_family(make: Callable[[float], Any], text: str) -> Any:
    family, _, number = text.partition(":")
    try:
        return make(float(number))
    except ValueError as error:
        why = f" ({error})" if "convert" not in str(error) else ""
        raise ValueError(f"needs a number as in {family}:0.5{why.replace('.)', ')')}") from None


def _referred(reference: str) -> Named:
    """What ``FILE.py:NAME`` or ``package.module:NAME`` refers to."""
    source, _, name = reference.rpartition(":")
    if reference.startswith(GIVEN):
        raise ValueError("was given from Python and is written down nowhere; run it from Python again")
    if not source or not name.isidentifier():
        raise ValueError("is neither a known name nor a reference such as FILE.py:NAME or package.module:NAME")
    module, digest = _load(source)
    if not hasattr(module, name):
        own = [known for known, value in vars(module).items() if not known.startswith("_") and callable(value)]
        raise ValueError(
            f"refers to nothing: {source} has no {name}; {did_you_mean(name, own or ['a name it defines'])}"
        )
    return Named(reference, getattr(module, name), source, digest)


_loaded: dict[tuple[str, str], ModuleType] = {}  # by path and digest: the same file is the same module


class _AsItIsNow(SourceFileLoader):
    """Reads no bytecode: it is found by the second a file was written in, and may be of an older text."""

    def path_stats(self, path: str) -> NoReturn:
        raise OSError(path)


_loading: list[str] = []  # files that are being run just now


def refuse_while_loading(what: str) -> None:
    """A file that is loaded for one of its names must not start its own work."""
    if _loading:
        raise InputError(f"runs {what} when it is loaded; put that behind if __name__ == '__main__'")


def _load(source: str) -> tuple[ModuleType, str]:
    """A user's module by its file or its dotted name, and the sha256 of its file."""
    is_file, name = source.endswith(".py"), source
    if is_file and not Path(source).is_file():
        raise ValueError(f"refers to no file: {source} is not in {Path.cwd()}")
    try:
        if not is_file:
            module = importlib.import_module(source)
            return module, _digest(Path(str(module.__file__)))
        path = Path(source).resolve()
        digest = _digest(path)
        if (str(path), digest) not in _loaded:
            name = f"perfeds2_own_{path.stem}_{digest[:8]}"
            loader = _AsItIsNow(name, str(path))
            found = importlib.util.spec_from_file_location(name, path, loader=loader)
            assert found is not None
            module = importlib.util.module_from_spec(found)
            sys.modules[name] = module  # dataclasses look there
            if str(path.parent) not in sys.path:
                sys.path.append(str(path.parent))  # what lies beside it can be imported, and hides nothing
            _loading.append(source)
            try:
                loader.exec_module(module)
            finally:
                _loading.pop()
            _loaded[str(path), digest] = module
        return _loaded[str(path), digest], digest
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # whatever somebody's file does when it is run
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise ValueError("needs PyTorch, which is not installed: python -m pip install 'perfeds2[torch]'") from None
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(f"cannot be loaded: {told}{_place(error, {name})}") from None


def _place(error: BaseException, modules: set[str]) -> str:
    """Where in those modules it was raised: `` (mine.py, line 3)``; nothing if it was not."""
    places = [
        f" ({Path(frame.f_code.co_filename).name}, line {line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__") in modules
    ]
    return places[-1] if places else ""


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _written_down(value: Any) -> Named:
    """An object as a reference, where it has a name in a file; else as what it is called."""
    name = getattr(value, "__qualname__", type(value).__name__)
    for module in (sys.modules.get(str(getattr(value, "__module__", ""))), sys.modules.get("__main__")):
        found = next((known for known, other in vars(module).items() if other is value), None) if module else None
        file = getattr(module, "__file__", None)
        if module is None or found is None or file is None or not _defines(Path(file), found):
            continue
        if module.__name__ != "__main__" or _is_guarded(Path(file)):  # else loading it would run it all again
            source = module.__name__ if "." in module.__name__ else _short(Path(file))
            return Named(f"{source}:{found}", value, source, _digest(Path(file)))
    return Named(f"{GIVEN}{name}", value, f"{GIVEN}{name}", "written down nowhere", id(value))


def _defines(path: Path, name: str) -> bool:
    """Whether everybody who loads a file finds the same under a name: it is bound at the top, and once."""
    if not path.is_file() or path.suffix != ".py":
        return False
    bound = Counter[str]()
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound[node.name] += 1
            continue
        times = (
            1 if isinstance(node, ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom) else 2
        )  # or perhaps none
        for each in ast.walk(node):
            stored = each.id if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) else ""
            bound[getattr(each, "asname", None) or getattr(each, "name", None) or stored] += times
    return bound[name] == 1


def _is_guarded(path: Path) -> bool:
    """Whether a script does its work behind ``if __name__ == "__main__":``."""
    tests = [ast.dump(node.test) for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.If)]
    return any("__name__" in test for test in tests)


def _short(path: Path) -> str:
    """Relative to where we are, if it is below."""
    path, here = path.resolve(), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def call(function: Callable[..., Any], what: str, known: Mapping[str, Any]) -> Any:
    """Call somebody's function with those of the known values that its parameters name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        raise InputError(f"{what} cannot be called with {', '.join(known)}: nothing says what it takes.") from None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        with user_errors(what, function):
            return function(**known)
    wanted = {p.name: p for p in parameters if p.kind is not p.VAR_POSITIONAL}
    missing = [name for name, p in wanted.items() if name not in known and p.default is p.empty]
    if missing:
        raise InputError(f"{what} asks for {missing[0]}; it may ask for any of {', '.join(known)}.")
    given = {name: known[name] for name in wanted if name in known}
    first = [given.pop(name) for name, p in wanted.items() if p.kind is p.POSITIONAL_ONLY and name in given]
    with user_errors(what, function):
        return function(*first, **given)


@contextmanager
def user_errors(what: str, *parts: Any) -> Iterator[None]:
    """What somebody's own parts do wrong becomes a sentence that names them. What ours do is a bug, and passes."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        modules = {str(getattr(getattr(part, "func", part), "__module__", "")) for part in parts if part is not None}
        theirs = {module for module in modules if not module.startswith("perfeds2.")}
        place, is_value = _place(error, theirs), isinstance(error, ValueError | TypeError)
        if not (place or (theirs and is_value)):  # such an error of ours is about what theirs gave
            raise
        told = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        told += " ".join(str(error).split()).removesuffix(".")
        raise InputError(f"{what}: {told}{place}.") from error


def expect(made: Any, kind: type, flag: str, named: Named | None) -> Any:
    """What somebody's own function gave, if it is what was asked for."""
    if not isinstance(made, kind):
        raise InputError(f"{flag} {named} gave a {type(made).__name__}; expected a {kind.__name__}.")
    return made
