"""Command `edge-gateway`: one file per verb, parsed here, imported when it is called."""

from __future__ import annotations

from gateway.cli.parser import main

__all__ = ["main"]
