"""Large answers of BYTES: others are answered while they are encoded, streams keep their order, nothing is left."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.serving.frontends.grpc_v2 import calls
from gateway.serving.frontends.grpc_v2.calls import INFER
from gateway.serving.frontends.grpc_v2.transport.replies import CODES
from tests.simulators.grpc_client import STREAM, Client, connected, framed, infer_reply, infer_request
from tests.simulators.grpc_gateway import Gateway
from tests.simulators.held_answer import RAW, HeldAnswers

from .conftest import Serve, until
from .test_streaming import replies

pytestmark = pytest.mark.asyncio
LARGE = infer_request(id="large")
CANCEL = 8
CALLS = {
    "unary": (INFER, LARGE, {}),
    "in a task": (INFER, framed(gzip.compress(LARGE[5:]), 1), {"grpc_encoding": "gzip"}),
    "stream": (STREAM, LARGE, {}),
}


@asynccontextmanager
async def held(served: Serve, **settings: object) -> AsyncIterator[tuple[Gateway, HeldAnswers, Client, Client]]:
    """Yield a gateway with two connections; its threads are let go at the end."""
    inference = HeldAnswers()
    async with (
        served(inference=inference, **settings) as gateway,
        connected(gateway.addresses[0]) as one,
        connected(gateway.addresses[0]) as other,
    ):
        try:
            yield gateway, inference, one, other
        finally:
            inference.ready.set()


async def begun(inference: HeldAnswers) -> None:
    """Wait until the last element is being encoded."""
    assert await asyncio.to_thread(inference.begun.wait, 50)


@pytest.mark.parametrize("kind", CALLS)
async def test_others_are_answered_meanwhile(served: Serve, kind: str) -> None:
    path, body, headers = CALLS[kind]
    async with held(served) as (gateway, inference, one, other):
        number = one.ask(path, body, **headers)
        await one.flush()
        await begun(inference)
        assert gateway.frontend.message_memory.used_bytes >= len(RAW)
        for client in (one, other):
            assert (await client.infer(9)).status == 0
        assert not one.replies[number].body
        inference.ready.set()
        (reply,) = await one.over(number)
        answer = replies(reply)[0].infer_response if path == STREAM else infer_reply(bytes(reply.body))
        assert (answer.id, list(answer.outputs[0].shape)) == ("large", [20_000])
        assert list(answer.raw_output_contents) == [RAW]


async def test_answers_of_a_stream_keep_their_order(served: Serve) -> None:
    async with held(served) as (gateway, inference, one, _):
        wanted = ["first", "large 1", "second", "large 2", "third"]
        number = one.ask(STREAM, b"".join(infer_request(id=ident) for ident in wanted))
        await one.flush()
        await begun(inference)
        await until(lambda: gateway.frontend.load.calls.used >= 4)
        inference.ready.set()
        (reply,) = await one.over(number)
        assert [each.infer_response.id for each in replies(reply)] == wanted


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("leaves", [False, True], ids=["cancels", "hangs up"])
async def test_who_leaves_meanwhile_leaves_nothing(served: Serve, kind: str, leaves: bool) -> None:
    path, body, headers = CALLS[kind]
    async with held(served) as (gateway, inference, one, other):
        number = one.ask(path, body, **headers)
        await one.flush()
        await begun(inference)
        assert gateway.frontend.message_memory.used_bytes >= len(RAW)
        if leaves:
            one.writer.close()
        else:
            one.h2.reset_stream(number, CANCEL)
            await one.flush()
        await other.settled()
        await until(lambda: gateway.frontend.load.busy == 0)
        inference.requests.clear()
        await until(lambda: gateway.frontend.message_memory.used_bytes == 0)
        assert (await other.infer()).status == 0


@pytest.mark.parametrize("kind", CALLS)
async def test_an_answer_above_the_share_of_its_caller_is_refused(served: Serve, kind: str) -> None:
    path, body, headers = CALLS[kind]
    async with held(served, max_receiving_bytes=len(RAW) - 1) as (_, inference, one, _):
        reply = await one.call(path, body, **headers)
        words = replies(reply)[0].error_message if path == STREAM else reply.words
        assert words.startswith(f"the answer: the request needs {len(RAW)} grpc request bytes")
        assert reply.status == (0 if path == STREAM else CODES["RESOURCE_EXHAUSTED"])
        assert not inference.begun.is_set()


@pytest.mark.parametrize("kind", CALLS)
async def test_an_answer_that_cannot_be_encoded(served: Serve, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls.log, "disabled", True)  # a record holds the frames of the call
    path, body, headers = CALLS[kind]
    async with held(served) as (_, inference, one, _):
        inference.elements[-1] = "\udcff"
        reply = await one.call(path, body, **headers)
        words = replies(reply)[0].error_message if path == STREAM else reply.words
        assert words.startswith("internal error ")


async def test_what_was_encoded_is_counted_until_it_is_taken(served: Serve) -> None:
    async with held(served) as (gateway, inference, one, _):
        inference.ready.set()
        one.takes = False
        first = one.ask(INFER, LARGE)
        await one.until(lambda: len(one.replies[first].body) == 65_535)
        (connection,) = (each for each in gateway.frontend._open if each._h2.sender.waiting_bytes)
        assert gateway.frontend.load.waiting.used == connection._h2.sender.waiting_bytes
        assert gateway.frontend.message_memory.used_bytes == 0
