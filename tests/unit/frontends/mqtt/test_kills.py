"""Windows over kills at random moments are those of one process."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.frontends.mqtt.route_settings import MqttRoute
from gateway.frontends.mqtt.time_settings import MqttTime
from tests.simulators.mqtt_windows import NUMBERED, PLAIN, JournaledPipeline, numbered, until

REORDERED = dataclasses.replace(NUMBERED, time=MqttTime(sequence="n", lateness_s=100.0))


class Life:
    """Sensors and a broker over several processes: what is not acknowledged comes again, with DUP, in order."""

    def __init__(self, folder: Path, route: MqttRoute) -> None:
        self.gateway, self.route = JournaledPipeline(folder, route, max_queued=2), route
        self.unacknowledged: dict[int, list[int]] = {}
        self.results: dict[str, list[float]] = {}
        self.repeated = 0

    async def send(self, mid: int, rows: list[int]) -> None:
        self.unacknowledged[mid] = rows
        self.gateway.send(mid, *map(numbered, rows))
        await asyncio.sleep(0)

    async def kill(self) -> None:
        """End the process with the file as it is, and begin another one."""
        after = self.gateway.killed()
        self._collect()
        self.gateway = JournaledPipeline(after, self.route, max_queued=2)
        for mid, rows in self.unacknowledged.items():
            self.gateway.send(mid, *map(numbered, rows), dup=True)
        await asyncio.sleep(0)

    async def end(self) -> list[list[float]]:
        await self.gateway.committed(len(self.unacknowledged))
        await until(lambda: not self.gateway.pipeline.gauges["running"] + self.gateway.pipeline.gauges["queued"])
        self._collect()
        return sorted(self.results.values())

    def _collect(self) -> None:
        for mid in self.gateway.outlet.acknowledged:
            self.unacknowledged.pop(mid, None)
        for identity, values in self.gateway.outlet.results:
            assert self.results.setdefault(identity, values) == values


steps = st.lists(st.sampled_from(["send", "send", "many", "kill", "sync", "compact"]), min_size=3, max_size=25)


@pytest.mark.parametrize("route", [PLAIN, REORDERED], ids=["plain", "reordered"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps, chance=st.randoms(use_true_random=False))
def test_windows_over_kills_are_those_of_one_process(route: MqttRoute, steps: list[str], chance: Any) -> None:
    counts = [chance.randint(1, 9) if step == "many" else 1 for step in steps if step in {"send", "many"}]
    numbers = list(range(1, 1 + sum(counts)))
    messages = [[numbers.pop(0) for _ in range(count)] for count in counts]
    if route is REORDERED:
        pairs = [messages[index : index + 2] for index in range(1, len(messages), 2)]
        messages = messages[:1] + [one for pair in pairs for one in reversed(pair)]
    total = 1 + sum(counts)

    async def live(folder: str) -> list[list[float]]:
        life, mid = Life(Path(folder) / "journal", route), 0
        await life.send(100, [0])
        await life.gateway.durable()  # without it, ids depend on the arrival of the sensor's first message
        for step in steps:
            if step == "kill":
                await life.kill()
            elif step == "sync":
                await life.gateway.durable()
            elif step == "compact":
                life.gateway.journal.renew()
                await asyncio.sleep(0)
            else:
                mid += 1
                await life.send(mid, messages[mid - 1])
        return await life.end()

    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(live(folder))
    assert found == [[n, n + 1] for n in range(0, total - 1, 2)]
