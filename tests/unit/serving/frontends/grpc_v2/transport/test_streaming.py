"""Streams on a real connection: what waits is bounded, what is late is ended, what is over is not read."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.serving.frontends.grpc_v2.calls import CallInfo
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.framing import prefixed
from gateway.serving.frontends.grpc_v2.transport.replies import CODES
from tests.simulators.constants import settings_with
from tests.simulators.grpc_client import STREAM, WATCH, Client, Codes, Reply, connected, framed, infer_request

from .conftest import PATIENT, Serve, nothing_left, until

pytestmark = pytest.mark.asyncio
WINDOW = 65_535


def replies(reply: Reply) -> list[Any]:
    found, body = [], bytes(reply.body)
    while body:
        size = int.from_bytes(body[1:5], "big")
        found.append(message("inference.ModelStreamInferResponse").FromString(body[5 : 5 + size]))
        body = body[5 + size :]
    return found


async def test_requests_in_any_chunks(served: Serve) -> None:
    body = b"".join(infer_request(size, id=str(size)) for size in (1, 300, 5, 2000))
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        number = client.ask(STREAM, end=False)
        for place in range(0, len(body), 7):
            client.send(number, body[place : place + 7])
            await client.flush()
        client.send(number, b"", end=True)
        (reply,) = await client.over(number)
        assert {each.infer_response.id for each in replies(reply)} == {"1", "300", "5", "2000"}
        assert reply.status == 0


async def test_compressed_requests_of_a_stream(served: Serve) -> None:
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        bodies = [framed(gzip.compress(infer_request(size)[5:]), 1) for size in (4, 200_000)]
        reply = await client.call(STREAM, b"".join([*bodies, infer_request(4)]), grpc_encoding="gzip")
        sizes = sorted(len(each.infer_response.raw_output_contents[0]) for each in replies(reply))
        assert (sizes, reply.status) == ([4, 4, 200_000], 0)


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"\0\0\0", "UNIMPLEMENTED", "ended too soon"),
        (infer_request()[:-1], "UNIMPLEMENTED", "ended too soon"),
        (framed(b"", 9), "INTERNAL", "unknown flag 9"),
        (framed(b"", 1), "INTERNAL", "names no compression"),
        (b"\0\xff\xff\xff\xff", "RESOURCE_EXHAUSTED", "at most"),
        (framed(b"\xff"), "INVALID_ARGUMENT", "are no inference.ModelInferRequest"),
    ],
)
async def test_what_came_before_damage_is_answered(served: Serve, body: bytes, code: str, words: str) -> None:
    """And nothing that comes behind it."""
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        number = client.ask(STREAM, infer_request(id="good"), end=False)
        await client.until(lambda: bool(client.replies[number].body))
        client.send(number, body)
        if body[0]:
            client.send(number, infer_request(id="hidden"))
        client.send(number, b"", end=True)
        (reply,) = await client.over(number)
        assert reply.status == CODES[code]
        assert words in reply.words
        assert [each.infer_response.id for each in replies(reply)] == ["good"]


async def test_messages_behind_a_refused_one_are_not_read(served: Serve) -> None:
    async with served(max_message_bytes=1000) as gateway, connected(gateway.addresses[0]) as client:
        gateway.inference.gate.clear()
        number = client.ask(STREAM, infer_request(id="good"), end=False)
        await client.settled()
        await gateway.inference.until(lambda: len(gateway.inference.requests) == 1)
        client.send(number, framed(bytes(2000)))
        await client.settled()
        client.send(number, infer_request(id="hidden"))
        await client.settled()
        gateway.inference.gate.set()
        (reply,) = await client.over(number)
        assert reply.status == CODES["RESOURCE_EXHAUSTED"]
        assert [each.infer_response.id for each in replies(reply)] == ["good"]


async def test_a_slow_method_slows_its_caller(served: Serve) -> None:
    """Requests that are not taken hold the window; none is lost."""
    async with (
        served(stream_in_flight=1, http2=settings_with(PATIENT, stream_window_bytes=WINDOW)) as gateway,
        connected(gateway.addresses[0]) as client,
    ):
        gateway.inference.gate.clear()
        number = client.ask(STREAM, end=False)
        body, sent = infer_request(20_000), 0
        while (left := client.h2.local_flow_control_window(number)) > 0:
            part = (body * 10)[sent : sent + min(left, 16_384)]
            client.send(number, part)
            sent += len(part)
            await client.settled()
        assert sent <= 3 * WINDOW
        assert gateway.frontend.message_memory.used_bytes <= 3 * WINDOW
        gateway.inference.gate.set()
        while sent < 10 * len(body):
            await client.until(lambda: client.h2.local_flow_control_window(number) > 0)
            part = (body * 10)[sent : sent + client.h2.local_flow_control_window(number)]
            sent += len(part)
            client.send(number, part, end=sent == 10 * len(body))
        (reply,) = await client.over(number)
        assert (reply.status, len(replies(reply))) == (0, 10)


async def test_empty_messages_that_are_not_taken_are_bounded(served: Serve) -> None:
    """A window of 64 KiB holds 13,107 of them; each takes a kilobyte here."""
    async with (
        served(stream_in_flight=1, max_receiving_bytes=1_000_000) as gateway,
        connected(gateway.addresses[0]) as client,
    ):
        gateway.inference.gate.clear()
        number = client.ask(STREAM, infer_request(), end=False)
        await client.settled()
        await gateway.inference.until(lambda: bool(gateway.inference.requests))
        client.send(number, framed(b"") * 3000)
        await client.settled()
        assert gateway.frontend.message_memory.used_bytes <= 1_000_000
        assert not client.replies[number].over
        gateway.inference.gate.set()
        (reply,) = await client.over(number)
        assert reply.status == CODES["UNAVAILABLE"]
        assert "max_receiving_bytes" in reply.words


async def test_replies_to_a_slow_reader_wait_in_the_method(served: Serve) -> None:
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        client.takes = False
        number = client.ask(STREAM, end=False)
        for _ in range(12):
            client.send(number, infer_request(30_000))
            await client.settled()
        await client.until(lambda: len(client.replies[number].body) == WINDOW)
        (connection,) = gateway.frontend._open
        assert connection._h2.sender.waiting_bytes <= 64 * 1024 + 31_000
        client.send(number, b"", end=True)
        client.takes = True
        client.h2.increment_flow_control_window(WINDOW)
        client.h2.increment_flow_control_window(WINDOW, number)
        (reply,) = await client.over(number)
        assert (reply.status, len(replies(reply))) == (0, 12)


async def test_a_reply_while_the_transport_is_held(served: Serve) -> None:
    windows = {Codes.INITIAL_WINDOW_SIZE: 2**31 - 1}
    async with served() as gateway, connected(gateway.addresses[0], windows) as client:
        client.h2.increment_flow_control_window(2**31 - 1 - WINDOW)
        number = client.ask(STREAM, infer_request(10), end=False)
        await client.settled()
        (connection,) = gateway.frontend._open
        connection.pause_writing()
        client.send(number, infer_request(10), end=True)
        await client.flush()
        connection._transport.resume_reading()
        await gateway.inference.until(lambda: len(gateway.inference.requests) == 2)
        await until(lambda: connection._h2.sender.waiting_bytes > 0)
        connection.resume_writing()
        (reply,) = await client.over(number)
        assert (reply.status, len(replies(reply))) == (0, 2)


@pytest.mark.parametrize("broken", [False, True])
async def test_a_method_that_has_ended_is_over(served: Serve, broken: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Its last answers wait for their reader; what is sent to it meanwhile starts nothing and keeps no memory."""
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        _replace(gateway, broken)
        client.takes = False
        number = client.ask(STREAM, infer_request(4), end=False)
        await client.until(lambda: len(client.replies[number].body) == WINDOW)
        await until(lambda: gateway.frontend.load.busy == 0)
        client.send(number, infer_request(30_000)[:20_000])
        await client.settled()
        assert gateway.frontend.message_memory.used_bytes == 0
        client.send(number, infer_request(30_000)[20_000:], end=True)
        await client.settled()
        client.takes = True
        client.h2.increment_flow_control_window(WINDOW)
        client.h2.increment_flow_control_window(WINDOW, number)
        (reply,) = await client.over(number)
        assert (len(reply.body), reply.status) == (100_005, CODES["INTERNAL"] if broken else 0)
        await nothing_left(gateway)
    assert caplog.text.count("failed unexpectedly") == broken


