"""Devices of one simulation go on in the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from tests.load.identities import FleetIdentities, SimulatedIdentity, read_identities, write_identities

ONE = SimulatedIdentity(
    "sim-000001", "camera", "PEM", "/repository", "/v1/self/assignment", 30.0, {"m": ["p", 3, "ab"]}
)


def test_what_is_written_is_read_and_only_by_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "devices.jsonl"
    assert read_identities(file) == FleetIdentities()
    write_identities(file, "{}", [ONE])
    write_identities(file, '{"signed": 1}', [ONE, ONE])
    assert read_identities(file) == FleetIdentities('{"signed": 1}', (ONE, ONE))
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("content", ["", "{}\nnonsense\n", '{}\n{"character": "x"}\n', "{}\n[1]\n"])
def test_anything_else_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "devices.jsonl"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match="holds no simulated devices"):
        read_identities(file)
