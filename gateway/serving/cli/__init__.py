"""Verbs of `edge-gateway`: one file each."""
