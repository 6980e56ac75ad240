"""Entry point of `python -m gateway.software`, which is `edge-software`."""

from __future__ import annotations

import sys

from gateway.software.cli import main

if __name__ == "__main__":
    sys.exit(main())
