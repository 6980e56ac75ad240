"""MQTT frontend: inference requests and sensor routes, with manual acknowledgement (contracts.md, "MQTT")."""
