"""The server and the devices of a federation on real machines; ``mqtt/`` is the transport between them.

Its public names, for models and transports of your own, are in ``__init__.pyi``.
"""

from perfeds2.public import lazy_names

__all__, __getattr__ = lazy_names(__file__)
