"""Compute the numbers of ``perfeds2 errata``: ``python -m benchmarks.errata`` prints them as errata.toml records them."""

from benchmarks.errata import network, theory

NUMBERS = network.NUMBERS | theory.NUMBERS  # by erratum: a function that returns what is measured, and its values
