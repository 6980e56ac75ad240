"""Admission control, queues, batches and workers between a request and a session."""
