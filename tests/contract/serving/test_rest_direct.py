"""Direct requests over HTTP: which ones are, and that they are answered as all others, whatever comes when."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from typing import Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.wire.parser import Parser
from gateway.serving.frontends.http import direct
from gateway.serving.frontends.http.direct import BODY_BYTES, HEAD_BYTES, UPLOAD_BYTES, DirectConnection, RequestHead
from gateway.serving.frontends.peer import Peer
from gateway.serving.frontends.rest_v2.direct import DIRECT_ELEMENTS, DirectInference, InferExchange
from gateway.serving.frontends.rest_v2.requests import WHOLE_BYTES
from gateway.serving.frontends.rest_v2.settings import RestSettings
from tests.simulators.engine_rig import X, manifest, quick_rig
from tests.simulators.rest_gateway import Gateway, infer_body, serving

BODY = json.dumps(infer_body(1, 2)).encode()
TARGET = b"/v2/models/identity_fp32/infer"
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: gateway\r\n\r\n"


def post(*fields: bytes, body: bytes = BODY, target: bytes = TARGET, method: bytes = b"POST") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return method + b" " + target + b" HTTP/1.1\r\nHost: gateway\r\n" + b"".join(fields) + length + b"\r\n" + body


def asked(value: float) -> bytes:
    return post(body=json.dumps(infer_body(value)).encode())


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the status and content of the next response."""
    head = await reader.readuntil(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100"):
        head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().split(b"\r\ncontent-length: ")[1].split(b"\r")[0])
    return int(head.split()[1]), await reader.readexactly(size)


def value_of(content: bytes) -> float:
    return float(json.loads(content)["outputs"][0]["data"][0])


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[DirectInference, bytes]]:
    """Return a list of direct requests: the object that served each, and its body."""
    noted: list[tuple[DirectInference, bytes]] = []
    begin = DirectInference.begin

    def noting(self: DirectInference, connection: DirectConnection, route: Any, body: memoryview) -> Any:
        noted.append((self, bytes(body)))
        return begin(self, connection, route, body)

    monkeypatch.setattr(DirectInference, "begin", noting)
    monkeypatch.setattr(direct, "SPLIT_S", 60.0)  # a busy machine may read the rest of a body later than after a second
    return noted


@pytest.mark.asyncio
async def test_each_request_alone_in_its_read_is_direct(begun: list[tuple[DirectInference, bytes]]) -> None:
    async with serving() as gateway:
        reader, writer = await gateway.connect()
        for value in (1, 2.5, 3):
            writer.write(asked(value))
            assert value_of((await answer(reader))[1]) == value
        assert [json.loads(body)["inputs"][0]["data"] for _, body in begun] == [[1], [2.5], [3]]
        query = post(b"Traceparent: 0\r\n", target=TARGET + b"?a=/b&version=7")
        for request, count in ((LIVE, 3), (asked(4), 4), (post(b"X: y\r\n"), 5), (LIVE, 5), (query, 6)):
            writer.write(request)
            assert (await answer(reader))[0] == 200
            assert len(begun) == count
        writer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("body", [b"{", json.dumps(infer_body(1.5)).encode(), b'{"inputs": 5}'])
async def test_both_ways_answer_the_same(body: bytes, begun: list[tuple[DirectInference, bytes]]) -> None:
    async with serving(settings=RestSettings(cors_origins=("http://a",))) as gateway:
        reader, writer = await gateway.connect()
        said = []
        for field in (b"", b"Expect: none\r\n"):  # as an Expect of any kind takes the usual way
            writer.write(post(field, body=body))
            said.append(await reader.readuntil(b"\r\n\r\n"))
            said[-1] += await reader.readexactly(int(said[-1].split(b"content-length: ")[1].split(b"\r")[0]))
        assert set(said[1].split(b"\r\n")) == set(said[0].split(b"\r\n"))
        assert len(begun) == 1
        writer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(("content", "status"), [(infer_body(*[1.5] * 9_000), 200), (infer_body(*["x"] * 9_000), 400)])
