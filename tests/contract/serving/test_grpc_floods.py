"""Callers that ask for nothing, or for everything at the slowest pace: they are cut off, and the others are served."""

from __future__ import annotations

import asyncio
import itertools
import select
import socket
import ssl
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.common.domain.access import Security
from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.errors import Code
from gateway.serving.frontends.grpc_v2.http2.hpack import Decoder
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from tests.simulators.authority import Authority
from tests.simulators.constants import settings_with
from tests.simulators.grpc_gateway import Gateway, serving
from tests.simulators.http2_floods import FLOODS, LARGE_ENTRY
from tests.simulators.http2_peer import REQUEST, WELCOME, Said, asked, data, goaway, headers, parsed, reset_code

pytestmark = pytest.mark.asyncio
LIMIT_S = 30.0
SMALL_BYTES = 1000
"""Size that requests of the well-behaved client have at most."""
END = frames.END_STREAM
IMPATIENT = settings_with(GrpcSettings(receive_timeout_s=0.4, write_timeout_s=0.4), handshake_timeout_s=0.3)


def question(number: int, size: int = 4) -> service_pb2.ModelInferRequest:
    return service_pb2.ModelInferRequest(
        model_name="identity_uint8",
        id=str(number),
        inputs=[{"name": "x", "datatype": "UINT8", "shape": [1, size]}],
        raw_input_contents=[bytes([number % 256]) * size],
    )


def message(request: service_pb2.ModelInferRequest) -> bytes:
    raw = request.SerializeToString()
    return b"\0" + len(raw).to_bytes(4, "big") + raw


class Peer:
    """A socket that says any bytes; `said` is what the server said on it."""

    def __init__(self, target: str, *, reads: bool = True) -> None:
        host, port = target.rsplit(":", 1)
        self.socket = socket.socket()
        if not reads:  # nor does its kernel
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect((host, int(port)))
        self._raw = bytearray()

    @property
    def said(self) -> list[Said]:
        """Frames; the last may have been cut off."""
        raw, end = bytes(self._raw), 0
        while (stop := end + frames.HEADER_BYTES) <= len(raw):
            stop += int.from_bytes(raw[end : end + 3], "big")
            if stop > len(raw):
                break
            end = stop
        return parsed(raw[:end])

    def flood(self, words: Iterator[bytes], *, reads: bool = True) -> None:
        """Say all of it, or until the server hangs up."""
        ends_s, waiting, speaks = time.monotonic() + LIMIT_S, b"", True
        self.socket.setblocking(False)
        poll = select.poll()
        while time.monotonic() < ends_s:
            waiting = waiting or b"".join(itertools.islice(words, 50))
            speaks = speaks and bool(waiting)
            poll.register(self.socket, (select.POLLIN if reads else 0) | (select.POLLOUT if speaks else 0))
            happened = sum(events for _, events in poll.poll(1000))
            if happened & ~select.POLLOUT and not self._hear():
                return
            if happened & select.POLLOUT:
                try:
                    waiting = waiting[self.socket.send(waiting) :]
                except OSError:
                    speaks = False
        raise TimeoutError("the server did not hang up")

    def _hear(self) -> bool:
        try:
            part = self.socket.recv(1 << 16)
        except OSError:
            return False
        self._raw += part
        return bool(part)


async def attacked(target: str, words: Iterator[bytes], *, reads: bool = True) -> list[Said]:
    """Return what the server said before it hung up on this."""
    peer = Peer(target, reads=reads)
    with peer.socket:
        await asyncio.to_thread(peer.flood, words, reads=reads)
    return peer.said


