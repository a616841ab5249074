"""Resolve names to objects: built-in ones, or the user's own as ``FILE.py:NAME`` or ``package.module:NAME``.

A built-in name is listed once, in a table beside the object. Wherever a name is accepted, so is a reference to the
user's own object, and from Python the object itself. A spec records the reference and the sha256 of its file, so that
a run whose file has changed counts as a different run. A spec that names files runs them: treat it like a program.
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
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from pydantic_core import core_schema

from perfeds2.errors import InputError, did_you_mean, with_article

Value = Any  # what a user gives for a setting: text, a number, a list or an object
Values = dict[str, Value]  # by name; the values of a spec are nested, by section and key
GIVEN = "python:"  # prefix in a spec for an object that is defined in no file
MODES = ("SYN", "S2", "ASY")  # synchronous, semi-synchronous and asynchronous rounds


def algorithm_name(method: str, mode: str) -> str:
    """Return the name of a method in a mode, as in the paper: PerFedS2, PerFed-SYN, PerFed-ASY."""
    return f"{method}S2" if mode == "S2" else f"{method}-{mode}"


def method_name(algorithm: str) -> str:
    """Return the method of an algorithm: PerFed for PerFedS2, and Ditto for Ditto."""
    return algorithm.removesuffix("S2").removesuffix("-SYN").removesuffix("-ASY")


@dataclass(frozen=True)
class Named:
    """A name and the object it stands for."""

    text: str  # as a spec writes it
    value: Value = field(compare=False, repr=False)
    source: str = ""  # the file or module of a user's own object
    digest: str = ""  # the sha256 of that file
    identity: int = 0  # the id of an object that is defined in no file; no other process can find it

    def __str__(self) -> str:
        return self.text

    @property
    def label(self) -> str:
        """Return a short name for readers and folders: an object's without its file, or a data file's."""
        if self.source and self.source == self.text:
            return Path(self.text).resolve().stem
        return self.text.rpartition(":")[2] if self.source else self.text


@dataclass(frozen=True)
class Kind:
    """A kind of object that can be named, such as tasks or bandwidth policies."""

    what: str  # such as "bandwidth policy"
    place: str = ""  # its table as MODULE:NAME; empty if there are only the user's own
    is_called: bool = True  # False: an object may be given itself, such as a Task or Cell
    file: str = ""  # the class that opens a path, as MODULE:NAME
    is_path: Callable[[str], bool] | None = None  # whether a text is a path that ``file`` opens
    files: str = ""  # which files those are, in words
    page: str = ""  # which page says how to make one's own
    has_settings: bool = False  # functions may be given settings: ``transformer:layers=4,width=64``

    def table(self) -> Mapping[str, Value]:
        """Return the built-in objects by name. Some tables import JAX."""
        return imported(self.place) if self.place else {}

    def __get_pydantic_core_schema__(self, *_: object) -> core_schema.CoreSchema:
        """Make ``Annotated[Named, TASK]`` validate a task from its name and serialise it as text."""
        text = core_schema.plain_serializer_function_ser_schema(str, return_schema=core_schema.str_schema())
        return core_schema.no_info_plain_validator_function(self.find, serialization=text)

    def find(self, given: Value) -> Named:
        """Return the object for a text, or wrap an object given from Python.

        Raises:
            ValueError: If there is none; the message continues a sentence that begins with what was given.
        """
        if isinstance(given, Named):
            return given
        given, table = str(given) if isinstance(given, Path) else given, self.table()
        if not isinstance(given, str):
            ours = next((name for name, value in table.items() if value is given and value is not None), None)
            return self._checked(_reference_to(given) if ours is None else Named(ours, given))
        if (family := self._family(given)) is not None:
            return Named(given, _of_family(table[family], given))
        if given in table:
            return Named(given, table[given])
        if self._has_settings(given):
            return Named(given, _with_settings(table[given.partition(":")[0]], given))
        if self.is_path is not None and self.is_path(given):
            file = imported(self.file).open(given)
            return Named(given, file, given, file.digest)
        if ":" in given:
            return self._checked(_referred(given))
        files = f"{self.files} or " if self.files else ""
        page = f" ({self.page})" if self.page else ""
        raise ValueError(
            f"is not known; {did_you_mean(given, table).rstrip('.')} or your own as {files}FILE.py:NAME{page}"
        )

    def named(self, flag: str, given: Value) -> Named:
        """Return the object as ``find`` does; an error is a whole sentence that names the flag."""
        try:
            return self.find(given)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"{flag} {given!r} {error}.") from None

    def is_reference(self, text: str) -> bool:
        """Return whether a text refers to a user's file or module, rather than a built-in name."""
        known = text in self.table() or self._has_settings(text) or self._family(text) is not None
        return ":" in text and not known

    def _has_settings(self, text: str) -> bool:
        """Return whether a text is a built-in name with settings."""
        return self.has_settings and ":" in text and text.partition(":")[0] in self.table()

    def _family(self, text: str) -> str | None:
        """Return the parametrised name for a text: ``between:THETA`` for ``between:0.5``."""
        families = {name.partition(":")[0]: name for name in self.table() if name.partition(":")[2].isupper()}
        return families.get(text.partition(":")[0])

    def _checked(self, own: Named) -> Named:
        if callable(own.value) or not (self.is_called or type(own.value).__module__ == "builtins"):
            return own
        raise ValueError(
            f"is not {with_article(self.what)}; expected a name such as {next(iter(self.table()), 'FILE.py:NAME')}"
        )


