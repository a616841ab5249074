"""Import the public names of a package when they are first used, so that importing the package costs nothing."""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


def lazy_names(file: str) -> tuple[dict[str, str], Callable[[str], Any]]:
    """Return the names that a package's stub imports, with their modules, and a ``__getattr__`` that imports them.

    Args:
        file: The package's ``__init__.py``; its stub is the ``.pyi`` file beside it.
    """
    nodes = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and str(node.module).startswith("perfeds2")]
    names = {name.name: str(node.module) for node in imports for name in node.names}

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {Path(file).parent.name!r} has no attribute {name!r}")
        home: ModuleType = import_module(names[name])
        return getattr(home, name) if hasattr(home, name) else import_module(f"{home.__name__}.{name}")

    return names, load
