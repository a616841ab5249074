"""Find the device that spoils the sums of secure aggregation, although its update cannot be seen.

A sum that is longer than clipped updates can be has one member that sent something else. It is among the members of
every spoilt sum. After such a sum, half of the suspects are left out of each round; a spoilt round clears those that
it left out. Rounds that succeed meanwhile count. A round cannot leave out more members than may die in it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field


@dataclass
class Suspects:
    """The UEs that were members of every spoilt sum since the last one was found."""

    ues: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)  # in a sum that was not spoilt, since

    def left_out(self, members: Sequence[int], most: int) -> frozenset[int]:
        """Return up to ``most`` UEs that a round should leave out. Those that were in a good sum come first."""
        among = sorted(self.ues.intersection(members), key=lambda ue: (ue not in self.seen, ue))
        return frozenset(among[: min(len(among) // 2, most)])

    def good(self, uploaded: Collection[int]) -> None:
        """Count a sum that is as it should be. Suspects that were all in one are suspects no more."""
        self.seen |= self.ues.intersection(uploaded)
        if self.seen == self.ues:
            self.ues, self.seen = set(), set()

    def spoilt(self, uploaded: Collection[int]) -> int | None:
        """Count a spoilt sum, and return the UE that spoilt it, if it is certain now."""
        self.ues, self.seen = self.ues.intersection(uploaded) or set(uploaded), set()
        if len(self.ues) > 1:
            return None
        [found], self.ues = self.ues, set()
        return found
