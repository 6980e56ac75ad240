"""Windows over kills at random moments are those of one process."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.frontends.mqtt.route_settings import MqttRoute
from gateway.frontends.mqtt.time_settings import MqttTime
from gateway.frontends.mqtt.window_settings import MqttWindow
from tests.simulators.mqtt_windows import CHANNEL, NUMBERED, PLAIN, Life, close_all, numbered

LATER_S = 500.0
"""Silence that ends a session, much longer than a test takes: only times of samples end one."""
SESSIONS = MqttRoute(
    *("r", ("s/+",), "m"),
    sensor="topic[1]",
    size_rows=3,
    channel=CHANNEL,
    time=MqttTime(path="n"),
    window=MqttWindow(LATER_S),
)
REORDERED = dataclasses.replace(NUMBERED, time=MqttTime(sequence="n", lateness_s=100.0))


def lived(live: Callable[[str], Coroutine[Any, Any, list[list[float]]]]) -> list[list[float]]:
    """Return what comes of processes in a folder that is removed once none of them writes."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return asyncio.run(live(folder))
        finally:
            close_all()


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
        await life.send(100, [numbered(0)])
        await life.gateway.durable()  # without it, ids depend on the arrival of the sensor's first message
        for step in steps:
            if step in {"send", "many"}:
                mid += 1
                await life.send(mid, [numbered(number) for number in messages[mid - 1]])
            else:
                await life.step(step)
        return await life.end()

    assert lived(live) == [[n, n + 1] for n in range(0, total - 1, 2)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.sampled_from(["send", "send", "later", "kill", "sync", "compact"]), min_size=3, max_size=25),
    by_time=st.booleans(),
)
def test_sessions_over_kills_are_those_of_one_process(steps: list[str], by_time: bool) -> None:
    route = SESSIONS if by_time else dataclasses.replace(SESSIONS, time=MqttTime(path="n", sequence="i"))
    sessions: list[list[float]] = [[0.0]]

    async def live(folder: str) -> list[list[float]]:
        life, at = Life(Path(folder) / "journal", route), 0.0
        await life.send(1_000, [{"v": 0.0, "n": 0.0, "i": 0}])
        for number, step in enumerate([*steps, "later"], 1):
            if step in {"send", "later"}:
                at += 1.0 if step == "send" else 2 * LATER_S
                if step == "later" or len(sessions[-1]) == route.size_rows:
                    sessions.append([])
                sessions[-1].append(at)
                await life.send(number, [{"v": at, "n": at, "i": sum(map(len, sessions)) - 1}])
            else:
                await life.step(step)
        return await life.end()

    assert lived(live) == sessions[:-1]
