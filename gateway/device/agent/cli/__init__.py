"""The command `edge-agent`: one file per verb, parsed here, imported when called."""

from __future__ import annotations

from gateway.device.agent.cli.parser import main

__all__ = ["main"]