async def test_a_stream_opened_and_left(served: Serve) -> None:
    async with served() as gateway:
        async with connected(gateway.addresses[0]) as client:
            numbers = [client.ask(path, end=False) for path in (STREAM, WATCH) * 5]
            await client.settled()
            assert gateway.frontend.load.busy == len(numbers)
        await nothing_left(gateway)


def _replace(gateway: Any, broken: bool) -> None:
    """Replace the stream by one that says 100,000 bytes and ends, without reading."""

    async def answer(_requests: Any, _call: CallInfo) -> AsyncIterator[Any]:
        said = message("inference.ModelStreamInferResponse")(error_message="x" * (100_000 - 4))
        yield prefixed(said.SerializeToString())
        await asyncio.sleep(0)
        if broken:
            raise ZeroDivisionError

    object.__setattr__(gateway.frontend.rpcs[STREAM.encode()], "answer", answer)


async def _ask(client: Client, path: str, body: bytes) -> int:
    number = client.ask(path, body, end=False)
    await client.settled()
    return number


async def test_a_request_that_ends_too_soon_with_its_stream(served: Serve) -> None:
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        number = await _ask(client, WATCH, framed(b"\x0a\x01")[:4])
        client.send(number, b"", end=True)
        (reply,) = await client.over(number)
        assert reply.status == CODES["UNIMPLEMENTED"]
