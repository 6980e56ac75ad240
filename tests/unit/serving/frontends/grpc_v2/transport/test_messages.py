"""Messages out of bodies chunked anyhow, and what they may take of memory until they are taken."""

from __future__ import annotations

import asyncio
import gzip
import random
import struct
import zlib
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import ALIGNED_BYTES, finish
from gateway.serving.frontends.grpc_v2.calls import CallInfo
from gateway.serving.frontends.grpc_v2.codec.patterns import Raw
from gateway.serving.frontends.grpc_v2.service import message_memory
from gateway.serving.frontends.grpc_v2.service.message_memory import MESSAGE_BYTES, MessageMemory
from gateway.serving.frontends.grpc_v2.transport import messages
from gateway.serving.frontends.grpc_v2.transport.messages import (
    BEGINNING_BYTES,
    Incoming,
    ReceivedMessage,
    inflate_steps,
)
from tests.simulators.infer_messages import message_memory_of

LIMIT_BYTES = 100_000
SIZES = st.sampled_from([0, 1, 4, 5, 6, 300, 4096, 20_000])
GZIP, DEFLATE = 31, 15
BODY = bytes(range(256)) * 80


def framed(content: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(content)) + content


def incoming(room: MessageMemory | None = None, lead: int = 0) -> Incoming:
    return Incoming(LIMIT_BYTES, room or message_memory_of(10 * LIMIT_BYTES), lambda _: lead, CallInfo())


def fed(to: Incoming, payload: bytes, now_ns: int = 1) -> list[ReceivedMessage]:
    return list(to.feed((memoryview(payload),), now_ns))


def contents(messages: list[ReceivedMessage]) -> list[tuple[bytes, bool]]:
    return [(bytes(each.content), each.compressed) for each in messages]


def refused(to: Incoming, payload: bytes, fault: Fault) -> str:
    with pytest.raises(RequestError) as caught:
        fed(to, payload)
    assert caught.value.fault is fault
    return caught.value.message


@pytest.mark.asyncio
async def test_memory_of_large_messages_is_used_again_once_no_view_is_left() -> None:
    room = message_memory_of(100 * message_memory.LARGE_BYTES)
    size = message_memory.LARGE_BYTES

    def address(memory: memoryview) -> int:
        return int(np.frombuffer(memory, np.uint8).ctypes.data) // 4096

    first, _ = room.take(size, 0, CallInfo())
    array, place = np.frombuffer(first[10:20], np.uint8), address(first)
    del first
    held, _ = room.take(size, 0, CallInfo())
    assert address(held) != place, "an array reads it"
    del array
    again, _ = room.take(size, 0, CallInfo())
    assert address(again) == place
    assert len(room._spare) == 0
    del again, held
    assert len(room._spare) == 2
    room._drop()
    assert not room._spare
    late, _ = room.take(size, 0, CallInfo())
    room._drop()
    del late
    assert not room._spare, "nothing would return it to the system"
    assert not room.used_bytes


@pytest.mark.parametrize("size", [1000, message_memory.LARGE_BYTES])
@pytest.mark.parametrize(
    "viewed",
    [
        lambda memory: np.ndarray((4, 5), np.float32, memory, 16),
        lambda memory: np.ndarray((4, 5), np.float32, memory[16:96])[1:3].reshape(5, 2),
        lambda memory: np.frombuffer(memory[16:96], np.float32).reshape(4, 5)[:, 1:],
        lambda memory: np.asarray(memory)[16:96].view(np.float32),
    ],
)
@pytest.mark.asyncio
async def test_memory_is_kept_and_counted_until_no_array_over_it_is_left(
    viewed: Callable[[memoryview], np.ndarray[Any, Any]], size: int
) -> None:
    room = message_memory_of(100 * message_memory.LARGE_BYTES)
    memory, _ = room.take(size, 0, CallInfo(), filled=size)
    memory[:] = bytes(size)
    array = viewed(memory)
    del memory
    other, _ = room.take(size, 0, CallInfo())
    other[:] = b"\1" * size
    assert room.used_bytes == size + MESSAGE_BYTES
    assert not array.any()
    del array
    assert room.used_bytes == 0


