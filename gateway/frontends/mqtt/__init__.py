"""MQTT: request/response inference and sensor routes, acknowledged by hand (contracts.md, "MQTT")."""
