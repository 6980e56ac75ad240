"""The daemon's event loop: asyncio as ever, and descriptors that are served within its poll."""

from __future__ import annotations

import asyncio
import select
import selectors
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gateway.common.wire.direct_loop import DirectLoop, DirectSelector, run


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_a_selector_like_pythons_own(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    both = selectors.EVENT_READ | selectors.EVENT_WRITE
    for made in (DirectSelector(), selectors.EpollSelector()):
        with made as selector:
            key = selector.register(one, selectors.EVENT_READ, "data")
            assert selector.get_key(one.fileno()) == key
            assert selector.select(0) == []
            other.send(b"x")
            assert selector.select(0) == selector.select(1.0) == [(key, selectors.EVENT_READ)]
            key = selector.modify(one, both)
            assert selector.select(0) == [(key, both)]
            with pytest.raises(KeyError):
                selector.register(one, both)
            selector.unregister(one)
            assert selector.select(0) == []
            with pytest.raises(KeyError):
                selector.unregister(one)
            one.recv(1)


def test_a_peer_that_left_wakes_reader_and_writer(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    with DirectSelector() as selector:
        key = selector.register(one, selectors.EVENT_READ | selectors.EVENT_WRITE)
        other.close()
        assert selector.select(0) == [(key, selectors.EVENT_READ | selectors.EVENT_WRITE)]


def test_what_is_registered_directly_is_served_within_the_poll(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    served: list[Any] = []

    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, DirectLoop)
        woken = asyncio.Event()
        loop.direct.epoll.register(one.fileno(), select.EPOLLIN)

        def serve(ready: Sequence[tuple[int, int]]) -> None:
            served.extend((ready, one.recv(9)))
            woken.set()

        loop.direct.serve = serve
        other.send(b"direct")
        await asyncio.wait_for(woken.wait(), 30.0)
        return await asyncio.gather(asyncio.to_thread(str, 1), loop.run_in_executor(None, str, 2))

    assert run(main()) == ["1", "2"]
    assert served == [[(one.fileno(), select.EPOLLIN)], b"direct"]
