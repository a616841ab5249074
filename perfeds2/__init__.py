"""Time-aware federated learning for mobile edge networks. The public names are in ``__init__.pyi``."""

from perfeds2.public import lazy_names

__version__ = "0.1.0"
_NAMES, __getattr__ = lazy_names(__file__)
__all__ = list(_NAMES)  # type: ignore[reportUnsupportedDunderAll]  # read from the stub


def __dir__() -> list[str]:
    return [*_NAMES, "__version__"]
