"""What the daemon's door to the model repository decides, without a daemon."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.committed.settings import FleetSettings
from gateway.domain.release import Release
from gateway.serving import Fleet
from tests.simulators.engine_rig import manifest, release


@pytest.mark.asyncio
async def test_the_disk_is_read_on_a_thread_and_the_registry_asked_on_the_loop() -> None:
    """The registry has no lock: beside a removal, a thread that walks it fails."""
    asked: dict[str, int] = {}

    def read() -> tuple[Release, ...]:
        asked["disk"] = threading.get_ident()
        return release(manifest("m")), release(manifest("n"))

    def standings() -> list[Any]:
        asked["registry"] = threading.get_ident()
        return []

    repository: Any = SimpleNamespace(standings=standings)
    nothing: Any = SimpleNamespace()
    fleet = Fleet(nothing, repository, nothing, FleetSettings())
    assert [one.name for one in await fleet.of_model("m", read)] == ["m"]
    assert asked["disk"] != asked["registry"] == threading.get_ident()
