"""Which algorithms have a name, and which settings does a method have?

An algorithm is a method in its rounds. What all methods have (batch, β, local steps, quorum) belongs to the comparison, so that all
run on equal terms; what only one method has is a field of its dataclass. docs/explanation/methods.md says what each is.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from perfeds2.errors import InputError, did_you_mean
from perfeds2.learning.methods import MERGES, METHODS
from perfeds2.learning.objectives import OBJECTIVES
from perfeds2.spec.names import MODES, Named, algorithm_name, method_name


@dataclass(frozen=True)
class Method:
    """A method in its rounds."""

    name: str  # without its rounds: settings of [methods.PerFed] are for PerFed in all modes
    make: Callable[..., Any]  # a dataclass whose fields are its settings, or a function of them
    mode: str = "S2"
    rounds: Literal["one tier", "all tiers", "draft"] | None = None  # rounds of its own; None: those of the mode

    @classmethod
    def of(cls, name: str, make: Any) -> "Method":
        """Return a method in the rounds it asks for."""
        return cls(name, make, getattr(make, "mode", "S2"), getattr(make, "rounds", None))


ALGORITHMS = {
    algorithm_name(name, mode): Method(name, make, mode) for mode in MODES for name, make in OBJECTIVES.items()
} | {name: Method.of(name, make) for name, make in METHODS.items()}


def listed_methods() -> list[Method]:
    """Return our methods; those for all three modes are listed once."""
    everywhere = [Method(name, make, ", ".join(MODES)) for name, make in OBJECTIVES.items()]
    return everywhere + [ALGORITHMS[name] for name in METHODS]


def find_method(name: str) -> Method:
    """Return a method by its name, or by that of one of its algorithms."""
    known = {method.name: method for method in listed_methods()}
    found = known.get(name) or known.get(method_name(name))
    if found is None:
        raise InputError(f"{name!r} is not a method; {did_you_mean(name, known)}")
    return found


def method_of(named: Named) -> tuple[str, Method] | None:
    """Return the name and the method of an algorithm; None if it is an ``Algorithm``, or a function that makes one.

    An objective of one's own runs in S2 rounds and is merged by the mean; for a merge of one's own UEs compute what FedAvg does.
    """
    own: Any = named.value
    if isinstance(own, Method):
        return named.label, own
    parts = hasattr(own, "batches") or (hasattr(own, "init") and (hasattr(own, "step") or callable(own)))
    if hasattr(own, "learner") or not (parts or hasattr(own, "objective") or hasattr(own, "merge")):
        return None
    is_class = inspect.isclass(own)
    name = (own if is_class else type(own)).__name__
    method = Method.of(name, own)
    if not is_class:
        method = Method(name, lambda: own, method.mode, method.rounds)
    return algorithm_name(name, method.mode), method


def settings_name(named: Named) -> str | None:
    """Return the name an algorithm's settings go under, ``MineS2.beta``; None if it brings all with it."""
    found = method_of(named)
    return None if found is None else found[0]


def makers(algorithms: Iterable[Named], merges: Iterable[Named]) -> dict[str, Callable[..., Any]]:
    """Return what settings may be given to, by name: our methods and merges, and those of one's own that take part."""
    found = {method.name: method.make for method in ALGORITHMS.values()} | MERGES
    found |= {name: method.make for name, method in ALGORITHMS.items()}
    for named in algorithms:
        own = method_of(named)
        if own is not None:
            found |= {own[0]: own[1].make, own[1].name: own[1].make}
    return found | {named.label: named.value for named in merges}


def refuse_unused(
    tiers: str | None,
    assignments: Sequence[str],
    algorithms: Iterable[Named],
    merges: Iterable[Named] = (),
    where: str = "--algorithms",
) -> None:
    """Refuse settings of methods that do not take part, and tiers where no method has any.

    Only settings of this very command are checked: a file (a tuned.toml) may have more than one run needs.
    """
    found = [method_of(named) for named in algorithms]
    names = {name for one in found if one is not None for name in (one[0], one[1].name)}
    names |= {merge.label for merge in merges}
    unused = makers((), ()).keys() - names
    for assignment in assignments:
        name = assignment.partition("=")[0].strip().removeprefix("methods.").rpartition(".")[0]
        if name in unused:
            raise InputError(
                f"--set {assignment} is for {name}, which does not take part; leave it out, or add {name} to {where}."
            )
    if tiers is not None and not any(one is None or "tier" in (one[1].rounds or "") for one in found):
        raise InputError(
            f"--tiers {tiers} is for methods that have tiers (TiFL, FedAT), and none takes part; leave it out, or add one to "
            f"{where}."
        )
