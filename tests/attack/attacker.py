"""One attack in a process of its own: `python -m tests.attack.attacker MODULE:FUNCTION TARGET ENDS`.

Prints the bytes that were sent.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time

from tests.attack.rig import Target

NOBODY = 65_534
"""A user that no well-behaved client has."""


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


def main() -> None:
    """Run the attack that the command line names."""
    module, name = sys.argv[1].split(":")
    attack, target = getattr(importlib.import_module(module), name), Target(**json.loads(sys.argv[2]))
    if target.grpc == target.unix and os.getuid() == 0:
        os.setuid(NOBODY)  # callers of a UNIX socket are told apart by their user
    print(attack(target, float(sys.argv[3])))


if __name__ == "__main__":
    main()