@pytest.mark.asyncio
async def test_other_threads_may_be_the_last_to_hold_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    room, threads = message_memory_of(100 * message_memory.LARGE_BYTES), set[int]()
    give = room.pool.give
    monkeypatch.setattr(type(room.pool), "give", lambda _, *key, **how: threads.add(get_ident()) or give(*key, **how))
    for size in (1000, message_memory.LARGE_BYTES):
        held = [room.take(size, 0, CallInfo(), filled=size)[0]]
        await asyncio.to_thread(held.clear)
    await asyncio.sleep(0)
    assert room.used_bytes == 0
    assert threads == {get_ident()}
    assert len(room._spare) == 1
    room._drop()


# ---- putting together ------------------------------------------------------------------------------------------------
@given(st.lists(st.tuples(SIZES, st.booleans()), max_size=5), st.data())
def test_chunks_do_not_matter(sizes: list[tuple[int, bool]], data: st.DataObject) -> None:
    sent = [(BODY[:size], flag) for size, flag in sizes]
    body = b"".join(framed(content, flag) for content, flag in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    room = message_memory_of(10 * LIMIT_BYTES)
    to, got = incoming(room), []
    for start, stop in zip([0, *cuts], [*cuts, len(body)], strict=True):
        chunk, place = bytearray(body[start:stop]), data.draw(st.integers(0, stop - start))
        got += to.feed((memoryview(chunk)[:place], memoryview(chunk)[place:]), 1)
        chunk[:] = b"\xa5" * len(chunk)  # parts are lent
    assert contents(got) == sent
    assert (to.missing, to.begun_ns) == (0, None)
    assert room.used_bytes == sum(size + MESSAGE_BYTES for size, _ in sizes)
    got.clear()
    assert room.used_bytes == 0


def test_byte_by_byte() -> None:
    to = incoming()
    body = framed(b"") + framed(b"ab", 1) + framed(b"c")
    got = [message for byte in body for message in fed(to, bytes([byte]))]
    assert contents(got) == [(b"", False), (b"ab", True), (b"c", False)]


def test_what_is_missing_and_since_when() -> None:
    to = incoming()
    assert (to.begun_ns, to.missing) == (None, 0)
    fed(to, b"", 5)
    assert to.begun_ns is None
    fed(to, framed(bytes(10))[:3], 6)
    assert (to.begun_ns, to.missing) == (6, 0)
    fed(to, framed(bytes(10))[3:9], 7)
    assert (to.begun_ns, to.missing) == (6, 6)
    fed(to, bytes(6), 8)
    assert (to.begun_ns, to.missing) == (None, 0)
    fed(to, bytes(1), 9)
    assert to.begun_ns == 9


@pytest.mark.parametrize("lead", [0, 1, 7, 63, 64, 1000])
@pytest.mark.parametrize("size", [1001, 50_000])
def test_messages_lie_so_that_their_tensor_is_aligned(lead: int, size: int) -> None:
    memory, _ = message_memory_of(LIMIT_BYTES).take(size, lead, CallInfo())
    assert len(memory) == size
    assert not (np.frombuffer(memory, np.uint8).ctypes.data + lead) % ALIGNED_BYTES
    (message,) = fed(incoming(lead=lead), framed(BODY[:100] + bytes(size - 100)))
    assert not (np.frombuffer(message.content, np.uint8).ctypes.data + lead) % ALIGNED_BYTES


# ---- bounds ----------------------------------------------------------------------------------------------------------
def test_the_largest_message_and_one_byte_more() -> None:
    assert len(fed(incoming(), framed(bytes(LIMIT_BYTES)))) == 1
    words = refused(incoming(), framed(bytes(LIMIT_BYTES + 1))[:5], Fault.TOO_LARGE)
    assert words == (
        f"the message has {LIMIT_BYTES + 1} bytes or more; at most {LIMIT_BYTES} are read ([grpc] max_message_bytes)"
    )


def test_an_announced_size_is_not_believed() -> None:
    room = message_memory_of(2**40)
    refused(incoming(room), b"\0\xff\xff\xff\xff", Fault.TOO_LARGE)
    assert room.used_bytes == 0


@pytest.mark.parametrize("flag", [2, 3, 128, 255])
def test_an_unknown_flag(flag: int) -> None:
    assert str(flag) in refused(incoming(), framed(b"", flag), Fault.INTERNAL)


@pytest.mark.parametrize("bad", [framed(b"x", 2), b"\0\xff\xff\xff\xff", framed(bytes(60_000))])
def test_after_an_error_nothing_is_read(bad: bytes) -> None:
    """Bytes that follow cannot be told apart from the refused message's content."""
    room = message_memory_of(50_000)
    to, got = incoming(room), deque[ReceivedMessage]()
    with pytest.raises(RequestError):
        got.extend(to.feed((memoryview(framed(b"good") + bad),), 1))
    assert fed(to, framed(b"hidden") + bytes(500)) == []
    assert (to.begun_ns, to.missing, room.used_bytes) == (None, 0, 4 + MESSAGE_BYTES)
    assert contents(list(got)) == [(b"good", False)]


def test_what_is_only_announced_takes_no_room() -> None:
    room = message_memory_of(60_000)
    waiting = [incoming(room) for _ in range(50)]
    for each in waiting:
        fed(each, framed(bytes(40_000))[:6])
    assert room.used_bytes == 50 * (MESSAGE_BYTES + 1)
    waiting.clear()
    del each
    assert room.used_bytes == 0


def test_room_is_shared_and_counted_until_nobody_holds_it() -> None:
    room = message_memory_of(60_000)
    first, second = incoming(room), incoming(room)
    fed(first, framed(bytes(40_000))[:39_005])
    assert room.used_bytes == 39_000 + MESSAGE_BYTES
    words = refused(second, framed(bytes(20_000)), Fault.OVERLOADED)
    assert "max_receiving_bytes" in words
    (message,) = fed(first, bytes(1000))
    view = np.frombuffer(message.content, np.uint8)[5:]
    first.close()
    del message
    assert room.used_bytes == 40_000 + MESSAGE_BYTES
    del view
    assert room.used_bytes == 0
    assert len(fed(incoming(room), framed(bytes(20_000)))) == 1


def test_messages_of_no_bytes_take_room_too() -> None:
    """200,000 of them fit into a stream's window."""
    to = incoming(message_memory_of(10 * MESSAGE_BYTES))
    kept = fed(to, framed(b"") * 10)
    assert len(kept) == 10
    refused(to, framed(b""), Fault.OVERLOADED)


def test_closing_ends_it() -> None:
    """Messages that are still held stay; none come any more."""
    room = message_memory_of(LIMIT_BYTES)
    to = incoming(room)
    messages = fed(to, framed(b"a") + framed(bytes(500))[:100])
    to.close()
    to.close()
    assert (room.used_bytes, to.missing, to.begun_ns) == (1 + MESSAGE_BYTES, 0, None)
    assert fed(to, bytes(400) + framed(b"c")) == []
    assert contents(messages) == [(b"a", False)]


# ---- what a message's model takes ------------------------------------------------------------------------------------
@pytest.mark.parametrize("step", [1, 100, 512, 600])
def test_a_message_larger_than_its_model_takes_is_refused_with_its_beginning(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "LARGE_BYTES", 99_999)
    asked: list[bytes] = []
    room = message_memory_of(10 * LIMIT_BYTES)
    to = Incoming(
        LIMIT_BYTES, room, lambda _: 0, CallInfo(), lambda beginning: asked.append(bytes(beginning)) or 50_000
    )
    body = framed(bytes(range(250)) * 400)
    enough = 5 + BEGINNING_BYTES
    before = (enough - 1) // step * step
    for start in range(0, before, step):
        assert not fed(to, body[start : start + step])
    with pytest.raises(RequestError, match="at most 50000 are read for this model") as caught:
        fed(to, body[before : before + step])
    assert caught.value.fault is Fault.TOO_LARGE
    assert asked == [body[5 : 5 + BEGINNING_BYTES]]
    assert (room.used_bytes, to.missing) == (0, 0)


def test_a_large_message_that_its_model_takes_is_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "LARGE_BYTES", 39_999)
    asked: list[int] = []
    to = Incoming(
        LIMIT_BYTES,
        message_memory_of(10**6),
        lambda _: 0,
        CallInfo(),
        lambda beginning: asked.append(len(beginning)) or 50_000,
    )
    content = bytes(40_000)
    body = framed(content) + framed(b"small") + framed(content)
    whole = [each for start in range(0, len(body), 700) for each in fed(to, body[start : start + 700])]
    assert [len(each.content) for each in whole] == [40_000, 5, 40_000]
    assert asked == [BEGINNING_BYTES] * 2


