"""Asks a controller over HTTP, for the verbs of `edge-fleet`. Knows no room of the controller."""