def imported(place: str) -> Value:
    """Return what MODULE:NAME refers to."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _of_family(make: Callable[[float], object], text: str) -> object:
    family, _, number = text.partition(":")
    try:
        return make(float(number))
    except ValueError as error:
        why = f" ({error})" if "convert" not in str(error) else ""
        raise ValueError(f"needs a number as in {family}:0.5{why.replace('.)', ')')}") from None


def _with_settings(make: Value, text: str) -> Callable[..., Value]:
    """Return a built-in function with the settings of ``NAME:KEY=NUMBER,…``: parameters that have a number as default."""
    name, _, words = text.partition(":")
    parameters = inspect.signature(make).parameters.values() if inspect.isroutine(make) else ()
    usual = {each.name: each.default for each in parameters if type(each.default) in (int, float)}
    settings: Values = {}
    for word in words.split(","):
        key, _, number = word.partition("=")
        if key not in usual:
            known = f"its settings are {', '.join(usual)}" if usual else "it has none"
            raise ValueError(f"has no setting {key!r}; {known}")
        try:
            settings[key] = type(usual[key])(number)
        except ValueError:
            raise ValueError(f"needs a number as in {name}:{key}={usual[key]}") from None
    return partial(make, **settings)


def _referred(reference: str) -> Named:
    """Return what ``FILE.py:NAME`` or ``package.module:NAME`` refers to."""
    source, _, name = reference.rpartition(":")
    if reference.startswith(GIVEN):
        raise ValueError("was defined interactively and cannot be saved; run it again from Python")
    if not source or not name.isidentifier():
        raise ValueError("is neither a known name nor a reference such as FILE.py:NAME or package.module:NAME")
    module, digest = load_source(source)
    if not hasattr(module, name):
        own = [known for known, value in vars(module).items() if not known.startswith("_") and callable(value)]
        hint = did_you_mean(name, own or ["a name it defines"]).rstrip(".")
        raise ValueError(f"was not found: {source} has no {name}; {hint}")
    return Named(reference, getattr(module, name), source, digest)


_loaded: dict[tuple[str, str], ModuleType] = {}  # by path and sha256: an unchanged file is the same module


class _Uncached(SourceFileLoader):
    """Load a file without cached bytecode, which is matched by modification time in seconds and may be outdated."""

    def path_stats(self, path: str) -> NoReturn:
        raise OSError(path)


_loading: list[str] = []  # files that are being loaded
_refusing = ContextVar("refusing", default=False)


def refuse_while_loading(what: str) -> None:
    """Refuse to start work from a file that is being loaded for one of its names."""
    if _loading:
        raise InputError(f"runs {what} when it is loaded; put that behind if __name__ == '__main__'")


@contextmanager
def refusing_code() -> Iterator[None]:
    """Refuse to load users' files: a folder that is only read may come from anyone."""
    mark = _refusing.set(True)
    try:
        yield
    finally:
        _refusing.reset(mark)


def load_source(source: str) -> tuple[ModuleType, str]:
    """Return a user's module, by file or dotted name, and the sha256 of its file."""
    if _refusing.get():
        raise ValueError(
            f"is code of {source}, which is not executed to draw a report; resume the folder's command instead"
        )
    is_file, name = source.endswith(".py"), source
    if is_file and not Path(source).is_file():
        raise ValueError(f"was not found: there is no {source} in {Path.cwd()}")
    try:
        if not is_file:
            module = importlib.import_module(source)
            return module, _digest(Path(str(module.__file__)))
        path = Path(source).resolve()
        digest = _digest(path)
        if (str(path), digest) not in _loaded:
            name = f"perfeds2_own_{path.stem}_{digest[:8]}"
            loader = _Uncached(name, str(path))
            found = importlib.util.spec_from_file_location(name, path, loader=loader)
            assert found is not None
            module = importlib.util.module_from_spec(found)
            sys.modules[name] = module  # needed by dataclasses
            if str(path.parent) not in sys.path:
                sys.path.append(str(path.parent))  # makes files beside it importable; last, so that it shadows nothing
            _loading.append(source)
            try:
                loader.exec_module(module)
            finally:
                _loading.pop()
            _loaded[str(path), digest] = module
        return _loaded[str(path), digest], digest
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise ValueError("needs PyTorch, which is not installed: python -m pip install 'perfeds2[torch]'") from None
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(f"cannot be loaded: {told}{_place(error, {name})}") from None


