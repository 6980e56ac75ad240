"""MQTT frontend: inference requests and sensor routes, with manual acknowledgement (docs/pages/howto/sensors.md)."""
