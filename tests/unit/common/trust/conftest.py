"""A signed repository whose owner acme signs 2 of 2, and a device that was given its root."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.trusting_device import TrustingDevice

SLOT = "reader"
DEVICE = "device-1"


@pytest.fixture
def repository(tmp_path: Path) -> FleetRepository:
    made = FleetRepository(tmp_path / "fleet")
    made.add_owner("acme", keys=2, threshold=2)
    made.add_release(SLOT, "1")
    made.add_release(SLOT, "2")
    return made


@pytest.fixture
def device(repository: FleetRepository) -> TrustingDevice:
    return TrustingDevice(DEVICE, repository.root_bytes(1))
