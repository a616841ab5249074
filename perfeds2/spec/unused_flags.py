"""Refuse settings that nothing in the run uses."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfeds2.errors import InputError
from perfeds2.spec.methods import makers, method_of
from perfeds2.spec.names import Named
from perfeds2.spec.resolve import EACH, by_algorithm, place_of


def refuse_unused(
    flags: Mapping[str, Any],
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
    given = [(name, f"--{flag.replace('_', '-')} {name}={value}") for flag, name, value in _by_method(flags)]
    for assignment in assignments:
        section, key = place_of(assignment.partition("=")[0].strip())
        given += [(key.rpartition(".")[0], f"--set {assignment}")] if section == EACH else []
    known = makers((), ())
    for name, text in given:
        if name in known and name not in names:
            raise InputError(f"{text} is for {name}, which does not take part; leave it out, or add {name} to {where}.")
    tiers = flags.get("tiers")
    if tiers is not None and not any(one is None or "tier" in (one[1].rounds or "") for one in found):
        raise InputError(
            f"--tiers {tiers} is for methods that have tiers (TiFL, FedAT), and none takes part; leave it out, or add one to "
            f"{where}."
        )


def _by_method(flags: Mapping[str, Any]) -> Iterable[tuple[str, str, Any]]:
    for flag, value in flags.items():
        if place_of(flag)[0] == "learning":
            yield from ((flag, name, own) for name, own in by_algorithm(flag, value) if name)
