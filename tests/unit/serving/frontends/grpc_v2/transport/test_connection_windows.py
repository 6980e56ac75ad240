"""Large replies and slow readers on a real connection: a window holds up only its own stream or connection."""

from __future__ import annotations

import pytest

from gateway.serving.frontends.grpc_v2.calls import INFER
from gateway.serving.frontends.grpc_v2.transport.replies import CODES
from tests.simulators.grpc_client import LIVE, STREAM, Client, Codes, Reply, connected, infer_reply, infer_request

from .conftest import Serve

pytestmark = pytest.mark.asyncio


def good(reply: Reply, size: int = 4) -> None:
    assert (reply.status, reply.reset) == (0, None)
    assert len(infer_reply(bytes(reply.body)).raw_output_contents[0]) == size


def refused(reply: Reply, code: str, words: str = "") -> None:
    assert reply.status == CODES[code], reply.words
    assert words in reply.words


@pytest.mark.parametrize("window", [1, 1000, 65_535])
async def test_large_replies_to_readers_with_small_windows(served: Serve, window: int) -> None:
    size = 20_000 if window == 1 else 2_000_000
    async with (
        served() as gateway,
        connected(gateway.addresses[0], {Codes.INITIAL_WINDOW_SIZE: window}) as client,
    ):
        number = client.ask(end=False)
        body, place = infer_request(size), 0
        while place < len(body):
            await client.until(lambda: client.h2.local_flow_control_window(number) > 0)
            part = body[place : place + client.h2.local_flow_control_window(number)]
            place += len(part)
            client.send(number, part, end=place == len(body))
        good((await client.over(number))[0], size)


async def test_a_reader_that_takes_nothing_holds_up_nobody(served: Serve) -> None:
    """Neither on its own connection, where windows allow it, nor on others."""
    size = 300_000
    async with served() as gateway, connected(gateway.addresses[0]) as slow, connected(gateway.addresses[0]) as other:
        slow.takes = False
        stuck = slow.ask(end=False)
        await _send_all(slow, stuck, infer_request(size))
        await slow.until(lambda: len(slow.replies[stuck].body) == 65_535)
        slow.h2.increment_flow_control_window(1000)
        reply = await slow.infer(4)
        good(reply)
        good(await other.infer())
        slow.h2.increment_flow_control_window(size)
        slow.h2.increment_flow_control_window(size, stuck)
        good((await slow.over(stuck))[0], size)


async def test_answers_that_are_not_taken_are_bounded(served: Serve) -> None:
    async with served(max_waiting_bytes=100_000) as gateway, connected(gateway.addresses[0]) as client:
        client.takes = False
        stuck = client.ask(end=False)
        await _send_all(client, stuck, infer_request(300_000))
        await client.until(lambda: len(client.replies[stuck].body) == 65_535)
        for path in (INFER, STREAM, LIVE):
            refused(await client.call(path, infer_request()), "UNAVAILABLE", "waiting bytes")


async def _send_all(client: Client, number: int, body: bytes) -> None:
    place = 0
    while place < len(body):
        await client.until(lambda: client.h2.local_flow_control_window(number) > 0)
        part = body[place : place + client.h2.local_flow_control_window(number)]
        place += len(part)
        client.send(number, part, end=place == len(body))
    await client.flush()
