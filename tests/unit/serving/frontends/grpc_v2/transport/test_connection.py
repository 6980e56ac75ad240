"""Requests and replies on a real connection: in pieces, given up at any stage, refused, answered by a defect."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any
from unittest.mock import Mock

import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Datatype
from gateway.serving.domain.infer import InferRequest, InferResponse
from gateway.serving.frontends.grpc_v2.calls import INFER
from gateway.serving.frontends.grpc_v2.codec.infer_codec import InferCodec
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.grpc_v2.transport.connection import GrpcConnection
from gateway.serving.frontends.grpc_v2.transport.replies import CODES
from tests.simulators.constants import settings_with
from tests.simulators.grpc_client import (
    LIVE,
    LOAD,
    METADATA,
    STREAM,
    WATCH,
    Client,
    Reply,
    connected,
    framed,
    infer_reply,
    infer_request,
)
from tests.simulators.inference import SimulatedInference

from .conftest import PATIENT, Serve, nothing_left, until

pytestmark = pytest.mark.asyncio
CANCEL = 8


class Slow(SimulatedInference):
    """Inference whose load of a model ends only when it is cancelled."""

    async def load(self, model: str) -> None:
        self.loaded.append(model)
        self._moved.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1
            self._moved.set()


def good(reply: Reply, size: int = 4) -> None:
    assert (reply.status, reply.reset) == (0, None)
    assert len(infer_reply(bytes(reply.body)).raw_output_contents[0]) == size


def refused(reply: Reply, code: str, words: str = "") -> None:
    assert reply.status == CODES[code], reply.words
    assert words in reply.words


# ---- requests in pieces ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("known", [False, True], ids=["first", "known"])
async def test_a_request_cut_anywhere(served: Serve, known: bool) -> None:
    body = infer_request(3)
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        if known:
            good(await client.infer(3), 3)
        for cut in range(len(body) + 1):
            number = client.ask(end=False)
            client.send(number, body[:cut])
            await client.flush()
            client.send(number, body[cut:], end=True)
            good((await client.over(number))[0], 3)


async def test_a_connection_byte_by_byte(served: Serve) -> None:
    async with served() as gateway, connected(gateway.addresses[0], greet=False) as client:
        numbers = [client.ask(INFER, infer_request(3)), client.ask(LIVE, framed(b"")), client.ask(end=False)]
        client.send(numbers[2], infer_request(3)[:7])
        await client.flush(1)
        client.send(numbers[2], infer_request(3)[7:], end=True)
        await client.flush(1)
        first, live, last = await client.over(*numbers)
        good(first, 3)
        good(last, 3)
        assert live.body == framed(b"\x08\x01")


BODIES = {
    "nothing": (b"", "UNIMPLEMENTED", "none came"),
    "half a prefix": (b"\0\0\0", "UNIMPLEMENTED", "ended too soon"),
    "half a message": (infer_request()[:-1], "UNIMPLEMENTED", "ended too soon"),
    "two": (infer_request() * 2, "UNIMPLEMENTED", "more than one came"),
    "one and a half": (infer_request() + b"\0", "UNIMPLEMENTED", "ended too soon"),
    "unknown flag": (framed(b"", 7), "INTERNAL", "unknown flag 7"),
    "compressed by nothing": (framed(b"", 1), "INTERNAL", "grpc-encoding names no compression"),
    "no message": (framed(b"\xff"), "INVALID_ARGUMENT", "are no inference.ModelInferRequest"),
    "too large": (b"\0\xff\xff\xff\xff", "RESOURCE_EXHAUSTED", "4294967295 bytes or more"),
}


@pytest.mark.parametrize("whole", [True, False], ids=["at once", "in parts"])
@pytest.mark.parametrize("name", BODIES)
async def test_not_exactly_one_request(served: Serve, name: str, whole: bool) -> None:
    body, code, words = BODIES[name]
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        good(await client.infer())
        number = client.ask(end=False)
        if not whole:
            await client.settled()
            client.send(number, body[:2])
            await client.settled()
            body = body[2:]
        if not client.replies[number].over:
            client.send(number, body, end=True)
        refused((await client.over(number))[0], code, words)
        good(await client.infer())


@pytest.mark.parametrize("path", [INFER, LIVE, STREAM, WATCH])
async def test_headers_and_nothing_else(served: Serve, path: str) -> None:
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        (reply,) = await client.over(client.ask(path))
        if path == STREAM:
            assert (reply.status, reply.body) == (0, b"")
        else:
            refused(reply, "UNIMPLEMENTED", "none came")


async def test_trailers_end_a_request(served: Serve) -> None:
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        number = client.ask(INFER, infer_request(), end=False)
        client.h2.send_headers(number, [("x-checksum", "1")], end_stream=True)
        good((await client.over(number))[0])


@pytest.mark.parametrize("known", [False, True])
async def test_the_bound_of_a_message_holds_however_it_comes(served: Serve, known: bool) -> None:
    """Also where one read holds a request whose headers were met before."""
    async with served(max_message_bytes=1000) as gateway, connected(gateway.addresses[0]) as client:
        if known:
            good(await client.infer())
        refused(await client.infer(2000), "RESOURCE_EXHAUSTED", "at most 1000 are read")


@pytest.mark.parametrize("size", [4, 200_000])
async def test_compressed_requests(served: Serve, size: int) -> None:
    body = framed(gzip.compress(infer_request(size)[5:]), 1)
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        for _ in range(2):
            good(await client.call(INFER, body, grpc_encoding="gzip"), size)
        refused(await client.call(INFER, body, grpc_encoding="deflate"), "INTERNAL", "cannot be read")
        refused(
            await client.call(INFER, body, grpc_encoding="snappy"), "UNIMPLEMENTED", "use gzip, deflate or identity"
        )


async def test_a_thousand_streams_of_one_connection(served: Serve) -> None:
    limits = settings_with(PATIENT, max_streams=1000)
    async with served(), served(http2=limits) as gateway, connected(gateway.addresses[0]) as client:
        gateway.inference.gate.clear()
        numbers = []
        for number in range(1000):
            numbers.append(client.ask(INFER, infer_request(id=str(number))))
            await client.flush()
        await gateway.inference.until(lambda: len(gateway.inference.requests) == 1000)
        assert gateway.frontend.load.calls.used == 1000
        gateway.inference.gate.set()
        replies = await client.over(*numbers)
        assert [infer_reply(bytes(reply.body)).id for reply in replies] == [str(number) for number in range(1000)]


# ---- given up --------------------------------------------------------------------------------------------------------
async def _headers_only(_: Any, client: Client) -> int:
    return client.ask(end=False)


async def _half(_: Any, client: Client) -> int:
    number = client.ask(end=False)
    client.send(number, infer_request(50_000)[:40_000])
    return number


async def _submitted(gateway: Any, client: Client) -> int:
    number = client.ask(INFER, infer_request(50_000, outputs=[{"name": "y"}]))
    await client.flush()
    await gateway.inference.until(lambda: gateway.inference.requests)
    return number


async def _answering(gateway: Any, client: Client) -> int:
    number = client.ask(LOAD, framed(b""))
    await client.flush()
    await gateway.inference.until(lambda: gateway.inference.loaded)
    return number


async def _streaming(gateway: Any, client: Client) -> int:
    number = client.ask(STREAM, infer_request(30_000) * 3 + infer_request(30_000)[:9], end=False)
    await client.flush()
    await gateway.inference.until(lambda: len(gateway.inference.requests) == 3)
    return number


async def _watching(_: Any, client: Client) -> int:
    number = client.ask(WATCH, framed(b""))
    await client.until(lambda: bool(client.replies[number].body))
    return number


STAGES = [_headers_only, _half, _submitted, _answering, _streaming, _watching]


@pytest.mark.parametrize("how", ["reset", "close", "abort"])
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__[1:])
async def test_a_call_given_up(served: Serve, stage: Any, how: str) -> None:
    async with served(inference=Slow()) as gateway:
        gateway.inference.gate.clear()
        async with connected(gateway.addresses[0]) as client:
            number = await stage(gateway, client)
            await client.settled()
            if how == "reset":
                client.h2.reset_stream(number, CANCEL)
                await client.settled()
            elif how == "abort":
                client.writer.transport.abort()
        expected = {"_submitted": 1, "_answering": 1, "_streaming": 3}.get(stage.__name__, 0)
        await gateway.inference.until(lambda: gateway.inference.cancelled == expected)
        await nothing_left(gateway)
        await until(lambda: not gateway.frontend._open)


async def test_a_request_that_is_refused_at_the_door_leaves_nothing(served: Serve) -> None:
    """The memory that it asked for is freed, too."""
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        for _ in range(3):
            body = infer_request(model="unknown", outputs=[{"name": "y"}])
            refused(await client.call(INFER, body), "NOT_FOUND", "'unknown' is not found")
        await nothing_left(gateway)


async def test_a_request_given_up_in_the_read_that_brought_it(served: Serve) -> None:
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        good(await client.infer())
        for path, body in ((INFER, infer_request()), (STREAM, infer_request()), (LOAD, framed(b""))):
            number = client.ask(path, body, end=path != STREAM)
            client.h2.reset_stream(number, CANCEL)
        good(await client.infer())


# ---- refusals, defects, deadlines ------------------------------------------------------------------------------------
class Broken(SimulatedInference):
    """Inference whose answer cannot be encoded."""

    async def infer(self, request: InferRequest) -> InferResponse:
        return InferResponse("m", "1", request.id, {"y": None})  # type: ignore[dict-item]


@pytest.mark.parametrize("path", [INFER, STREAM])
async def test_an_answer_that_cannot_be_encoded(served: Serve, path: str, caplog: pytest.LogCaptureFixture) -> None:
    async with served(inference=Broken()) as gateway, connected(gateway.addresses[0]) as client:
        for _ in range(2):
            reply = await client.call(path, infer_request())
            if path == INFER:
                refused(reply, "INTERNAL", "internal error")
            else:
                assert b"internal error" in reply.body
        assert "failed unexpectedly" in caplog.text


async def test_a_codec_with_a_defect(
    served: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        for owner, name in ((InferCodec, "encode"), (InferCodec, "decode_as"), (gateway.frontend.submission, "find")):
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, lambda *_, **__: 1 / 0)
                refused(await client.infer(), "INTERNAL", "internal error")
        good(await client.infer())
        assert caplog.text.count("ZeroDivisionError") == 3


async def test_an_engine_with_a_defect(served: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        gateway.inference.fault = ZeroDivisionError()  # type: ignore[assignment]
        refused(await client.infer(), "INTERNAL", "internal error")
        refused(await client.call(LOAD, framed(b"")), "INTERNAL", "internal error")
        gateway.inference.fault = RequestError(Fault.OVERLOADED, "busy", retry_after_s=0.25)
        reply = await client.infer()
        refused(reply, "UNAVAILABLE", "busy")
        assert reply.headers["grpc-retry-pushback-ms"] == "250"
        assert caplog.text.count("failed unexpectedly") == 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (INFER, infer_request()),
        (INFER, framed(gzip.compress(infer_request()[5:]), 1)),
        (LOAD, framed(b"")),
        (WATCH, framed(b"")),
        (STREAM, None),
    ],
    ids=["infer", "compressed", "task", "server stream", "stream"],
)
@pytest.mark.parametrize("timeout", ["0n", "20m"])
async def test_deadlines(served: Serve, path: str, body: bytes | None, timeout: str) -> None:
    async with served(inference=Slow()) as gateway, connected(gateway.addresses[0]) as client:
        gateway.inference.gate.clear()
        number = client.ask(path, body, end=path != STREAM, grpc_timeout=timeout, grpc_encoding="gzip")
        refused((await client.over(number))[0], "DEADLINE_EXCEEDED")


async def test_more_calls_than_there_may_be(served: Serve) -> None:
    async with served(max_concurrent_calls=2) as gateway, connected(gateway.addresses[0]) as client:
        gateway.inference.gate.clear()
        running = [client.ask(INFER, infer_request()), client.ask(STREAM, infer_request(), end=False)]
        await client.settled()
        for path, body in ((INFER, infer_request()), (LIVE, framed(b""))):
            refused(await client.call(path, body), "UNAVAILABLE", "[grpc] max_concurrent_calls")
        beyond = await client.call(STREAM, infer_request())  # a stream is open whatever calls there are
        assert (beyond.status, b"[grpc] max_concurrent_calls" in beyond.body) == (0, True)
        gateway.inference.gate.set()
        client.send(running[1], b"", end=True)
        assert all(reply.status == 0 for reply in await client.over(*running))
        good(await client.infer())


async def test_more_streams_than_there_may_be(served: Serve) -> None:
    limits = settings_with(PATIENT, max_streams=2)
    async with served(http2=limits) as gateway, connected(gateway.addresses[0], greet=False) as client:
        gateway.inference.gate.clear()
        numbers = [client.ask(INFER, infer_request()) for _ in range(3)]
        await client.until(lambda: client.replies[numbers[2]].over)
        assert client.replies[numbers[2]].reset == 7  # REFUSED_STREAM
        gateway.inference.gate.set()
        for reply in await client.over(*numbers[:2]):
            good(reply)


async def test_room_for_what_is_on_its_way(served: Serve) -> None:
    async with served(max_receiving_bytes=60_000) as gateway, connected(gateway.addresses[0]) as client:
        holding = client.ask(end=False)
        client.send(holding, infer_request(50_000)[:45_000])
        await client.settled()
        number = client.ask(INFER, infer_request(20_000)[:15_000], end=False)
        refused((await client.over(number))[0], "UNAVAILABLE", "[grpc] max_receiving_bytes")
        client.send(holding, infer_request(50_000)[45_000:], end=True)
        good((await client.over(holding))[0], 50_000)
        await nothing_left(gateway)


async def test_metadata_by_a_task(served: Serve) -> None:
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        reply = await client.call(METADATA, framed(b"\x0a\x0eidentity_uint8"))
        assert reply.status == 0
        assert Datatype.UINT8.label.encode() in reply.body
        refused(await client.call(METADATA, framed(b"\x0a\x01m")), "NOT_FOUND")
        refused(await client.call("/no/method", b""), "UNIMPLEMENTED", "unknown method '/no/method'")


async def test_a_connection_in_its_tls_handshake_gives_way_to_none() -> None:
    """The handshake has limits of its own; nothing of HTTP/2 exists yet."""
    server = Mock(settings=GrpcSettings())
    connection = GrpcConnection(server, Mock())
    assert not connection.idle
    assert not connection.half_open
