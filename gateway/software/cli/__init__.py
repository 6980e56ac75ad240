"""The command `edge-software`: one file per verb, parsed here, imported when called."""

from __future__ import annotations

from gateway.software.cli.parser import main

__all__ = ["main"]
