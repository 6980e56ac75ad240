"""Decoding of messages: from the bytes of a payload to the input of a model."""
