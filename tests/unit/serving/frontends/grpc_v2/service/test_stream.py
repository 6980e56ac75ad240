"""One stream's concurrency, bounds and endings."""

import asyncio
from contextlib import aclosing

import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.serving.frontends.grpc_v2.service.stream import InferStream, SendPart

pytestmark = pytest.mark.asyncio
IDLE_S = 3600.0


class Peer:
    """Requests pulled by the stream, each answered when its event is set."""

    def __init__(self, count: int) -> None:
        self.done = [asyncio.Event() for _ in range(count)]
        self.pulled = 0
        self.cancelled: list[int] = []
        self.read = asyncio.Event()

    async def requests(self):
        for number in range(len(self.done)):
            self.pulled += 1
            yield number

    async def endless(self):
        async for number in self.requests():
            yield number
        self.read.set()
        await asyncio.Event().wait()

    async def answer(self, number: int, _part: SendPart) -> int:
        try:
            await self.done[number].wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        return number


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_answers_come_as_they_complete():
    peer = Peer(3)
    async with aclosing(InferStream(peer.requests(), peer.answer, 4, IDLE_S).replies()) as replies:
        got = []
        for number in (2, 0, 1):
            peer.done[number].set()
            got.append(await anext(replies))
        assert got == [2, 0, 1]
        assert [reply async for reply in replies] == []


async def test_parts_come_before_the_answer_and_wait_until_they_are_taken():
    peer, sent = Peer(1), []

    async def answer(number: int, part: SendPart) -> int:
        for each in (10, 11):
            await part(each)
            sent.append(each)
        return number

    async with aclosing(InferStream(peer.requests(), answer, 1, IDLE_S).replies()) as replies:
        assert await anext(replies) == 10
        await settle()
        assert sent == []
        assert [reply async for reply in replies] == [11, 0]


async def test_no_more_is_read_than_may_be_in_flight():
    peer = Peer(10)
    for event in peer.done:
        event.set()
    async with aclosing(InferStream(peer.requests(), peer.answer, 3, IDLE_S).replies()) as replies:
        assert await anext(replies) == 0
        await settle()
        assert peer.pulled == 3  # all are answered, but none was taken by the peer
        assert await anext(replies) == 1
        await settle()
        assert peer.pulled == 4
        assert [reply async for reply in replies] == list(range(2, 10))


async def test_a_peer_that_leaves_cancels_what_is_in_flight():
    peer = Peer(3)
    async with aclosing(InferStream(peer.endless(), peer.answer, 4, IDLE_S).replies()) as replies:
        peer.done[1].set()
        assert await anext(replies) == 1
    await settle()
    assert sorted(peer.cancelled) == [0, 2]


async def test_draining_answers_what_was_read_and_ends():
    peer = Peer(2)
    stream = InferStream(peer.endless(), peer.answer, 4, IDLE_S)
    async with aclosing(stream.replies()) as replies:
        peer.done[0].set()
        assert await anext(replies) == 0
        await peer.read.wait()
        stream.drain()
        peer.done[1].set()
        assert await anext(replies) == 1
        with pytest.raises(RequestError, match="stopping") as caught:
            await anext(replies)
    assert caught.value.fault is Fault.UNAVAILABLE


async def test_draining_a_stream_that_was_read_to_its_end_refuses_nothing():
    peer = Peer(1)
    stream = InferStream(peer.requests(), peer.answer, 4, IDLE_S)
    async with aclosing(stream.replies()) as replies:
        reply = asyncio.ensure_future(anext(replies))
        await settle()
        stream.drain()
        peer.done[0].set()
        assert await reply == 0
        assert [more async for more in replies] == []


async def test_a_request_that_cannot_be_read_ends_the_stream_after_the_answers():
    peer = Peer(1)
    peer.done[0].set()

    async def broken():
        yield 0
        raise RequestError(Fault.INVALID, "no message")

    async with aclosing(InferStream(broken(), peer.answer, 4, IDLE_S).replies()) as replies:
        assert await anext(replies) == 0
        with pytest.raises(RequestError, match="no message"):
            await anext(replies)


async def test_an_empty_stream_ends():
    peer = Peer(0)
    assert [reply async for reply in InferStream(peer.requests(), peer.answer, 4, IDLE_S).replies()] == []


async def test_a_stream_that_brings_nothing_ends():
    peer = Peer(1)
    peer.done[0].set()
    async with aclosing(InferStream(peer.endless(), peer.answer, 4, 0.05).replies()) as replies:
        assert await anext(replies) == 0
        with pytest.raises(RequestError, match="stream_idle_s") as caught:
            await anext(replies)
    assert caught.value.fault is Fault.EXPIRED


async def test_a_request_in_flight_keeps_its_stream_open():
    peer = Peer(1)
    async with aclosing(InferStream(peer.endless(), peer.answer, 4, 0.01).replies()) as replies:
        following = asyncio.ensure_future(anext(replies))
        await asyncio.wait({following}, timeout=0.05)
        assert not following.done()
        peer.done[0].set()
        assert await following == 0
