"""Bodies within bounds, whatever way they arrive."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import threading
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import STEP_BYTES, finish
from gateway.serving.engine import decode_pool
from gateway.serving.engine.decode_pool import DecodePool
from gateway.serving.engine.settings import EngineSettings
from gateway.serving.frontends.http.admission import Admitted
from gateway.serving.frontends.http.body import (
    COMPRESSED_BYTES,
    COUNTED_BYTES,
    BodyReader,
    ClientGone,
    Inflation,
    Lease,
    Most,
    accepted_encoding,
    compress_steps,
)
from gateway.serving.frontends.http.bounds import SlowBody
from gateway.serving.frontends.pools import Pools
from gateway.serving.frontends.rest_v2.settings import RestSettings
from gateway.serving.frontends.settings import ShareSettings

PACKED: Mapping[str, Callable[[bytes], bytes]] = {"identity": bytes, "gzip": gzip.compress, "deflate": zlib.compress}
ADMITTED = Admitted("ann", "token:ann", local=True)
LIMIT = 1000


def receiving(parts: Sequence[bytes], *, ends: bool = True) -> Callable[[], Awaitable[Mapping[str, Any]]]:
    """Return an ASGI receive that hands over `parts`; then the client leaves, or is done."""
    left = list(parts)

    async def receive() -> Mapping[str, Any]:
        if left:
            part = left.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(left) or not ends}
        return {"type": "http.disconnect"}

    return receive


def reader_of(settings: RestSettings) -> BodyReader:
    pool = Pools().make_bytes("http request bytes", "", settings.max_buffered_bytes)
    return BodyReader(settings, pool, DecodePool(EngineSettings()))


def read(parts: Sequence[bytes], headers: Mapping[str, str] | None = None, *, ends: bool = True) -> bytes:
    reader = reader_of(RestSettings(max_body_bytes=LIMIT))
    with reader.lease(ADMITTED) as lease:
        body = bytes(asyncio.run(reader.read(receiving(parts, ends=ends), headers or {}, lease)))
    assert reader.pool.used == 0
    return body


def cut(content: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(content) + 1) for place in places), len(content)]
    return [content[a:b] for a, b in itertools.pairwise(edges)]


@given(st.binary(max_size=LIMIT - 100), st.lists(st.integers(0, 2000), max_size=5), st.sampled_from(sorted(PACKED)))
def test_a_body_is_the_same_however_it_is_cut_and_packed(body: bytes, places: list[int], encoding: str) -> None:
    assert read(cut(PACKED[encoding](body), places), {"content-encoding": encoding}) == body


@pytest.mark.parametrize("size", [LIMIT, LIMIT + 1])
@pytest.mark.parametrize("encoding", PACKED)
@pytest.mark.parametrize("pieces", [1, 7])
def test_the_limit_is_exact(size: int, encoding: str, pieces: int) -> None:
    parts = cut(PACKED[encoding](bytes(size)), [k * 150 for k in range(1, pieces)])
    if size == LIMIT:
        assert len(read(parts, {"content-encoding": encoding})) == LIMIT
    else:
        with pytest.raises(RequestError) as caught:
            read(parts, {"content-encoding": encoding})
        assert caught.value.fault is Fault.TOO_LARGE


def test_a_bomb_is_never_unpacked_beyond_the_limit() -> None:
    inflate, body = Inflation("gzip", Most(LIMIT)), bytearray()
    with pytest.raises(RequestError, match="decompressed"):
        finish(inflate.steps(gzip.compress(bytes(100_000_000)), body))
    assert body == b""


@pytest.mark.parametrize("size", [0, 1, STEP_BYTES - 1, STEP_BYTES, STEP_BYTES + 1, 4 * STEP_BYTES])
def test_a_body_is_unpacked_in_steps(size: int) -> None:
    inflate, body = Inflation("gzip", Most(size)), bytearray()
    sizes = [0, *(len(body) for _ in inflate.steps(gzip.compress(bytes(size)), body)), size]
    inflate.finish()
    assert bytes(body) == bytes(size)
    assert all(after - before <= STEP_BYTES for before, after in itertools.pairwise(sizes))


def test_a_body_counts_as_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    grown, part = [0], Inflation._part

    def noted(self: Inflation, chunk: bytes, limit: int) -> bytes:
        plain = part(self, chunk, limit)
        grown[0] += len(plain)
        return plain

    monkeypatch.setattr(Inflation, "_part", noted)
    reader = reader_of(RestSettings(max_buffered_bytes=4 * COUNTED_BYTES))
    bomb = receiving([gzip.compress(bytes(60_000_000))])
    with reader.lease(ADMITTED) as lease, pytest.raises(RequestError, match="http request bytes"):
        asyncio.run(reader.read(bomb, {"content-encoding": "gzip"}, lease))
    assert grown[0] <= 5 * COUNTED_BYTES
    assert reader.pool.used == 0


def test_a_client_that_leaves_is_not_an_empty_body() -> None:
    with pytest.raises(ClientGone):
        read([b"ab"], ends=False)


def test_a_body_has_its_time() -> None:
    async def never() -> Mapping[str, Any]:
        await asyncio.Event().wait()
        return {}

    reader = reader_of(RestSettings(body_timeout_s=0.01))
    with reader.lease(ADMITTED) as lease, pytest.raises(SlowBody):
        asyncio.run(reader.read(never, {}, lease))


@given(st.binary(min_size=1, max_size=200), st.sampled_from(["gzip", "deflate"]))
def test_garbage_is_invalid(garbage: bytes, encoding: str) -> None:
    with pytest.raises(RequestError) as caught:
        read([garbage], {"content-encoding": encoding})
    assert caught.value.fault in {Fault.INVALID, Fault.TOO_LARGE}


@pytest.mark.parametrize("length", ["", "abc", "-5", "٣", "1" * 5000])
def test_a_strange_content_length_is_no_crash(length: str) -> None:
    with pytest.raises((RequestError, ClientGone)):
        read([], {"content-length": length}, ends=False)


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        ("", "identity"),
        ("*", "identity"),
        ("gzip", "gzip"),
        ("deflate, gzip;q=1.0", "gzip"),
        ("GZIP ; q=0, deflate", "deflate"),
        ("gzip;q=0.000", "identity"),
        (",;,", "identity"),
    ],
)
def test_what_the_caller_accepts(accept: str, encoding: str) -> None:
    assert accepted_encoding(accept) == encoding


@given(st.lists(st.binary(max_size=100), max_size=20), st.integers(1, 3000), st.sampled_from(["gzip", "deflate"]))
def test_what_is_compressed_is_in_the_format_it_says(pieces: list[bytes], times: int, encoding: str) -> None:
    pieces = [piece * times for piece in pieces]
    unpack = gzip.decompress if encoding == "gzip" else zlib.decompress
    assert unpack(finish(compress_steps(pieces, encoding, 1))) == b"".join(pieces)
    assert len(list(compress_steps(pieces, encoding, 1))) <= sum(map(len, pieces)) // COMPRESSED_BYTES + 1


def test_nothing_is_inflated_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = [str(threading.current_thread().name)]
    part = Inflation._part

    def noted(self: Inflation, chunk: bytes, limit: int) -> bytes:
        threads.append(threading.current_thread().name)
        return part(self, chunk, limit)

    monkeypatch.setattr(Inflation, "_part", noted)
    assert read([gzip.compress(b"body")], {"content-encoding": "gzip"}) == b"body"
    assert threads == ["MainThread", "decode 1"]


def test_callers_take_turns_at_threads_that_inflate(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with a hundred compressed bodies delays another by one slice of time, not by a hundred bodies."""
    monkeypatch.setattr(decode_pool, "SLICE_NS", 0)
    body, begin, order = gzip.compress(bytes(3 * STEP_BYTES)), threading.Event(), list[str]()
    reader = reader_of(RestSettings())

    async def one(caller: str) -> None:
        with reader.lease(Admitted(caller, caller, local=True)) as lease:
            await reader.read(receiving([body]), {"content-encoding": "gzip"}, lease)
        order.append(caller)

    async def all_of_them() -> None:
        jobs = [asyncio.ensure_future(one(caller)) for caller in ["ann"] * 100 + ["bob"]]
        await asyncio.sleep(0)
        begin.set()
        await asyncio.gather(*jobs)

    part = Inflation._part
    monkeypatch.setattr(Inflation, "_part", lambda *given: begin.wait() and part(*given))
    asyncio.run(all_of_them())
    assert order.index("bob") <= 2


