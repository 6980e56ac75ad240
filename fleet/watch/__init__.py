"""What looks at the fleet and tells others: alerts to a webhook, Prometheus' page, an OTLP endpoint."""
