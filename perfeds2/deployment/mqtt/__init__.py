"""A federation over MQTT."""
