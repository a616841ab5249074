"""Which cells have a name? A class is drawn, a function is called with the settings its parameters name."""

from perfeds2.network.cell import Cell

CELLS = {"paper": Cell}
