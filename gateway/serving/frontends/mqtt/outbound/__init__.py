"""Inferences, results, messages of rules, and their delivery, which acknowledges messages."""
