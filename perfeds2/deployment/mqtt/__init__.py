"""MQTT as the engine of a federation: a broker, a server, and devices that stay."""
