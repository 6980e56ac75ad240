"""Observability of the daemon: metrics, logs, and notifications to the service manager."""
