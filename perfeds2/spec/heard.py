"""Does everything that was said reach somebody? What nobody in the run listens to is a slip, and is said to be one."""

from collections.abc import Iterable, Mapping
from typing import Any

from perfeds2.errors import InputError
from perfeds2.spec.methods import ALGORITHMS
from perfeds2.spec.names import Named
from perfeds2.spec.resolve import by_algorithm, place_of


def refuse_unheard(flags: Mapping[str, Any], algorithms: Iterable[Named], where: str = "--algorithms") -> None:
    """Refuse settings of an algorithm that does not take part, and tiers where nobody has any.

    Only what was said in this very command: a file (a tuned.toml) may have more than one run needs.
    """
    from perfeds2.spec.build import combination_of

    found = [combination_of(named) for named in algorithms]
    names = [one[0] for one in found if one is not None]
    for flag, value in flags.items():
        if place_of(flag)[0] != "learning":
            continue
        for name, own in by_algorithm(flag, value):
            if name in ALGORITHMS and name not in names:
                raise InputError(
                    f"--{flag.replace('_', '-')} {name}={own} is for {name}, which does not take part; leave it out, or add "
                    f"{name} to {where}."
                )
    tiers = flags.get("tiers")
    if tiers is not None and not any(one is None or "tier" in (one[1].rounds or "") for one in found):
        raise InputError(
            f"--tiers {tiers} is for methods that have tiers (TiFL, FedAT), and none takes part; leave it out, or add one to "
            f"{where}."
        )
