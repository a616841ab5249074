"""List the kinds of cells by name."""

from perfeds2.network.cell import Cell

CELLS = {"paper": Cell}  # a class is drawn, a function is called with the settings that its parameters name
