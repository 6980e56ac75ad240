"""Timeouts of Python 3.10 behave as those of asyncio. CI loads the module as if it ran on Python 3.10."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from types import ModuleType

import pytest

from gateway.common import timeouts

pytestmark = pytest.mark.asyncio


@pytest.fixture(params=["here", "3.10"])
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module as of this Python, and as of Python 3.10."""
    if request.param == "here":
        return timeouts
    monkeypatch.setattr(sys, "version_info", (3, 10, 12, "final", 0))
    spec = importlib.util.spec_from_file_location("timeouts_of_python_310", timeouts.__file__)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


async def test_a_block_that_is_late_raises_the_built_in_error(module: ModuleType) -> None:
    with pytest.raises(TimeoutError):
        async with module.timeout(0) as limit:
            await asyncio.Event().wait()
    assert limit.expired()
    with pytest.raises(TimeoutError):
        await module.wait_for(asyncio.Event().wait(), 0)


async def test_a_block_that_ends_in_time_is_not_cancelled_later(module: ModuleType) -> None:
    async with module.timeout_at(asyncio.get_running_loop().time() + 0.01) as limit:
        pass
    await asyncio.sleep(0.02)
    assert not limit.expired()
    assert await module.wait_for(asyncio.sleep(0, "answer"), None) == "answer"


async def test_a_timeout_is_moved(module: ModuleType) -> None:
    async with module.timeout(0) as limit:
        limit.reschedule(None)
        await asyncio.sleep(0.01)
    with pytest.raises(TimeoutError):  # noqa: PT012 - the error comes at the end of the block
        async with module.timeout(None) as limit:
            limit.reschedule(asyncio.get_running_loop().time())
            await asyncio.Event().wait()


async def test_errors_and_other_cancellations_pass(module: ModuleType) -> None:
    async def wait() -> None:
        async with module.timeout(60):
            begun.set()
            await asyncio.Event().wait()

    begun = asyncio.Event()
    task = asyncio.ensure_future(wait())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(KeyError):
        async with module.timeout(60):
            raise KeyError
