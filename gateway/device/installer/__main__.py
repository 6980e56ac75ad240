"""Entry point of `python -m gateway.device.installer`, which is `edge-software`."""

from __future__ import annotations

import sys

from gateway.device.installer.cli import main

if __name__ == "__main__":
    sys.exit(main())
