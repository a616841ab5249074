"""Render a run's folder as figures and one HTML page. Imports neither JAX nor Flower.

Its public names, for figures and studies of your own, are in ``__init__.pyi``.
"""

from perfeds2.public import lazy_names

__all__, __getattr__ = lazy_names(__file__)
