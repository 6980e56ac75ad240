"""Path of a message from the session to its result: decoding, windows, inference, delivery."""
