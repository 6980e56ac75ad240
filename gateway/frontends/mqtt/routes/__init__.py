"""Routes: which topics carry which messages, and the inference requests that they make."""
