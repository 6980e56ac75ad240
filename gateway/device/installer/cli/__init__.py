"""The command `edge-software`: one file per verb, parsed here, imported when called."""

from __future__ import annotations

from gateway.device.installer.cli.parser import main

__all__ = ["main"]
