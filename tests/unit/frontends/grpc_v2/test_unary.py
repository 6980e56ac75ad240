"""Compressed messages unfolded: nobody waits while a large one is, and what it takes is counted."""

from __future__ import annotations

import gzip
import random
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.domain.errors import Fault, RequestError
from gateway.frontends.grpc_v2 import unary
from gateway.frontends.grpc_v2.messages import MESSAGE_BYTES, Message, Room
from gateway.frontends.grpc_v2.settings import GrpcSettings
from gateway.frontends.grpc_v2.unary import INFLATE_APART_BYTES, UNFOLDED_APART_BYTES, one_request, unfolded

pytestmark = pytest.mark.asyncio
GZIP = 31
LIMIT_BYTES = 4_000_000


@dataclass
class Owner:
    """As much of a link as is asked."""

    room: Room = field(default_factory=lambda: Room(8_000_000))
    settings: GrpcSettings = field(default_factory=lambda: GrpcSettings(max_message_bytes=LIMIT_BYTES))

    def memory(self, size: int) -> memoryview:
        return self.room.take(size, 0, filled=size)[0]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes that were allowed to be unfolded on the loop's own thread."""
    allowed: list[int] = []
    inflate = unary.inflate

    def watched(content: Any, window_bits: int, limit_bytes: int) -> bytes:
        if threading.current_thread() is threading.main_thread():
            allowed.append(limit_bytes)
        return inflate(content, window_bits, limit_bytes)

    monkeypatch.setattr(unary, "inflate", watched)
    return allowed


def noise(size: int) -> bytes:
    return random.Random(2).randbytes(size)


@pytest.mark.parametrize(
    "content",
    [b"", b"small", bytes(UNFOLDED_APART_BYTES), bytes(UNFOLDED_APART_BYTES + 1), bytes(LIMIT_BYTES), noise(200_000)],
    ids=["nothing", "small", "the most at once", "more", "the most", "hardly compressed"],
)
async def test_what_is_unfolded_where(content: bytes, apart: list[int]) -> None:
    owner, folded = Owner(), gzip.compress(content)
    got = await unfolded(Message(folded, compressed=True), GZIP, owner)  # type: ignore[arg-type]
    assert got == content
    assert owner.room.used_bytes == len(content) + MESSAGE_BYTES
    assert apart == ([] if len(folded) >= INFLATE_APART_BYTES else [UNFOLDED_APART_BYTES])
    del got
    assert owner.room.used_bytes == 0


@pytest.mark.parametrize("content", [bytes(LIMIT_BYTES + 1), bytes(60_000_000), noise(LIMIT_BYTES + 1)])
async def test_bombs_do_not_go_off_on_the_loop(content: bytes, apart: list[int]) -> None:
    with pytest.raises(RequestError, match="at most 4000000 are read") as caught:
        await unfolded(Message(gzip.compress(content), compressed=True), GZIP, Owner())  # type: ignore[arg-type]
    assert caught.value.fault is Fault.TOO_LARGE
    assert all(size <= UNFOLDED_APART_BYTES for size in apart)


async def test_no_room_for_what_is_unfolded() -> None:
    owner = Owner(Room(1_000_000))
    with pytest.raises(RequestError) as caught:
        await unfolded(Message(gzip.compress(bytes(1_000_000)), compressed=True), GZIP, owner)  # type: ignore[arg-type]
    assert caught.value.fault is Fault.OVERLOADED
    assert owner.room.used_bytes == 0


async def test_what_is_not_compressed_stays_where_it_is() -> None:
    content = memoryview(b"as it is")
    assert await unfolded(Message(content, compressed=False), 0, Owner()) is content  # type: ignore[arg-type]


async def test_damage_is_told() -> None:
    for folded in (b"damage", gzip.compress(b"x")[:-1], gzip.compress(noise(200_000))[:-1]):
        with pytest.raises(RequestError, match="a compressed message") as caught:
            await unfolded(Message(folded, compressed=True), GZIP, Owner())  # type: ignore[arg-type]
        assert caught.value.fault is Fault.INTERNAL


async def test_a_refusal_says_what_came() -> None:
    assert one_request("none came").message == "this method takes exactly one request, and none came"
