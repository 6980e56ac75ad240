"""Entry point of `python -m gateway.agent`, which is `edge-agent`."""

from __future__ import annotations

import sys

from gateway.agent.cli import main

if __name__ == "__main__":
    sys.exit(main())
