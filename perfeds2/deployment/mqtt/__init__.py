"""The transport of a federation over MQTT."""
