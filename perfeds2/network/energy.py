"""Model the energy of a job: E = κ·cycles·f² + p·t, for computing and for t seconds of sending."""

from dataclasses import dataclass

import numpy as np

from perfeds2.network.cell import Cell
from perfeds2.network.link import PerUe


@dataclass(frozen=True)
class EnergyModel:
    """Energy cost of computing and sending."""

    kappa: float  # effective capacitance: a cycle at f Hz takes κ·f² joules
    radiates: bool = True  # whether sending takes the radiated power p; otherwise only the costs below count
    sending_w: float = 0.0  # power of the phone while it sends
    joules_per_bit: float = 0.0  # plus this for every bit

    def computing_w(self, cell: Cell) -> PerUe:
        """Return the power of each UE while it computes: κ·f² joules per cycle at f cycles per second."""
        return self.kappa * cell.cpu_hz**3

    def radio_w(self, cell: Cell) -> PerUe:
        """Return the power of each UE while it sends, independent of the rate."""
        return np.broadcast_to(cell.sent_power_w, (cell.ues,)) * self.radiates + self.sending_w


ENERGY = {  # κ from papers on federated learning; whole phones fitted to the measurements of SIGCOMM 2021
    "yang": EnergyModel(1e-28),  # Yang et al., Energy efficient federated learning over wireless networks
    "chen": EnergyModel(1e-27),  # Chen et al., A joint learning and communications framework
    "lte": EnergyModel(1e-28, False, 2.9, 77e-9),
    "5g-low": EnergyModel(1e-28, False, 3.2, 32e-9),
    "5g-mmwave": EnergyModel(1e-28, False, 5.7, 9e-9),
}
