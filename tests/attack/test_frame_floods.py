"""Floods of frames without requests: the connection is closed, and the peer reconnects at once."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from tests.attack.attacker import Pace
from tests.attack.rig import Attack, Target, check_harmless
from tests.attack.transport import connected
from tests.simulators.http2_floods import FLOODS
from tests.simulators.http2_peer import WELCOME

ATTACKS = {"frame floods": Attack("tests.attack.test_frame_floods:flood", processes=2)}
PART = 200
"""Repetitions in one write."""


def flood(target: Target, ends_s: float) -> int:
    """Send each known flood in turn, each on separate connections."""
    pace = Pace(target)
    for words, _ in itertools.cycle(FLOODS.values()):
        if time.monotonic() >= ends_s:
            break
        with connected(target, target.grpc) as peer:
            endless = itertools.chain([WELCOME], words())
            try:
                while time.monotonic() < ends_s:
                    part = b"".join(itertools.islice(endless, PART))
                    peer.sendall(part)
                    pace.sent(len(part))
            except OSError:
                continue  # the daemon closed the connection
    return pace.sent_bytes


@pytest.mark.parametrize("name", ATTACKS)
def test_well_behaved_clients_are_served_meanwhile(name: str, tmp_path: Path) -> None:
    check_harmless(ATTACKS[name], tmp_path)
