"""Payloads of messages to samples and tensors, and results to payloads."""
