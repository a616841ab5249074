"""The server and the devices of a federation on real machines; ``mqtt/`` is the transport between them."""
