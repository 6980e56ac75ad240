"""The command `edge-fleet`: one file per verb, parsed here, imported when called."""

from __future__ import annotations

from fleet.cli.parser import main

__all__ = ["main"]
