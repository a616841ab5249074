"""Time-aware federated learning for mobile edge networks.

The names in ``__init__.pyi`` are imported when they are first used, so that ``import perfeds2`` costs nothing.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_NAMES = {
    name.name: str(node.module)
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom) and node.module != "typing"
    for name in node.names
}
__all__ = list(_NAMES)  # type: ignore[reportUnsupportedDunderAll]  # read from the stub


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'perfeds2' has no attribute {name!r}")
    return getattr(import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return [*_NAMES, "__version__"]
