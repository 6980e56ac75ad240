"""Compressed messages: no other call waits while a large one is decompressed, and its memory is counted."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.serving.engine.decode_pool import DecodePool
from gateway.serving.engine.settings import EngineSettings
from gateway.serving.frontends.grpc_v2.calls import CallInfo
from gateway.serving.frontends.grpc_v2.codec.patterns import Raw
from gateway.serving.frontends.grpc_v2.service.message_memory import MESSAGE_BYTES, MessageMemory
from gateway.serving.frontends.grpc_v2.transport.messages import ReceivedMessage
from gateway.serving.frontends.grpc_v2.transport.unary import decompressed, one_request
from tests.simulators.constants import settings_with
from tests.simulators.infer_messages import message_memory_of

pytestmark = pytest.mark.asyncio
GZIP = 31
LIMIT_BYTES = 4_000_000


@dataclass
class Owner:
    """Connection, as far as `decompressed` uses it."""

    message_memory: MessageMemory = field(default_factory=lambda: message_memory_of(8_000_000))
    decoding: DecodePool = field(
        default_factory=lambda: DecodePool(settings_with(EngineSettings(), decode_inline_us=0))
    )

    def memory(self, size: int, info: CallInfo) -> memoryview:
        return self.message_memory.take(size, 0, info, filled=size)[0]

    def bounds(self, _: object) -> tuple[int, Callable[[Raw], int]]:
        return LIMIT_BYTES, lambda beginning: 100_000 if beginning.startswith(b"small model") else LIMIT_BYTES


async def decompress(owner: Owner, content: bytes, *, compressed: bool = True) -> Raw:
    request_headers: Any = SimpleNamespace(rpc=None, window_bits=GZIP, info=CallInfo("ann"))
    connection: Any = owner
    return await decompressed(ReceivedMessage(content, compressed), request_headers, connection)


def noise(size: int) -> bytes:
    return random.Random(2).randbytes(size)


@pytest.mark.parametrize("content", [b"", b"small", bytes(LIMIT_BYTES), noise(200_000)])
async def test_what_is_decompressed_is_counted(content: bytes) -> None:
    owner = Owner()
    got = await decompress(owner, gzip.compress(content))
    assert got == content
    assert owner.message_memory.used_bytes == len(content) + MESSAGE_BYTES
    del got
    assert owner.message_memory.used_bytes == 0


@pytest.mark.parametrize("content", [bytes(LIMIT_BYTES + 1), bytes(60_000_000), noise(LIMIT_BYTES + 1)])
async def test_bombs_do_not_go_off(content: bytes) -> None:
    with pytest.raises(RequestError, match="at most 4000000 are read") as caught:
        await decompress(Owner(), gzip.compress(content))
    assert caught.value.fault is Fault.TOO_LARGE


async def test_no_more_is_decompressed_than_the_model_takes() -> None:
    assert len(await decompress(Owner(), gzip.compress(b"small model" + bytes(80_000)))) == 80_011
    with pytest.raises(RequestError, match="at most 100000 are read for this model") as caught:
        await decompress(Owner(), gzip.compress(b"small model" + bytes(60_000_000)))
    assert caught.value.fault is Fault.TOO_LARGE


async def test_no_room_for_what_is_decompressed() -> None:
    owner = Owner(message_memory_of(1_010_000))
    kept = owner.memory(500_000, CallInfo())
    with pytest.raises(RequestError) as caught:
        await decompress(owner, gzip.compress(bytes(1_000_000)))
    assert caught.value.fault is Fault.OVERLOADED
    assert owner.message_memory.used_bytes == len(kept) + MESSAGE_BYTES


async def test_what_is_not_compressed_stays_where_it_is() -> None:
    content = b"as it is"
    assert await decompress(Owner(), content, compressed=False) is content


async def test_damage_is_told() -> None:
    for compressed in (b"damage", gzip.compress(b"x")[:-1], gzip.compress(noise(200_000))[:-1]):
        with pytest.raises(RequestError, match="a compressed message") as caught:
            await decompress(Owner(), compressed)
        assert caught.value.fault is Fault.INTERNAL


async def test_a_refusal_says_what_came() -> None:
    assert one_request("none came").message == "this method takes exactly one request, and none came"
