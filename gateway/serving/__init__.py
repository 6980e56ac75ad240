"""The daemon: it tries, selects and serves models."""
