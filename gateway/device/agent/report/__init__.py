"""Reports of the device: status, telemetry, health and diagnostics."""
