"""Timers of samples that wait for earlier ones: they count only time in which these could come."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.serving.frontends.mqtt.pipeline.windows import ExpiryTimers

LATENESS_S = 0.05
pytestmark = pytest.mark.asyncio


class Waiting:
    """Route whose samples have waited long enough, until they expire."""

    def __init__(self) -> None:
        self.route, self.waiting_ns = SimpleNamespace(name="r"), int(LATENESS_S * 1e9)
        self.due: int | None = time.monotonic_ns()

    def due_ns(self) -> int | None:
        return self.due


async def test_nothing_expires_before_a_connection_could_bring_what_is_missing() -> None:
    feed: Any = Waiting()
    since: list[int | None] = [None]
    expired_ns: list[int] = []
    done = asyncio.Event()

    def expire(_feed: object, now_ns: int) -> None:
        expired_ns.append(now_ns)
        feed.due = None
        done.set()

    timers = ExpiryTimers(expire, lambda: since[0])
    timers.set(feed)
    await asyncio.sleep(3 * LATENESS_S)
    assert not expired_ns
    since[0] = time.monotonic_ns()
    await asyncio.wait_for(done.wait(), 15)
    assert expired_ns[0] >= since[0] + int(LATENESS_S * 1e9)
    timers.close()


async def test_a_timer_that_is_set_for_later_makes_way_for_an_earlier_one() -> None:
    feed: Any = Waiting()
    done = asyncio.Event()
    feed.waiting_ns, feed.due = 0, time.monotonic_ns() + 3_600 * 10**9

    def expire(_feed: object, _now_ns: int) -> None:
        feed.due = None
        done.set()

    timers = ExpiryTimers(expire, lambda: 0)
    timers.set(feed)
    feed.due = time.monotonic_ns()
    timers.set(feed)
    await asyncio.wait_for(done.wait(), 15)
    timers.close()
