"""Requests that wait for each other take no thread of those that need not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.controller.access import Role
from fleet.controller.config import FleetConfig
from fleet.controller.control.settings import DirectorSettings, IntakeSettings
from fleet.controller.serving.settings import ServingSettings
from tests.simulators.asking import record, tell
from tests.simulators.constants import settings_with
from tests.simulators.controller import controlling
from tests.simulators.operator import until

AT_ONCE = 6
"""Requests at each of three limits; as many may wait there: 36, more than the 32 threads that Python may have."""
CONFIG = replace(
    FleetConfig(),
    serve=ServingSettings(threads=38),
    director=settings_with(DirectorSettings(), signings_at_once=AT_ONCE, signing_wait_s=30),
    ingestion=settings_with(IntakeSettings(), at_once=AT_ONCE, wait_s=30),
)


@pytest.mark.timeout(120)
def test_before_all_doors_as_many_wait_as_may_and_others_are_answered(tmp_path: Path) -> None:
    """The database is locked for a while. A request beyond the limit is refused at once, and readers are answered."""
    places = 2 * AT_ONCE
    with controlling(tmp_path, CONFIG) as running, ExitStack() as opened, ThreadPoolExecutor(3 * places) as threads:
        made = [running.enrolled(f"camera-{number}") for number in range(places + 1)]
        *waiting, last = [opened.enter_context(running.device_client(one)) for one in made]
        viewer = opened.enter_context(running.client(Role.VIEWER))
        control = running.control
        limits = [control.intake._limit, control.inventories._limit, control.director._limit]
        with control.database.write():
            asked = [threads.submit(tell, one, record("vitals", 1, {})) for one in waiting]
            asked += [threads.submit(one.put, "/v1/self/inventory", json={}) for one in waiting]
            asked += [threads.submit(one.get, "/v1/self/assignment?nonce=n") for one in waiting]
            until(lambda: [len(door._inside) for door in limits] == [places] * 3, "not all of them came so far")
            assert tell(last, record("vitals", 1, {})).status_code == 503
            assert viewer.get("/v1/devices").status_code == 200
        assert {one.result().status_code for one in asked} == {200, 204}
