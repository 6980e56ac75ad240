"""Home Assistant: its discovery of the gateway and of the sensors that have results (MQTT discovery by device)."""