@asynccontextmanager
async def serving_others(settings: GrpcSettings | None = None) -> AsyncIterator[tuple[Gateway, Callable[[], int]]]:
    """Yield a gateway that serves a well-behaved client throughout, and a function that counts its answers so far.

    All its answers must be right.
    """
    answers, over = 0, asyncio.Event()

    async def ask() -> None:
        nonlocal answers
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for number in itertools.count():
            if over.is_set():
                return
            reply = await stub.ModelInfer(question(number), timeout=LIMIT_S)
            assert (reply.id, reply.raw_output_contents[0]) == (str(number), bytes([number % 256]) * 4)
            answers += 1

    settings = settings or GrpcSettings(max_concurrent_calls=4096)  # streams of one connection do not take them all
    async with serving(settings=settings) as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        gateway.inference.requests = deque(maxlen=1)  # requests that are kept keep their memory
        asking = asyncio.create_task(ask())
        await gateway.inference.until(lambda: gateway.inference.requests)
        yield gateway, lambda: answers
        before = answers
        await gateway.inference.until(lambda: answers > before + 5 or asking.done())
        over.set()
        await asking


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_is_cut_off_and_the_others_are_served(name: str) -> None:
    async with serving_others() as (gateway, answers):
        before = answers()
        said = await attacked(gateway.target, itertools.chain([WELCOME], FLOODS[name][0]()))
        last = goaway(said)
        assert last is not None
        # a stream that was answered before its peer went on is closed, and HEADERS there break another rule
        assert last[1] is Code.ENHANCE_YOUR_CALM or (last[1] is Code.STREAM_CLOSED and "HEADERS" in name)
        assert answers() >= before


async def test_an_hpack_bomb() -> None:
    async with serving_others() as (gateway, _):
        bomb = headers(1, END, REQUEST + LARGE_ENTRY) + headers(3, END, b"\xbe" * 16_000)
        last = goaway(await attacked(gateway.target, iter([WELCOME + bomb])))
        assert last is not None
        assert last[1] is Code.ENHANCE_YOUR_CALM


async def test_answers_that_are_asked_for_and_not_read() -> None:
    """Errors are cheap to ask for: nothing is read of such a caller once its socket is full, and then it is cut off."""
    async with serving_others(IMPATIENT) as (gateway, _):
        unknown = (asked(number, b"\1nonsense") for number in range(1, 2**31, 2))
        await attacked(gateway.target, itertools.chain([WELCOME], unknown), reads=False)


# ---- much work at once ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
async def test_words_that_take_many_slices_are_read_to_their_end(secure: bool) -> None:
    """Nothing more comes on the socket that could remind us of them."""
    authority = Authority()
    costly = b"".join(headers(number, END, REQUEST + b"\x90" * 240) for number in range(1, 101, 2))
    security = Security(*authority.issue("localhost")) if secure else Security()
    async with serving(security=security) as gateway:
        peer = Peer(gateway.target)
        if secure:
            context = ssl.create_default_context(cadata=authority.pem.decode())
            context.set_alpn_protocols(["h2"])
            peer.socket = await asyncio.to_thread(context.wrap_socket, peer.socket, server_hostname="localhost")
        words = WELCOME + costly + frames.frame(frames.PING, 0, 0, bytes(8))
        with peer.socket:
            await asyncio.to_thread(_say_and_read_until, peer, words, frames.PING)
        answered = {frame.stream for frame in peer.said if frame.kind == frames.HEADERS}
        assert answered == set(range(1, 101, 2))


# ---- slowly ----------------------------------------------------------------------------------------------------------
PART = message(question(1, 100_000))


@pytest.mark.parametrize(
    "words",
    [b"", frames.PREFACE[:10], frames.PREFACE, frames.PREFACE + frames.HEADER.pack(0, 6, frames.SETTINGS, 0, 0)],
    ids=["nothing", "half a preface", "no SETTINGS", "half of SETTINGS"],
)
async def test_a_handshake_that_does_not_end(words: bytes) -> None:
    async with serving_others(IMPATIENT) as (gateway, _):
        await attacked(gateway.target, iter([words] if words else []))


