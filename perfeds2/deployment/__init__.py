"""The same rounds on real devices: the server and the device without an engine; ``mqtt/`` is the engine."""
