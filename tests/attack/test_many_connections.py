"""Many idle connections, small version: all must be answered (`tests.attack.connections` measures ten thousand)."""

from __future__ import annotations

from pathlib import Path

from tests.attack.connections import measured
from tests.attack.rig import Attack

ATTACKS: dict[str, Attack] = {}


def test_every_connection_is_answered(tmp_path: Path) -> None:
    assert measured(tmp_path, 1000, 0.5)["answered"] == 1000
