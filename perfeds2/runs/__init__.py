"""Run the trainings that a spec describes, with checkpoints, run folders and summaries.

Its public names, for studies of your own, are in ``__init__.pyi``.
"""

from perfeds2.public import lazy_names

__all__, __getattr__ = lazy_names(__file__)
