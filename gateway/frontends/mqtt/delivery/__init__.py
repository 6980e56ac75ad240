"""Runs of inferences, their answers, and the acknowledgement of messages."""
