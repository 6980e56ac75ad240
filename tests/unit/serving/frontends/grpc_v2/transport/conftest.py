"""The gateway's own server on a real socket, and the proof that nothing is left of what was asked."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from gateway.common.wire.direct_loop import DirectLoop
from gateway.serving.frontends.grpc_v2.http2.limits import Http2Limits
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from tests.simulators import grpc_gateway
from tests.simulators.constants import settings_with

THREAD_S = 15.0
TURNS = 200
"""Turns of the loop that an end may take to be dealt with."""

PATIENT = settings_with(Http2Limits(), max_ping_strikes=10_000, controls_burst=100_000)
"""Test clients ask for signs of life as often as they like."""
Serve = Callable[..., AbstractAsyncContextManager[grpc_gateway.Gateway]]


@pytest.fixture
def no_search() -> Iterator[None]:
    """Disable the garbage collector meanwhile."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def served(no_search: None) -> Serve:
    """Return `grpc_gateway.serving`; keywords that it does not know are settings.

    At the end no call, no memory, no task may be left.
    """

    @asynccontextmanager
    async def serve(**given: Any) -> AsyncIterator[grpc_gateway.Gateway]:
        own = {
            key: given.pop(key) for key in ("inference", "security", "addresses", "regions", "shares") if key in given
        }
        given.setdefault("http2", PATIENT)
        before = asyncio.all_tasks()
        async with grpc_gateway.serving(settings=settings_with(GrpcSettings(), **given), **own) as gateway:
            yield gateway
            await nothing_left(gateway)
        await until(lambda: not asyncio.all_tasks() - before)

    return serve


async def nothing_left(gateway: grpc_gateway.Gateway) -> None:
    """Wait until every call that was given up is forgotten."""
    server = gateway.frontend
    gateway.inference.requests.clear()
    await until(lambda: server.load.busy == 0)
    await until(lambda: not any(connection._asked for connection in server._open))
    await until(lambda: server.message_memory.used_bytes == 0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds. A thread that has done its work forgets it when it next has a processor."""
    for _ in range(TURNS):
        if condition():
            return
        await asyncio.sleep(0)
    async with asyncio.timeout(THREAD_S):
        while not condition():
            await asyncio.sleep(0.001)


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests of sockets on the daemon's event loop, too."""
    loops = {"asyncio": asyncio.new_event_loop, "direct": DirectLoop}
    return (
        loops
        if item.path.stem in {"test_sockets", "test_sockets_ends", "test_server"}
        else {"asyncio": loops["asyncio"]}
    )
