"""Entry point of `python -m gateway.device.agent`, which is `edge-agent`."""

from __future__ import annotations

import sys

from gateway.device.agent.cli import main

if __name__ == "__main__":
    sys.exit(main())
