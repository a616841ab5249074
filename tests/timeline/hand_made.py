"""Cells whose numbers can be checked by hand: every UE has 1 Hz of band and a whole number of bits per second."""

from dataclasses import dataclass, field

import numpy as np

from perfeds2.allocation.bandwidth import Uplink
from perfeds2.network.cell import Cell
from perfeds2.network.channel import Channel, Fading


@dataclass(frozen=True)
class HandMadeCell(Cell):
    """A cell without fading: UE i sends ``usual`` bits a second on its 1 Hz, or what ``odd[round, UE]`` says."""

    usual: int = 4
    odd: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Nothing here needs the radio's checks."""

    @property
    def channel(self) -> Channel:
        return HandMadeChannel(self)


class HandMadeChannel(Channel):
    def __init__(self, cell: HandMadeCell) -> None:
        super().__init__(np.ones(cell.ues), Fading(), 0)
        self._cell = cell

    def signal_hz(self, round_: int, ues: np.ndarray | None = None) -> np.ndarray:
        bits_per_s = np.full(self._cell.ues, float(self._cell.usual))
        for (k, ue), rate in self._cell.odd.items():
            if k == round_:
                bits_per_s[ue] = rate
        signal_hz = 2.0**bits_per_s - 1  # 1 Hz · log2(1 + g / 1 Hz) = the bits a second
        return signal_hz if ues is None else signal_hz[ues]


def hand_made_cell(compute_s: list[float], usual: int = 4, odd: dict[tuple[int, int], int] | None = None) -> Cell:
    """A cell whose UEs compute this many seconds on one sample."""
    n = len(compute_s)
    cpu_hz = 1e6 / np.array(compute_s)
    return HandMadeCell(np.ones(n), cpu_hz, cycles_per_sample=1e6, bandwidth_hz=float(n), usual=usual, odd=odd or {})


def one_hz_each(uplink: Uplink) -> np.ndarray:
    return np.ones(uplink.bits.size)
