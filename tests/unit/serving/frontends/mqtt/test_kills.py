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

from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from gateway.serving.frontends.mqtt.settings.samples import MqttTime, MqttWindow
from tests.simulators.mqtt_windows import CHANNEL, NUMBERED, PLAIN, Life, close_all, model, numbered

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
STEP_S, LATENESS_S = 60.0, 100.0
JOINED = MqttRoute(
    *("r", ("s/+",), "m"),
    sensor="topic[1]",
    size_rows=2,
    channel=(MqttChannel("x"), MqttChannel("y")),
    time=MqttTime(path="t", lateness_s=LATENESS_S, join="nearest", join_tolerance_s=20.0),
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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.sampled_from(["pair", "pair", "swap", "kill", "sync", "compact"]), min_size=3, max_size=25),
    more=st.integers(0, 2),
)
def test_joined_rows_over_kills_are_those_of_one_process(steps: list[str], more: int) -> None:
    pairs = [step for step in [*steps, *["pair"] * more] if step in {"pair", "swap"}]

    async def live(folder: str) -> list[list[float]]:
        life, count = Life(Path(folder) / "journal", JOINED, manifest=model(2)), 0
        for number, step in enumerate([*steps, *["pair"] * more]):
            if step in {"pair", "swap"}:
                at = count * STEP_S
                samples = [{"t": at, "x": float(count)}, {"t": at + 10, "y": count + 0.5}]
                for place, sample in enumerate(samples if step == "pair" else reversed(samples)):
                    await life.send(2 * number + place + 1, [sample])
                count += 1
            else:
                await life.step(step)
        return await life.end()

    newest_s = STEP_S * (len(pairs) - 1) + 10
    whole = [place for place in range(len(pairs)) if STEP_S * place <= newest_s - LATENESS_S]
    rows = [[float(place), place + 0.5] for place in whole]
    assert lived(live) == [rows[at] + rows[at + 1] for at in range(0, len(rows) - 1, 2)]
