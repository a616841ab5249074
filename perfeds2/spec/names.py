"""What does a name stand for? Something of ours, or anybody's own: ``FILE.py:NAME`` or ``package.module:NAME``.

A name is listed once, in a table beside the object it names. Wherever a name is accepted, a reference to one's own
object is too, and from Python the object itself. A spec writes down the reference and the sha256 of its file, so that a
run whose file has changed is not taken for the same run. A spec that names files runs them: treat it like a program.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from perfeds2.errors import InputError, did_you_mean

GIVEN = "python:"  # how a spec names an object that has no place in a file


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
        """For people and folders: without the file it is in."""
        return self.text.rpartition(":")[2] if self.source else self.text

    @property
    def is_written(self) -> bool:
        """Whether another process can find it by its text."""
        return not self.identity


@dataclass(frozen=True)
class Kind:
    """All that one kind of name may stand for."""

    what: str  # "bandwidth policy"
    table: Callable[[], Mapping[str, Any]]  # asked when needed: some of them load JAX

    def find(self, given: Any) -> Named:
        """What a text, or an object given from Python, stands for. Raises ValueError that goes behind what was given."""
        if isinstance(given, Named):
            return given
        table = self.table()
        if isinstance(given, int | float | list | tuple | dict | None):
            raise ValueError(f"is no {self.what}; expected a name such as {next(iter(table))}")
        if not isinstance(given, str):
            ours = next((name for name, value in table.items() if value is given), None)
            return _written_down(given) if ours is None else Named(ours, given)
        if given in table:
            return Named(given, table[given])
        head, colon, tail = given.partition(":")
        family = next((name for name in table if name.startswith(f"{head}:")), None)
        if family is not None:
            return Named(given, _of_family(table[family], family, tail))
        if colon:
            return _referred(given)
        raise ValueError(f"is not known; {did_you_mean(given, table)} or your own as FILE.py:NAME")


def _of_family(make: Callable[[float], Any], family: str, number: str) -> Any:
    """``between:0.5`` of ``between:THETA``."""
    try:
        return make(float(number))
    except ValueError as error:
        why = f" ({error})" if "convert" not in str(error) else ""
        raise ValueError(f"needs a number as in {family.partition(':')[0]}:0.5{why.replace('.)', ')')}") from None


def _referred(reference: str) -> Named:
    """What ``FILE.py:NAME`` or ``package.module:NAME`` refers to."""
    source, _, name = reference.rpartition(":")
    if reference.startswith(GIVEN):
        raise ValueError("was given from Python and is written down nowhere; run it from Python again")
    if not source or not name.isidentifier():
        raise ValueError("is neither a known name nor a reference such as FILE.py:NAME or package.module:NAME")
    module, digest = _load(source)
    if name not in vars(module):
        own = [known for known, value in vars(module).items() if not known.startswith("_") and callable(value)]
        raise ValueError(
            f"refers to nothing: {source} has no {name}; {did_you_mean(name, own or ['a name it defines'])}"
        )
    return Named(reference, vars(module)[name], source, digest)


_loaded: dict[tuple[str, str], ModuleType] = {}  # by path and digest: the same file is the same module


def _load(source: str) -> tuple[ModuleType, str]:
    """A user's module by its file or its dotted name, and the sha256 of what was run."""
    is_file = source.endswith(".py")
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
            found = importlib.util.spec_from_file_location(name, path)
            assert found is not None
            assert found.loader is not None
            module = importlib.util.module_from_spec(found)
            sys.modules[name] = module  # dataclasses look there
            if str(path.parent) not in sys.path:
                sys.path.append(str(path.parent))  # what lies beside it can be imported, and hides nothing
            found.loader.exec_module(module)
            _loaded[str(path), digest] = module
        return _loaded[str(path), digest], digest
    except InputError:
        raise
    except Exception as error:  # whatever somebody's file does when it is run
        trace = error.__traceback__
        line = f", line {_last_line(trace, source)}" if is_file else ""
        told = " ".join(str(error).split())
        raise ValueError(f"cannot be loaded: {type(error).__name__}: {told} ({source}{line})") from None


def _last_line(trace: Any, source: str) -> int:
    line = 0
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).name == Path(source).name:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _written_down(value: Any) -> Named:
    """An object as a reference, where it has a name in a file; else as what it is called."""
    name = getattr(value, "__qualname__", type(value).__name__)
    for module in (sys.modules.get(str(getattr(value, "__module__", ""))), sys.modules.get("__main__")):
        found = next((known for known, other in vars(module).items() if other is value), None) if module else None
        file = getattr(module, "__file__", None)
        if module is not None and found is not None and file is not None and Path(file).is_file():
            source = module.__name__ if "." in module.__name__ else _short(Path(file))
            return Named(f"{source}:{found}", value, source, _digest(Path(file)))
    return Named(f"{GIVEN}{name}", value, f"{GIVEN}{name}", "written down nowhere", id(value))


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
        return function(**known)
    wanted = {p.name: p for p in parameters if p.kind is not p.VAR_POSITIONAL}
    missing = [name for name, p in wanted.items() if name not in known and p.default is p.empty]
    if missing:
        raise InputError(f"{what} asks for {missing[0]}; it may ask for any of {', '.join(known)}.")
    given = {name: known[name] for name in wanted if name in known}
    first = [given.pop(name) for name, p in wanted.items() if p.kind is p.POSITIONAL_ONLY and name in given]
    return function(*first, **given)
