"""Monitoring of the fleet: alerts to a webhook, the Prometheus page, and export to an OTLP endpoint."""
