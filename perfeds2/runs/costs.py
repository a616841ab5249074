"""List what reaching the target costs: its name, unit and column, for every table and chart.

The cost of the target is the value of the column at the first evaluation from which the target is met
(``statistics.time_to_target``). This module imports nothing, so that command lines can list the names.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """A quantity that grows while a run learns: curves are drawn over it, and reaching the target costs some of it."""

    column: str  # in metrics.csv
    to_target: str  # name of the target's cost in summaries
    label: str  # axis label
    words: str
    unit: str
    head: str  # of a table
    form: str = ",.0f"

    @property
    def median(self) -> str:
        """Return the column of a sweep's summary with the median over seeds."""
        return f"{self.to_target}_median"


COSTS = {
    "seconds": Cost("time_s", "time_to_target_s", "Simulated time (s)", "simulated time", "s", "Seconds", ",.1f"),
    "rounds": Cost("round", "rounds_to_target", "Rounds", "rounds", "rounds", "Rounds"),
    "joules": Cost("joules", "joules_to_target", "Energy of all UEs (J)", "energy", "J", "Joules", ",.3g"),
    "bits": Cost("merged_bits", "bits_to_target", "Merged uploads (bit)", "uploaded bits", "bit", "Uploaded bits"),
    "epsilon": Cost("epsilon", "epsilon_to_target", "Privacy loss ε of the worst UE", "privacy loss", "ε", "ε", ".3g"),
}
SECONDS = COSTS["seconds"]
EPSILON = COSTS["epsilon"]  # only with noise
TIME = SECONDS.to_target
SPENT = (COSTS["joules"].column, COSTS["bits"].column)  # columns of tables beside round and time
IN_ARENA = {  # columns of arena.csv and names in arena.json, in their order
    "seconds_to_target": SECONDS,
    **{COSTS[name].to_target: COSTS[name] for name in ("rounds", "bits", "joules")},
}