def test_what_never_has_room_is_too_large() -> None:
    with pytest.raises(RequestError) as caught:
        message_memory_of(1000).take(1001, 0, CallInfo(), filled=1001)
    assert caught.value.fault is Fault.TOO_LARGE


# ---- compression -----------------------------------------------------------------------------------------------------
def inflate(content: Raw, window_bits: int, limit_bytes: int) -> bytes:
    return finish(inflate_steps(content, window_bits, limit_bytes))


def deflate(content: bytes) -> bytes:
    return zlib.compress(content)


FORMS = [(gzip.compress, GZIP), (deflate, DEFLATE)]


@pytest.mark.parametrize(("fold", "window_bits"), FORMS, ids=["gzip", "deflate"])
def test_compressed_messages(fold, window_bits: int) -> None:
    for content in (b"", b"abc", BODY, bytes(LIMIT_BYTES), random.Random(1).randbytes(LIMIT_BYTES)):
        assert inflate(fold(content), window_bits, LIMIT_BYTES) == content


@pytest.mark.parametrize(("fold", "window_bits"), FORMS, ids=["gzip", "deflate"])
def test_bombs(fold, window_bits: int) -> None:
    bomb = fold(bytes(100_000_000))
    with pytest.raises(RequestError) as caught:
        inflate(bomb, window_bits, LIMIT_BYTES)
    assert caught.value.fault is Fault.TOO_LARGE
    with pytest.raises(RequestError, match="at most"):
        inflate(fold(bytes(LIMIT_BYTES + 1)), window_bits, LIMIT_BYTES)


@pytest.mark.parametrize(("fold", "window_bits"), FORMS, ids=["gzip", "deflate"])
def test_damaged_compression(fold, window_bits: int) -> None:
    good = fold(BODY)
    broken = {
        "ends too soon": (b"", good[:-1], good[: len(good) // 2]),
        "continues after its end": (good + b"x", good + good, good + bytes(9)),
        "cannot be read": (b"garbage", good[:-4] + b"????", BODY),
    }
    for words, raws in broken.items():
        for raw in raws:
            with pytest.raises(RequestError, match=words) as caught:
                inflate(memoryview(raw), window_bits, LIMIT_BYTES)
            assert caught.value.fault is Fault.INTERNAL


def test_one_form_is_not_the_other() -> None:
    for raw, window_bits in ((gzip.compress(BODY), DEFLATE), (deflate(BODY), GZIP)):
        with pytest.raises(RequestError, match="cannot be read"):
            inflate(raw, window_bits, LIMIT_BYTES)


def test_compression_that_nobody_named() -> None:
    with pytest.raises(RequestError, match="grpc-encoding names no compression"):
        inflate(gzip.compress(BODY), 0, LIMIT_BYTES)
