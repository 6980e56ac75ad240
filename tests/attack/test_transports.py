"""One attack of each kind over TLS and over UNIX sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack import test_costly_bytes, test_frame_floods, test_held_resources, test_http_floods
from tests.attack.rig import Attack, check_harmless

ATTACKS: dict[str, Attack] = {}
EACH = {
    "all costly bytes at once": test_costly_bytes.ATTACKS["all costly bytes at once"],
    "frame floods": test_frame_floods.ATTACKS["frame floods"],
    "half-open requests": test_held_resources.ATTACKS["half-open requests"],
    "HTTP chunks and heads": test_http_floods.ATTACKS["HTTP chunks and heads"],
}


@pytest.mark.parametrize("over", ["tls", "unix"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == test_costly_bytes.ALL else pytest.mark.long) for name in EACH]
)
def test_well_behaved_clients_are_served_meanwhile(name: str, over: str, tmp_path: Path) -> None:
    check_harmless(EACH[name], tmp_path, over)