def _place(error: BaseException, modules: set[str]) -> str:
    """Return where in those modules an error was raised, as `` (mine.py, line 3)``; empty if elsewhere."""
    places = [
        f" ({Path(frame.f_code.co_filename).name}, line {line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__") in modules
    ]
    return places[-1] if places else ""


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _reference_to(value: object) -> Named:
    """Return the reference of an object that a file defines; otherwise its own name."""
    name = getattr(value, "__qualname__", type(value).__name__)
    for module in (sys.modules.get(str(getattr(value, "__module__", ""))), sys.modules.get("__main__")):
        found = next((known for known, other in vars(module).items() if other is value), None) if module else None
        file = getattr(module, "__file__", None)
        if module is None or found is None or file is None or not _defines(Path(file), found):
            continue
        if module.__name__ != "__main__" or _is_guarded(Path(file)):  # otherwise loading it would run the script again
            source = module.__name__ if "." in module.__name__ else _short(Path(file))
            return Named(f"{source}:{found}", value, source, _digest(Path(file)))
    return Named(f"{GIVEN}{name}", value, f"{GIVEN}{name}", "defined interactively, cannot be saved", id(value))


def _defines(path: Path, name: str) -> bool:
    """Return whether a file binds a name exactly once, at module level, so that every import finds the same object."""
    if not path.is_file() or path.suffix != ".py":
        return False
    bound = Counter[str]()
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound[node.name] += 1
            continue
        times = (
            1 if isinstance(node, ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom) else 2
        )  # such as in a loop or if: bound several times, or never
        for each in ast.walk(node):
            stored = each.id if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) else ""
            bound[getattr(each, "asname", None) or getattr(each, "name", None) or stored] += times
    return bound[name] == 1


def _is_guarded(path: Path) -> bool:
    """Return whether a script does its work behind ``if __name__ == "__main__":``."""
    tests = [ast.dump(node.test) for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.If)]
    return any("__name__" in test for test in tests)


def _short(path: Path) -> str:
    """Return a path relative to the working directory if it is below it."""
    path, here = path.resolve(), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def call(function: Callable[..., Value], what: str, known: Mapping[str, object]) -> Value:
    """Call a user's function with those of the known values that its parameters name.

    Args:
        function: The function to call.
        what: Its flag and name, for error messages.
        known: Values by parameter name.

    Raises:
        InputError: If it asks for an unknown parameter, or raises an error itself.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # functions written in C have no signature
        raise InputError(
            f"{what} cannot be called with {', '.join(known)}, because its parameters are unknown."
        ) from None
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    given = {name: value for name, value in known.items() if takes_all or name in parameters}
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, each in parameters.items():
        if name not in known and each.default is each.empty and each.kind not in optional:
            raise InputError(f"{what} has an unknown parameter {name}; available are {', '.join(known)}.")
    with user_errors(what, function):
        return function(**given)


@contextmanager
def user_errors(what: str, *parts: object) -> Iterator[None]:
    """Turn errors raised in the user's own parts into an InputError that names them; other errors propagate.

    A ValueError or TypeError raised elsewhere also counts as the user's if any part is, since it is about what that
    part returned.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        modules = {str(getattr(getattr(part, "func", part), "__module__", "")) for part in parts if part is not None}
        theirs = {module for module in modules if not module.startswith("perfeds2.")}
        place, is_value = _place(error, theirs), isinstance(error, ValueError | TypeError)
        if not (place or (theirs and is_value)):  # such an error is about what the user's part returned
            raise
        told = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        told += " ".join(str(error).split()).removesuffix(".")
        raise InputError(f"{what}: {told}{place}.") from error


def expect(made: Value, kind: type, flag: str, named: Named | None) -> Value:
    """Return what a user's function made, or raise InputError if it is not of the expected type."""
    if not isinstance(made, kind):
        raise InputError(
            f"{flag} {named} gave {with_article(type(made).__name__)}; expected {with_article(kind.__name__)}."
        )
    return made
