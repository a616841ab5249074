"""What does a job cost a UE's battery? E = κ·cycles·f² + p·t: computing, and sending for so many seconds."""

from dataclasses import dataclass

import numpy as np

from perfeds2.network.cell import Cell
from perfeds2.network.link import PerUe


@dataclass(frozen=True)
class EnergyModel:
    """What computing and sending take."""

    kappa: float  # effective capacitance: a cycle at f Hz takes κ·f² joules
    radiates: bool = True  # sending takes what is radiated, p; else only what follows
    sending_w: float = 0.0  # what the phone takes while it sends
    joules_per_bit: float = 0.0  # and for every bit

    def computing_w(self, cell: Cell) -> PerUe:
        """While it computes: κ·f² a cycle, f cycles a second."""
        return self.kappa * cell.cpu_hz**3

    def radio_w(self, cell: Cell) -> PerUe:
        """While it sends, whatever the rate."""
        return np.broadcast_to(cell.sent_power_w, (cell.ues,)) * self.radiates + self.sending_w


ENERGY = {  # κ as in papers on federated learning; whole phones as fitted to the measurements of SIGCOMM 2021
    "yang": EnergyModel(1e-28),  # Yang et al., Energy efficient federated learning over wireless networks
    "chen": EnergyModel(1e-27),  # Chen et al., A joint learning and communications framework
    "lte": EnergyModel(1e-28, False, 2.9, 77e-9),
    "5g-low": EnergyModel(1e-28, False, 3.2, 32e-9),
    "5g-mmwave": EnergyModel(1e-28, False, 5.7, 9e-9),
}
