"""Define a training: a spec with one algorithm and one seed, identified by a hash of what determines its result."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from perfeds2.spec.build import Algorithm, Stage
from perfeds2.spec.fields import Spec
from perfeds2.spec.hashes import hashed
from perfeds2.spec.methods import method_of, name_in_tables, settings_name
from perfeds2.spec.names import Named

GROUP_SIZE = 64  # trainings per group; larger groups would leave other workers idle
NAMES_OR_SUMMARISES = {"task": ("data_dir",), "run": ("target_accuracy", "stop_when_diverged")}


@dataclass(frozen=True)
class Training:
    """A spec with one algorithm and one seed."""

    spec: Spec
    label: str = ""  # distinguishes it for readers, such as "quorum=5"; not part of the key
    stage: Stage | None = field(default=None, compare=False)  # made before; None: made when it is prepared
    made: Algorithm | None = field(default=None, compare=False)  # likewise; never one that an estimate has played

    def __post_init__(self) -> None:
        if len(self.spec.algorithms) != 1 or len(self.spec.run.seeds) != 1:
            raise ValueError("a training has one algorithm and one seed; see trainings_of().")

    @property
    def named(self) -> Named:
        return self.spec.algorithms[0]

    @property
    def algorithm(self) -> str:
        """Return its name in tables."""
        return name_in_tables(self.named)

    @property
    def seed(self) -> int:
        return self.spec.run.seeds[0]

    @property
    def title(self) -> str:
        """Return a name for readers, such as ``quorum=5, PerFedS2 seed 0``."""
        name = f"{self.algorithm} seed {self.seed}"
        return f"{self.label}, {name}" if self.label else name

    @cached_property
    def key(self) -> str:
        """Return a hash of what determines the result: the spec without what only names or summarises it.

        The spec contains hashes of the user's own files. An object that is defined in no file is identified by
        itself.
        """
        spec = self.spec
        values = hashed(spec.values() | {"learning": spec.learning_of(self.algorithm).model_dump(mode="json")})
        for section, keys in NAMES_OR_SUMMARISES.items():
            values[section] = {name: value for name, value in values[section].items() if name not in keys}
        merge = spec.learning_of(self.algorithm).merge
        named = (self.algorithm, *([] if merge is None else [merge.label]))
        values["methods"] = [spec.method_settings(name) for name in named]
        decides = [values, bool(spec.run.stop_when_diverged), [one.identity for one in spec.given]]
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:24]

    @property
    def program(self) -> str:
        """Return roughly what is compiled for it; workers prefer jobs whose program they have compiled."""
        spec, found = self.spec, method_of(self.named)
        made = self.named.text if found is None else (found[1].make, spec.learning_of(self.algorithm).merge)
        learning = spec.learning_of(self.algorithm)
        return repr((spec.task.name, spec.task.model, spec.cell.ues, made, learning.batch, learning.local_steps))


def trainings_of(spec: Spec, label: str = "") -> list[Training]:
    """Return a training for every seed and algorithm of a spec, seed by seed."""
    made: list[Training] = []
    for seed in spec.run.seeds:
        for named in spec.algorithms:
            name = settings_name(named)
            methods = {} if name is None else spec.methods_of(name)
            alone = spec.with_(run=spec.run.with_(algorithms=(named,), seeds=(seed,)), methods=methods)
            own = {one.source: one.digest for one in alone.given}
            made.append(Training(alone.with_(own=own), label))
    return made


def groups_of(trainings: Sequence[Training]) -> list[list[Training]]:
    """Return groups of trainings that a GPU trains in one batch: same algorithm, task, number of UEs and quorum.

    Groups are formed from all requested trainings, not only the missing ones, because grouping changes the last
    digits.
    """
    alike: dict[object, list[Training]] = {}
    for one in trainings:
        spec = one.spec
        shape = (spec.task.name, spec.task.model, spec.cell.ues, one.named, spec.protocol.quorum)
        alike.setdefault((*shape, bool(spec.run.stop_when_diverged)), []).append(one)
    return [own[first : first + GROUP_SIZE] for own in alike.values() for first in range(0, len(own), GROUP_SIZE)]


def group_key(group: Sequence[Training]) -> str:
    """Return the hash of a group."""
    return hashlib.sha256(" ".join(one.key for one in group).encode()).hexdigest()[:12]