async def test_a_larger_body_is_direct_and_decoded_in_steps(
    content: dict[str, Any], status: int, begun: list[tuple[DirectInference, bytes]]
) -> None:
    body = json.dumps(content).encode()
    assert WHOLE_BYTES < len(body) < BODY_BYTES
    async with serving() as gateway:
        reader, writer = await gateway.connect()
        for _ in range(2):
            writer.write(post(body=body))
            assert (await answer(reader))[0] == status
        assert [sent for _, sent in begun] == [body, body]
        inference = begun[0][0]
        assert (inference.requests.used, inference.ports.bodies.pool.used) == (0, 0)
        writer.close()


@pytest.mark.asyncio
async def test_who_does_not_take_answers_is_not_served_directly(begun: list[tuple[DirectInference, bytes]]) -> None:
    async with serving() as gateway:
        reader, writer = await gateway.connect()
        writer.write(asked(0))
        await answer(reader)
        (connection,) = gateway.frontend._connections._keys
        connection.pause_writing()
        writer.write(asked(1))
        await gateway.inference.until(lambda: len(gateway.inference.requests) == 2)
        assert len(begun) == 1
        connection.resume_writing()
        assert value_of((await answer(reader))[1]) == 1
        writer.close()


USUAL = {
    "a fragment": post(target=TARGET + b"?a=b#c"),
    "an escape": post(target=TARGET.replace(b"_", b"%5f")),
    "another method": post(method=b"PUT"),
    "another path": post(target=b"/v2/repository/index", body=b""),
    "a page": post(b"Origin: http://gateway\r\n"),
    "an expectation": post(b"Expect: 100-continue\r\n"),
    "the end": post(b"Connection: close\r\n"),
    "a coding": post(b"Content-Encoding: identity\r\n"),
    "a field twice": post(b"X: y\r\n", b"X: y\r\n"),
    "the length twice": post(b"Content-Length: %d\r\n" % len(BODY)),
    "an older version": post().replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a folded field": post(b"X: y\r\n z\r\n"),
    "a bare line feed": post(b"X: y\n"),
    "a blank before the colon": post(b"X : y\r\n"),
    "no host": post().replace(b"Host: gateway\r\n", b""),
    "two requests": post() + post(),
    "a large head": post(b"X: " + b"y" * HEAD_BYTES + b"\r\n"),
    "a large body": post(body=BODY + b" " * BODY_BYTES),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", USUAL)
async def test_what_takes_the_usual_way(name: str, begun: list[tuple[DirectInference, bytes]]) -> None:
    async with serving() as gateway:
        for _ in range(3):
            reader, writer = await gateway.connect()
            for _ in range(3):  # each alone in its read: those in a row are never direct
                writer.write(USUAL[name])
                status, _ = await answer(reader)
                if status == 400 or name in {"the end", "an older version"}:
                    break
            writer.close()
    assert not begun


names = st.sampled_from([b"X", b"Accept", b"Content-Length", b"Connection", b"Host", b"Transfer-Encoding", b"X\t"])
values = st.sampled_from([b"1", b"2", b" 1", b"keep-alive", b"close", b"chunked", b"", b"y\0", b"y\r\n z", b"y\nz"])
heads = st.builds(
    lambda fields, end: TARGET.join([b"POST ", b" HTTP/1.1\r\n"]) + b"".join(fields) + end,
    st.lists(st.builds(lambda name, value: name + b":" + value + b"\r\n", names, values), max_size=5),
    st.sampled_from([b"Host: a\r\nContent-Length: 7\r\n\r\n", b"Content-Length: 7\r\n\r\n", b"Host: a\r\n\r\n"]),
)


class Anything:
    """Route that takes whatever the connection passes on."""

    def route(self, *head: object) -> object:
        return head


@given(heads)
def test_a_head_is_what_the_parser_makes_of_it(text: bytes) -> None:
    head = RequestHead.of(text, Anything())  # type: ignore[arg-type]
    if head.route is None:
        return
    parser = Parser(16_384)
    parser.receive_data(text + b"body")
    parser.begin_slice()
    request = parser.next_event()
    assert isinstance(request, h11.Request)
    fields = dict(request.headers)
    assert head.route == (request.method.decode(), request.target.decode(), fields)
    assert fields[b"content-length"] == b"%d" % head.length
    assert not {b"transfer-encoding", b"expect", b"upgrade"} & fields.keys()


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [1, 7, 60, 131, 200, 10_000])
async def test_requests_in_pieces_and_in_a_row_are_answered_in_order(size: int) -> None:
    async with serving() as gateway:
        reader, writer = await gateway.connect()
        words = b"".join(asked(value) for value in range(20))
        for begin in range(0, len(words), size):
            writer.write(words[begin : begin + size])
            await asyncio.sleep(0)
        assert [value_of((await answer(reader))[1]) for _ in range(20)] == list(range(20))
        writer.close()