def test_a_reader_without_threads_inflates_at_once() -> None:
    settings = RestSettings(max_body_bytes=LIMIT)
    reader = BodyReader(settings, reader_of(settings).pool)
    with reader.lease(ADMITTED) as lease:
        parts = receiving([gzip.compress(b"body")])
        assert asyncio.run(reader.read(parts, {"content-encoding": "gzip"}, lease)) == b"body"


def test_bodies_of_this_device_wait_in_their_order_and_keep_no_other_caller_waiting() -> None:
    size, order = 100, list[str]()
    pool = Pools(ShareSettings(local_percent=0)).make_bytes("bytes", "", 607)  # 33 %: 2 * size
    reader = BodyReader(RestSettings(), pool)

    async def one(name: str, caller: str) -> None:
        with reader.lease(Admitted(caller, f"user:{caller}", local=True)) as lease:
            await reader.read(receiving([bytes(size)]), {"content-length": str(size)}, lease)
            order.append(name)
            await asyncio.sleep(0)

    async def all_of_them() -> None:
        held = Lease(reader, Admitted("ann", "user:ann", local=True))
        held.take(1)
        jobs = [asyncio.ensure_future(one(f"ann {n}", "ann")) for n in range(3)]
        await asyncio.sleep(0)
        await one("bob", "bob")
        assert order == ["bob"]
        held.become(0)
        await asyncio.gather(*jobs)

    asyncio.run(all_of_them())
    assert order == ["bob", "ann 0", "ann 1", "ann 2"]
    assert not pool.used
