"""Decoding in steps: what happens on the event loop, what on threads, and in whose turn."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Generator
from typing import Any

import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.serving.engine import decode_pool
from gateway.serving.engine.decode_pool import DecodePool
from gateway.serving.engine.settings import EngineSettings
from tests.simulators.constants import settings_with

pytestmark = pytest.mark.asyncio
LONG_US = 10**9


def pool(inline_us: int = 0, threads: int = 1) -> DecodePool:
    return DecodePool(settings_with(EngineSettings(), decode_inline_us=inline_us, decode_threads=threads))


def steps(count: int, value: Any = None, threads: list[str] | None = None) -> Generator[None, None, Any]:
    for _ in range(count):
        if threads is not None:
            threads.append(threading.current_thread().name)
        yield
    return value


async def test_short_work_stays_on_the_loop() -> None:
    threads: list[str] = []
    assert await pool(LONG_US).run("ann", steps(20, "done", threads)) == "done"
    assert set(threads) == {"MainThread"}


async def test_the_first_step_is_taken_on_the_loop_and_later_ones_on_a_thread() -> None:
    threads: list[str] = []
    assert await pool().run("ann", steps(4, "done", threads)) == "done"
    assert threads == ["MainThread", *["decode 1"] * 3]
    threads.clear()
    await pool(LONG_US).run("ann", steps(3, "done", threads), apart=True)
    assert threads == ["decode 1"] * 3


@pytest.mark.parametrize("threads", [1, 2])
async def test_threads_are_bounded_and_end_with_the_work(threads: int) -> None:
    busy, most = set[str](), 0

    def work() -> Generator[None, None, None]:
        nonlocal most
        for _ in range(5):
            busy.add(threading.current_thread().name)
            most = max(most, len(busy))
            yield
            busy.discard(threading.current_thread().name)

    before = set(threading.enumerate())  # an engine of another test may have threads of this name
    shared = pool(threads=threads)
    await asyncio.gather(*(shared.run(f"caller {n}", work(), apart=True) for n in range(12)))
    assert 1 <= most <= threads
    while any(each.name.startswith("decode ") for each in set(threading.enumerate()) - before):
        await asyncio.sleep(0.001)


async def test_callers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with a hundred requests delays another by one slice of time, not by a hundred requests."""
    monkeypatch.setattr(decode_pool, "SLICE_NS", 0)
    order: list[str] = []
    begin = threading.Event()

    def work(name: str) -> Generator[None, None, None]:
        begin.wait()
        order.append(name)
        yield

    shared = pool()
    many = [asyncio.ensure_future(shared.run("ann", work("ann"), apart=True)) for _ in range(100)]
    await asyncio.sleep(0)
    one = asyncio.ensure_future(shared.run("bob", work("bob"), apart=True))
    await asyncio.sleep(0)
    begin.set()
    await one
    assert order.index("bob") <= 2
    await asyncio.gather(*many)


async def test_a_large_request_gives_way_to_another_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_pool, "SLICE_NS", 0)
    ended = threading.Event()

    def endless() -> Generator[None, None, None]:
        while not ended.is_set():
            yield

    shared = pool()
    large = asyncio.ensure_future(shared.run("ann", endless(), apart=True))
    assert await shared.run("bob", steps(3, "done"), apart=True) == "done"
    assert not large.done()
    ended.set()
    await large


async def test_errors_reach_the_caller_and_hold_nothing() -> None:
    class Content:
        pass

    def fails(content: Content) -> Generator[None, None, None]:
        yield
        raise RequestError(Fault.INVALID, f"broken {type(content).__name__}")

    content = Content()
    held = weakref.ref(content)
    gc.disable()
    try:
        with pytest.raises(RequestError, match="broken Content"):
            await pool().run("ann", fails(content))
        del content
        for _ in range(1000):
            if held() is None:
                break
            await asyncio.sleep(0.001)
        assert held() is None
    finally:
        gc.enable()


async def test_a_caller_who_left_is_not_decoded_for() -> None:
    begin, closed = threading.Event(), threading.Event()

    def blocks() -> Generator[None, None, None]:
        begin.wait()
        yield

    def given_up() -> Generator[None, None, None]:
        try:
            yield
            raise AssertionError("it went on")
        finally:
            closed.set()

    shared = pool()
    first = asyncio.ensure_future(shared.run("ann", blocks(), apart=True))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(shared.run("ann", given_up()))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    begin.set()
    await first
    assert await asyncio.to_thread(closed.wait, 30)
    assert second.cancelled()


async def test_no_thread_can_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RequestError, match="can't start new thread") as caught:
        await pool().run("ann", steps(2))
    assert caught.value.fault is Fault.OVERLOADED
