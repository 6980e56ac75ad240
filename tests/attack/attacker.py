"""One attack in a process of its own: `python -m tests.attack.attacker MODULE:FUNCTION TARGET ENDS`.

Prints the bytes that were sent.
"""

from __future__ import annotations

import importlib
import json
import socket
import sys
import time

from tests.attack.rig import Target


class Pace:
    """Holds an attacker to the rate of its target's link."""

    def __init__(self, target: Target) -> None:
        self._bytes_per_s, self._began_s = target.bytes_per_s, time.monotonic()
        self.sent_bytes = 0

    def sent(self, size: int) -> None:
        """Count `size` bytes; sleep where they went out faster than the link."""
        self.sent_bytes += size
        ahead_s = self.sent_bytes / self._bytes_per_s - (time.monotonic() - self._began_s)
        if ahead_s > 0:
            time.sleep(ahead_s)


def connected(address: str, timeout_s: float = 10.0) -> socket.socket:
    """A socket that is connected to `host:port`."""
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout_s)


def main() -> None:
    """Run the attack that the command line names."""
    module, name = sys.argv[1].split(":")
    attack = getattr(importlib.import_module(module), name)
    print(attack(Target(**json.loads(sys.argv[2])), float(sys.argv[3])))


if __name__ == "__main__":
    main()
