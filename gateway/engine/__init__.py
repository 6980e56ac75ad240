"""The one door: admission, queues, batches and workers between a request and a session."""