async def direct_one(gateway: Gateway, value: float = 1.0) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection on which a direct request waits for inference."""
    reader, writer = await gateway.connect()
    writer.write(asked(0))
    await answer(reader)
    gateway.inference.gate.clear()
    gateway.inference.requests.clear()
    writer.write(asked(value))
    await gateway.inference.until(lambda: bool(gateway.inference.requests))
    return reader, writer


@pytest.mark.asyncio
async def test_what_comes_before_the_answer_waits(begun: list[tuple[DirectInference, bytes]]) -> None:
    async with serving() as gateway:
        reader, writer = await direct_one(gateway)
        writer.write(asked(2) + LIVE + asked(3)[:50])
        await writer.drain()
        gateway.inference.gate.set()
        assert value_of((await answer(reader))[1]) == 1
        assert value_of((await answer(reader))[1]) == 2
        assert json.loads((await answer(reader))[1]) == {"live": True}
        writer.write(asked(3)[50:])
        assert value_of((await answer(reader))[1]) == 3
        writer.close()


@pytest.mark.asyncio
async def test_who_leaves_cancels_and_leaves_nothing(begun: list[tuple[DirectInference, bytes]]) -> None:
    async with serving() as gateway:
        _, writer = await direct_one(gateway)
        writer.transport.abort()
        await gateway.inference.until(lambda: gateway.inference.cancelled == 1)
        gateway.inference.gate.set()
        (inference, _), *_ = begun
        assert (inference.requests.used, inference.ports.bodies.pool.used) == (0, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("grace_s", [20.0, 0.01])
async def test_a_stop_waits_for_the_answer_or_gives_one(grace_s: float) -> None:
    async with serving() as gateway:
        reader, writer = await direct_one(gateway)
        stopping = asyncio.ensure_future(gateway.frontend.stop(grace_s))
        if grace_s > 1:
            await asyncio.sleep(0)
            gateway.inference.gate.set()
        status, content = await answer(reader)
        assert status == (200 if grace_s > 1 else 503)
        assert grace_s > 1 or b"is stopping" in content
        assert await reader.read() == b""
        await stopping
        writer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("field", [b"", b"Expect: none\r\n"], ids=["direct", "usual"])
async def test_a_stop_waits_for_the_rest_of_a_request(field: bytes) -> None:
    request = post(field, body=json.dumps(infer_body(*[1.0] * 9_000)).encode())
    async with serving() as gateway:
        reader, writer = await gateway.connect()
        writer.write(request[:400])
        await until_read(gateway)
        stopping = asyncio.ensure_future(gateway.frontend.stop(20.0))
        await asyncio.sleep(0)
        writer.write(request[400:])
        assert (await answer(reader))[0] == 200
        assert await reader.read() == b""
        await stopping
        writer.close()


async def until_read(gateway: Gateway) -> None:
    """Wait until the only connection has read something."""
    while not (connections := list(gateway.frontend._connections._keys)):
        await asyncio.sleep(0.01)
    (connection,) = connections
    while not (connection._early or connection.cycle):
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
@pytest.mark.parametrize("field", [b"", b"Expect: none\r\n"], ids=["direct", "usual"])
async def test_both_ways_bound_a_body(field: bytes) -> None:
    async with serving(settings=RestSettings(max_body_bytes=1_000)) as gateway:
        reader, writer = await gateway.connect()
        writer.write(post(field, body=json.dumps(infer_body(*[1.0] * 900)).encode()))
        assert (await answer(reader))[0] == 413
        writer.close()


@pytest.mark.asyncio
async def test_a_request_that_has_begun_keeps_its_connection() -> None:
    async with serving() as gateway:
        reader, writer = await gateway.connect()
        writer.write(LIVE)
        assert (await answer(reader))[0] == 200
        (connection,) = gateway.frontend._connections._keys
        writer.write(asked(1)[:-5])
        while not connection._early:
            await asyncio.sleep(0.01)
        assert connection.timeout_keep_alive_task is None
        writer.write(asked(1)[-5:])
        assert (await answer(reader))[0] == 200
        writer.close()


@pytest.mark.asyncio
async def test_a_stop_puts_no_second_answer_into_one_that_is_being_sent(
    begun: list[tuple[DirectInference, bytes]],
) -> None:
    large = post(body=json.dumps(infer_body(*[1.0] * (DIRECT_ELEMENTS + 1))).encode())
    async with serving() as gateway:
        reader, writer = await gateway.connect()
        writer.write(large)
        await answer(reader)
        gateway.inference.gate.clear()
        writer.write(large)
        await gateway.inference.until(lambda: len(gateway.inference.requests) == 2)
        (connection,) = gateway.frontend._connections._keys
        connection.pause_writing()
        gateway.inference.gate.set()
        assert (await reader.readuntil(b"\r\n")).endswith(b"200 OK\r\n")
        await gateway.frontend.stop(0.01)
        with suppress(ConnectionError):
            assert b"HTTP/1.1" not in await reader.read()
        (inference, _), *_ = begun
        assert (inference.requests.used, inference.ports.bodies.pool.used) == (0, 0)
        writer.close()


@pytest.mark.asyncio
async def test_a_connection_is_kept_for_so_long() -> None:
    async with serving(settings=RestSettings(keep_alive_s=1)) as gateway:
        reader, writer = await gateway.connect()
        for value in range(3):
            writer.write(asked(value))
            await answer(reader)
        assert await reader.read() == b""
        writer.close()


@pytest.mark.asyncio
async def test_a_body_that_does_not_come_is_refused_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "SPLIT_S", 0.05)
    async with serving(settings=RestSettings(body_timeout_s=0.2)) as gateway:
        reader, writer = await gateway.connect()
        writer.write(asked(1))
        await answer(reader)
        writer.write(asked(1)[:-5])
        assert (await answer(reader))[0] == 408
        writer.close()


# ---- large bodies ----------------------------------------------------------------------------------------------------
LARGE = json.dumps(infer_body(*[1.5] * 40_000)).encode()
RAW = bytes(range(256)) * 1024
BINARY_HEAD = json.dumps(
    {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [1, len(RAW) // 4], "parameters": {"binary_data_size": len(RAW)}}
        ],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }
).encode()
BINARY = b"Inference-Header-Content-Length: %d\r\n" % len(BINARY_HEAD), BINARY_HEAD + RAW


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[InferExchange | None]:
    """Return a list of the exchanges of large bodies; None for each that takes the usual way."""
    noted: list[InferExchange | None] = []
    original = DirectInference.open

    def noting(self: DirectInference, *head: Any) -> InferExchange | None:
        noted.append(original(self, *head))
        return noted[-1]

    monkeypatch.setattr(DirectInference, "open", noting)
    monkeypatch.setattr(direct, "SPLIT_S", 60.0)
    return noted


def nothing_is_held(gateway: Gateway) -> bool:
    return (gateway.frontend.requests.used, gateway.frontend.request_bytes.used) == (0, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [1_000, 70_000, 10_000_000])
@pytest.mark.parametrize(("field", "body"), [(b"", LARGE), BINARY], ids=["JSON", "binary"])
async def test_large_bodies_are_direct_and_answered_as_usual(
    size: int, field: bytes, body: bytes, opened: list[InferExchange | None]
) -> None:
    async with serving() as gateway:
        reader, writer = await gateway.connect()
        said = []
        for more in (b"", b"", b"Expect: none\r\n"):
            words = post(field, more, body=body)
            for begin in range(0, len(words), size):
                writer.write(words[begin : begin + size])
                await asyncio.sleep(0)
            said.append(await answer(reader))
        assert said[0] == said[1] == said[2]
        assert said[0][0] == 200
        assert len(opened) == 2
        assert all(opened)
        assert nothing_is_held(gateway)
        writer.close()


@pytest.mark.asyncio
async def test_a_body_takes_the_memory_of_what_was_received_and_is_counted(
    opened: list[InferExchange | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gateway.serving.frontends.http.connection.peer_of", lambda _: Peer("192.0.2.7")
    )  # callers on this device reserve
    async with serving() as gateway:
        pool, writers = gateway.frontend.request_bytes, list[asyncio.StreamWriter]()
        tracemalloc.start()
        for count in range(1, 9):
            writers.append((await gateway.connect())[1])
            writers[-1].write(post(body=b"").replace(b"Length: 0", b"Length: %d" % UPLOAD_BYTES))
            while len(opened) < count:
                await asyncio.sleep(0.01)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert all(opened)
        assert (pool.used, peak_bytes < UPLOAD_BYTES) == (0, True)
        for writer in writers:
            writer.write(bytes(300_000))
        while pool.used < len(writers) * 300_000:
            await asyncio.sleep(0.01)
        assert [len(each.body) for each in opened if each is not None] == [300_000] * len(writers)
        for writer in writers:
            writer.transport.abort()
        while not nothing_is_held(gateway):
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_what_follows_a_large_body_waits_for_its_answer(opened: list[InferExchange | None]) -> None:
    async with serving() as gateway:
        reader, writer = await gateway.connect()
        writer.write(post(body=LARGE) + asked(2) + LIVE + post(body=LARGE) + asked(3))
        assert len((await answer(reader))[1]) > len(LARGE) / 2
        assert value_of((await answer(reader))[1]) == 2
        assert json.loads((await answer(reader))[1]) == {"live": True}
        assert (await answer(reader))[0] == 200
        assert value_of((await answer(reader))[1]) == 3
        writer.close()


@pytest.mark.asyncio
async def test_what_follows_a_large_body_is_not_counted_in_it(
    opened: list[InferExchange | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    hold = InferExchange.hold
    monkeypatch.setattr(InferExchange, "hold", lambda self, size: held.append(size) or hold(self, size))  # type: ignore[func-returns-value]
    async with serving() as gateway:
        reader, writer = await gateway.connect()
        writer.write(post(body=LARGE) + asked(2) * 50)
        assert (await answer(reader))[0] == 200
        assert value_of((await answer(reader))[1]) == 2
        assert (len(opened), sum(held)) == (1, len(LARGE))
        writer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("settings", "body", "target", "status"),
    [
        (RestSettings(max_body_bytes=100_000), LARGE, TARGET, 413),
        (RestSettings(), LARGE, b"/v2/models/unknown/infer", 404),
        (RestSettings(), LARGE.replace(b"1.5]", b"x]"), TARGET, 400),
        (RestSettings(), LARGE.replace(b"1.5]", b"1.5, 1]"), TARGET, 400),
        (RestSettings(max_requests=1, body_timeout_s=0.2), LARGE, TARGET, 503),
        (RestSettings(max_buffered_bytes=100_000, max_body_bytes=1_000_000, body_timeout_s=0.2), LARGE, TARGET, None),
    ],
    ids=["too large", "unknown", "no JSON", "one too many", "too many requests", "too much memory"],
)
@pytest.mark.parametrize("local", [True, False])
async def test_large_bodies_are_refused_in_the_same_words(
    settings: RestSettings,
    body: bytes,
    target: bytes,
    status: int | None,
    *,
    local: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Peer, "local", local)
    said = []
    for field in (b"", b"Expect: none\r\n"):
        async with serving(settings=settings) as gateway:
            _, busy = await gateway.connect()
            if settings.max_requests == 1:
                gateway.inference.gate.clear()
                busy.write(asked(1))
                await gateway.inference.until(lambda: bool(gateway.inference.requests))
            reader, writer = await gateway.connect()
            writer.write(post(field, body=body, target=target))
            code, content = await answer(reader)
            said.append((code, re.sub(rb"needs \d+", b"needs", content)))  # of what came with the first read
            gateway.inference.gate.set()
            writer.close()
            busy.close()
    assert said[0] == said[1]
    assert status in {said[0][0], None}
    assert said[0][0] >= 400


@pytest.mark.asyncio
async def test_a_large_body_that_does_not_come_takes_the_usual_way(
    opened: list[InferExchange | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "SPLIT_S", 0.05)
    async with serving(settings=RestSettings(body_timeout_s=0.3)) as gateway:
        reader, writer = await gateway.connect()
        writer.write(post(body=LARGE)[:100_000])
        assert (await answer(reader))[0] == 408
        assert len(opened) == 1
        assert nothing_is_held(gateway)
        writer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("late", [False, True])
async def test_a_slow_large_body_is_answered(
    late: bool, opened: list[InferExchange | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "SPLIT_S", 0.05 if late else 60.0)
    async with serving() as gateway:
        reader, writer = await gateway.connect()
        words = post(body=LARGE)
        writer.write(words[:100_000])
        while not opened:
            await asyncio.sleep(0.01)
        (connection,) = gateway.frontend._connections._keys
        assert not connection.idle
        while (connection._upload is None) is not late:
            await asyncio.sleep(0.01)
        writer.write(words[100_000:])
        assert (await answer(reader))[0] == 200
        assert nothing_is_held(gateway)
        writer.close()


@pytest.mark.asyncio
async def test_who_leaves_within_a_large_body_leaves_nothing(opened: list[InferExchange | None]) -> None:
    async with serving() as gateway:
        _, writer = await gateway.connect()
        writer.write(post(body=LARGE)[:100_000])
        while not opened:
            await asyncio.sleep(0.01)
        assert gateway.frontend.requests.used == 1
        writer.transport.abort()
        while not nothing_is_held(gateway):
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_stop_waits_for_the_rest_of_a_large_body(opened: list[InferExchange | None]) -> None:
    words = post(body=LARGE)
    async with serving() as gateway:
        reader, writer = await gateway.connect()
        writer.write(words[:100_000])
        while not opened:
            await asyncio.sleep(0.01)
        stopping = asyncio.ensure_future(gateway.frontend.stop(20.0))
        await asyncio.sleep(0)
        writer.write(words[100_000:])
        assert (await answer(reader))[0] == 200
        assert await reader.read() == b""
        await stopping
        assert nothing_is_held(gateway)
        writer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("count", [2, WHOLE_BYTES])
async def test_an_answered_request_waits_for_no_search_for_garbage(count: int) -> None:
    rig = await quick_rig(manifest(inputs=(replace(X, shape=(-1, -1)),)))
    rig.session.run = lambda inputs: {"y": inputs["x"][:, :1].copy()}  # type: ignore[method-assign]
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, count], "data": [1.0] * count}
    request = post(body=json.dumps({"inputs": [tensor]}).encode(), target=b"/v2/models/m/infer")
    async with serving(inference=rig.engine) as gateway:  # type: ignore[arg-type]
        reader, writer = await gateway.connect()
        gc.collect()
        gc.disable()
        try:
            for _ in range(4):
                writer.write(request)
                assert (await answer(reader))[0] == 200
            for _ in range(5):
                await asyncio.sleep(0)
            assert not [each for each in gc.get_objects() if isinstance(each, InferExchange)]
        finally:
            gc.enable()
        writer.close()
