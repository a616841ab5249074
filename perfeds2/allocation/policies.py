"""List the bandwidth policies by name."""

from collections.abc import Callable

from perfeds2.allocation.bandwidth import (
    Policy,
    between,
    equal_finish,
    equal_share,
    max_throughput,
    planned_share,
    proportional_fair,
    weighted_rate,
)
from perfeds2.allocation.joint import LeastEnergy, TimeAndEnergy

POLICIES: dict[str, Policy | Callable[[float], Policy]] = {
    "equal_share": equal_share,
    "planned_share": planned_share,
    "equal_finish": equal_finish,
    "weighted_rate": weighted_rate,
    "max_throughput": max_throughput,
    "proportional_fair": proportional_fair,
    # The number after the colon is θ, the deadline in seconds, or the joules that are worth a second.
    "between:THETA": between,
    "least_energy:DEADLINE": LeastEnergy,
    "time_and_energy:LAMBDA": TimeAndEnergy,
}