@pytest.mark.parametrize(
    "part", [b"", b"\0\0", PART[:5], PART[:50_000]], ids=["no message", "half a prefix", "a prefix", "half a message"]
)
async def test_a_request_that_does_not_end_is_answered_and_forgotten(part: bytes) -> None:
    async with serving_others(IMPATIENT) as (gateway, _):
        words = WELCOME + headers(1) + b"".join(data(1, part[at : at + 16_000]) for at in range(0, len(part), 16_000))
        peer = Peer(gateway.target)
        with peer.socket:
            await asyncio.to_thread(_say_and_read_until, peer, words, frames.RST_STREAM)
        head = next(frame for frame in peer.said if frame.kind == frames.HEADERS)
        fields = dict(Decoder(1 << 20).decode(head.payload) or ())
        assert fields[b"grpc-status"] == b"4"
        assert b"receive_timeout_s" in fields[b"grpc-message"]
        assert reset_code(peer.said, 1) is Code.NO_ERROR
        await gateway.inference.until(lambda: gateway.frontend.message_memory.used_bytes < SMALL_BYTES)


def _say_and_read_until(peer: Peer, words: bytes, kind: int) -> None:
    peer.socket.settimeout(LIMIT_S)
    peer.socket.sendall(words)
    while all(frame.kind != kind for frame in peer.said):
        assert peer._hear()


@pytest.mark.parametrize("how", ["never reads", "opens no window"])
async def test_a_caller_that_does_not_take_its_answer(how: str) -> None:
    async with serving_others(IMPATIENT) as (gateway, _):
        whole = message(question(1, 8_000_000))
        parts = [data(1, whole[at : at + 16_000]) for at in range(0, len(whole), 16_000)]
        begin = WELCOME + frames.settings_frame({frames.INITIAL_WINDOW_SIZE: 2**30 if how == "never reads" else 10})
        words = [begin, frames.window_frame(0, 2**30), headers(1), *parts, data(1, b"", END)]
        await attacked(gateway.target, iter(words), reads=how != "never reads")
        await gateway.inference.until(lambda: len(gateway.frontend._open) == 1)


async def test_callers_killed_within_a_message_leave_nothing() -> None:
    program = (
        "import socket, sys, time\n"
        "peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "peer.sendall(bytes.fromhex(sys.stdin.readline()))\n"
        "print('said', flush=True)\n"
        "time.sleep(60)\n"
    )
    words = WELCOME + headers(1) + b"".join(data(1, PART[at : at + 16_000]) for at in range(0, 80_000, 16_000))
    async with serving_others() as (gateway, _):
        links = len(gateway.frontend._open)
        host, port = gateway.target.rsplit(":", 1)
        for _round in range(3):
            command = [sys.executable, "-c", program, host, port]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(words.hex() + "\n")
            child.stdin.flush()
            await asyncio.to_thread(child.stdout.readline)
            await gateway.inference.until(lambda: gateway.frontend.message_memory.used_bytes > SMALL_BYTES)
            child.kill()
            await asyncio.to_thread(child.communicate)
            await gateway.inference.until(lambda: gateway.frontend.message_memory.used_bytes < SMALL_BYTES)
        assert len(gateway.frontend._open) == links


# ---- too many connections --------------------------------------------------------------------------------------------
def _opened(target: str, words: bytes) -> Peer:
    """Return a peer whose words were read: its PING is answered."""
    peer = Peer(target)
    _say_and_read_until(peer, WELCOME + words + frames.frame(frames.PING, 0, 0, bytes(8)), frames.PING)
    return peer


async def test_connections_that_are_held_open_give_way_the_oldest_first() -> None:
    async with serving(settings=GrpcSettings(max_connections=3)) as gateway:
        held = [await asyncio.to_thread(_opened, gateway.target, b"") for _ in range(5)]
        for peer in held[:2]:
            await asyncio.to_thread(peer.flood, iter(()))
            assert goaway(peer.said) == (0, Code.NO_ERROR)
        assert all(goaway(peer.said) is None for peer in held[2:])
        for peer in held:
            peer.socket.close()


@pytest.mark.usefixtures("patient")
async def test_connections_that_do_something_give_way_to_none() -> None:
    async with serving(settings=GrpcSettings(max_connections=3)) as gateway:
        busy = [await asyncio.to_thread(_opened, gateway.target, headers(1)) for _ in range(3)]
        assert await attacked(gateway.target, iter([WELCOME])) == []  # closed before SETTINGS: gRPC's clients back off
        assert all(goaway(peer.said) is None for peer in busy)
        for peer in busy:
            peer.socket.close()
