"""The whole gRPC server on a socket: malformed conversations end or go on.

Nothing is logged as a defect of ours, and calls after them are answered.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.hpack import encode
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from tests.fuzz.mutation import conversations, spoil
from tests.simulators.grpc_gateway import Gateway, serving
from tests.simulators.http2_peer import ASKED, WELCOME, asked, data, headers, parsed

ROUNDS = 300
QUIET_S = 0.01
END = frames.END_STREAM
SETTINGS = GrpcSettings(max_message_bytes=100_000, max_receiving_bytes=500_000)
METHODS = ("ModelStreamInfer", "ServerLive", "ServerMetadata", "ModelReady", "RepositoryIndex", "ModelStatistics")


def message(payload: bytes) -> bytes:
    return b"\0" + len(payload).to_bytes(4, "big") + payload


def question() -> bytes:
    request = service_pb2.ModelInferRequest(model_name="identity_fp32", id="7", raw_input_contents=[bytes(8)])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    return message(request.SerializeToString())


def calls() -> list[bytes]:
    """Return correct calls of every kind."""
    others = []
    for name in METHODS:
        block = encode((*ASKED[:2], (b":path", b"/inference.GRPCInferenceService/" + name.encode()), *ASKED[3:]))
        others.append(b"\0" + headers(1, 0, block) + data(1, message(b""), END))
    streamed = encode((*ASKED[:2], (b":path", b"/inference.GRPCInferenceService/ModelStreamInfer"), *ASKED[3:]))
    parts = headers(1, 0, streamed) + data(1, question()) + data(1, question()[:9]) + data(1, question()[9:], END)
    timed = encode((*ASKED, (b"grpc-timeout", b"5S"), (b"grpc-encoding", b"gzip")))
    return [
        b"\0" + asked(1, question()) + asked(3, question()),
        b"\0" + parts + asked(3, question()),
        b"\0" + headers(1, 0, timed) + data(1, b"\1" + question()[1:], END) + asked(3, question()),
        *others,
    ]


async def converse(gateway: Gateway, words: bytes, chunk: int) -> None:
    """Say it, and read until the server is quiet (where it waits for the rest of something), or hangs up."""
    host, port = gateway.target.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(WELCOME)
        for place in range(0, len(words), chunk):
            writer.write(words[place : place + chunk])
            await asyncio.sleep(0)
        while await asyncio.wait_for(reader.read(1 << 16), QUIET_S):
            pass
    except (ConnectionError, TimeoutError):
        pass
    finally:
        writer.close()


async def is_served(gateway: Gateway) -> bool:
    """Return whether a good call is answered."""
    host, port = gateway.target.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(WELCOME + asked(1, question()))
    raw = b""
    while b"grpc-status" not in raw:
        part = await reader.read(1 << 16)
        if not part:
            return False
        raw += part
    writer.close()
    await writer.wait_closed()
    return any(frame.kind == frames.DATA for frame in parsed(raw))


@pytest.mark.asyncio
async def test_spoilt_conversations(caplog: pytest.LogCaptureFixture) -> None:
    chance, broken = random.Random(9), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: broken.append(context))
    seeds = [*calls(), *calls(), *(b"\0" + words for words in conversations())]
    async with serving(settings=SETTINGS) as gateway:
        for _ in range(ROUNDS):
            words = spoil(chance.choice(seeds), chance, seeds)
            with_note = f"converse(gateway, bytes.fromhex('{words[1:].hex()}'), ...)"
            await asyncio.wait_for(converse(gateway, words[1:], chance.choice((7, 100, 1 << 20))), 20)
            assert not broken, with_note
            assert not [each for each in caplog.records if each.levelno >= logging.ERROR], with_note
        assert await is_served(gateway)
        assert len(gateway.inference.requests) > ROUNDS // 20
        while gateway.frontend._open:
            await asyncio.sleep(0)
        assert gateway.frontend.load.busy == 0
