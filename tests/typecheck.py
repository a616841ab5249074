"""Array shapes and types of the package are checked in every test file (jaxtyping, by beartype), but not in every call.

A check takes longer than most of what it checks: a clock's inner functions, called a thousand times, would be eight times as
slow, and a function within a function would have its check made anew each time. So only functions that take or return
arrays with a shape are checked (pyright checks the rest), in their first calls in a test file; the check is made when it is
first needed.
"""

import dataclasses
import functools
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

MOST_CALLS = 8  # of a function, in a test file
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # a whole number is welcome where a float is asked for
calls: Counter[int] = Counter()  # in this test file, by the identity of a function's code
collecting = True  # no test runs yet; what imports call is not checked
_jaxtyped: Any = jaxtyping.jaxtyped


def check_first_calls() -> None:
    """From now on the import hook's decorator is ours."""
    jaxtyping.jaxtyped = jaxtyped  # type: ignore[assignment]  # it is looked up there


def jaxtyped(made: Any = None, *, typechecker: Any) -> Any:
    """jaxtyping's own decorator, for the first calls."""
    if made is None:
        return functools.partial(jaxtyped, typechecker=typechecker)
    if inspect.isfunction(made):
        return _in_first_calls(made, typechecker)
    if inspect.isclass(made):
        if dataclasses.is_dataclass(made) and inspect.isfunction(made.__dict__.get("__init__")):
            made.__init__ = _in_first_calls(made.__init__, typechecker)  # type: ignore[method-assign]
        return made
    return _jaxtyped(made, typechecker=typechecker)


def _in_first_calls(function: Any, typechecker: Any) -> Callable[..., Any]:
    code, careful = id(function.__code__), list[Any]()  # to hash the code itself takes longer than many a call
    if calls[code] >= MOST_CALLS or "jaxtyping." not in str(function.__annotations__):
        return function  # the first is of a function within a function that was made often

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if collecting or calls[code] >= MOST_CALLS:
            return function(*args, **kwargs)
        calls[code] += 1
        if not careful:
            careful.append(_jaxtyped(function, typechecker=typechecker))
        return careful[0](*args, **kwargs)

    return called
