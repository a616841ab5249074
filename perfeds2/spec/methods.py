"""Name the algorithms and find the settings of their methods.

An algorithm is a method in a mode of rounds. Settings that all methods have (batch, β, local steps, quorum) belong to
the comparison, so that all run on equal terms; settings of one method are fields of its dataclass.
docs/explanation/methods.md describes each method.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from perfeds2.errors import InputError, did_you_mean
from perfeds2.learning.method import Method
from perfeds2.learning.methods import LISTED, MERGES
from perfeds2.learning.objectives import OBJECTIVES
from perfeds2.spec.names import MODES, Named, Value, algorithm_name, method_name


@dataclass(frozen=True)
class ListedMethod:
    """A method by its name, and the mode of its rounds."""

    name: str  # without the mode: [methods.PerFed] applies to PerFed in all modes
    make: Callable[..., Value]  # a dataclass whose fields are the settings, or a function of them
    mode: str = "S2"
    has_own_rounds: bool = False
    has_tiers: bool = False

    @property
    def rounds(self) -> str:
        """Return the rounds as they are shown."""
        return "its own" if self.has_own_rounds else self.mode

    @classmethod
    def of(cls, name: str, kind: type[Method], make: Callable[..., Value] | None = None) -> "ListedMethod":
        """Return a method with the mode and rounds of its class."""
        return cls(name, make or kind, kind.mode, kind.has_own_rounds, kind.has_tiers)


ALGORITHMS = {
    algorithm_name(name, mode): ListedMethod(name, make, mode) for mode in MODES for name, make in OBJECTIVES.items()
} | {name: ListedMethod.of(name, make) for name, make in LISTED.items()}


def listed_methods() -> list[ListedMethod]:
    """Return the built-in methods; those that exist in all three modes are listed once."""
    everywhere = [ListedMethod(name, make, ", ".join(MODES)) for name, make in OBJECTIVES.items()]
    return everywhere + [ALGORITHMS[name] for name in LISTED]


def find_method(name: str) -> ListedMethod:
    """Return a method by its name, or by the name of one of its algorithms.

    Raises:
        InputError: If there is no such method.
    """
    known = {method.name: method for method in listed_methods()}
    found = known.get(name) or known.get(method_name(name))
    if found is None:
        raise InputError(f"{name!r} is not a method; {did_you_mean(name, known)}")
    return found


def method_of(named: Named) -> tuple[str, ListedMethod] | None:
    """Return the name and the method of an algorithm; None if it is an ``Algorithm`` or a function that makes one.

    A user's own objective runs in S2 rounds and is merged by the mean; with a user's own merge, UEs compute what
    FedAvg does.
    """
    own: Value = named.value
    if isinstance(own, ListedMethod):
        return named.label, own
    kind = own if inspect.isclass(own) else type(own)
    if not issubclass(kind, Method):
        return None
    method = ListedMethod.of(kind.__name__, kind, None if own is kind else lambda: own)
    return algorithm_name(method.name, method.mode), method


def settings_name(named: Named) -> str | None:
    """Return an algorithm's name in settings, as ``MineS2`` in ``MineS2.beta``; None if it takes none."""
    found = method_of(named)
    return None if found is None else found[0]


def name_in_tables(named: Named) -> str:
    """Return an algorithm's name in tables: its name in settings, or else its own."""
    return settings_name(named) or getattr(named.value, "name", named.label)


def makers(algorithms: Iterable[Named], merges: Iterable[Named]) -> dict[str, Callable[..., Value]]:
    """Return every method and merge that has settings, by name, including the user's own."""
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
    """Refuse settings of methods that do not take part, and tiers if no method has any.

    Only the settings of this command are checked: a file such as tuned.toml may have more than one run needs.
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
    if tiers is not None and not any(one is None or one[1].has_tiers for one in found):
        raise InputError(
            f"--tiers {tiers} is for methods that have tiers (TiFL, FedAT), and none takes part; leave it out, or add one to "
            f"{where}."
        )
