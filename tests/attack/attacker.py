"""One attack in a process of its own: `python -m tests.attack.attacker MODULE:FUNCTION TARGET SECONDS`.

It prints the number of bytes sent.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time

from tests.attack.rig import Target

NOBODY = 65_534
"""User id that no well-behaved client has."""


class Pace:
    """Rate limiter at the rate of the target's link."""

    def __init__(self, target: Target) -> None:
        self._bytes_per_s, self._began_s = target.bytes_per_s, time.monotonic()
        self.sent_bytes = 0

    def sent(self, size: int) -> None:
        """Count `size` bytes; sleep if they were sent faster than the link permits."""
        self.sent_bytes += size
        ahead_s = self.sent_bytes / self._bytes_per_s - (time.monotonic() - self._began_s)
        if ahead_s > 0:
            time.sleep(ahead_s)


def main() -> None:
    """Run the attack that the command line names."""
    module, name = sys.argv[1].split(":")
    attack, target = getattr(importlib.import_module(module), name), Target(**json.loads(sys.argv[2]))
    if target.grpc == target.unix and os.getuid() == 0:
        os.setuid(NOBODY)  # callers of a UNIX socket are identified by user
    print(attack(target, time.monotonic() + float(sys.argv[3])))


if __name__ == "__main__":
    main()
