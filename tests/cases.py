"""Many random settings in one test. As cases of pytest's own, each would check the types of all calls anew, which takes longer."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def each(name: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call the test with each value of an argument in turn; an error tells which one failed."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**others: Any) -> None:
            for value in values:
                try:
                    test(**others, **{name: value})
                except BaseException as error:
                    error.add_note(f"with {name} = {value!r}")
                    raise

        signature = inspect.signature(test)
        rest = [own for own in signature.parameters.values() if own.name != name]
        run.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]  # pytest asks for these
        return run

    return decorate
