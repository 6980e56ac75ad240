"""Memory of a daemon that has served for long: flat after many requests, connections, and streams left open."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from gateway.serving.frontends.grpc_v2.http2 import frames
from tests.simulators.daemon import Daemon, golden, running
from tests.simulators.http2_peer import WELCOME, Said, asked, data, headers, parsed

WIDE = frames.settings_frame({frames.INITIAL_WINDOW_SIZE: 2**31 - 1}) + frames.window_frame(0, 2**30)
AT_ONCE = 50
LIMIT_S = 60.0
MIB = 1 << 20
ROOM_BYTES = 3 * MIB
"""Memory that allocators may keep; one request, connection or stream kept whole would be at least this many times."""


@pytest.fixture(scope="module")
def lonely(tmp_path_factory: pytest.TempPathFactory, state: Path) -> Iterator[Daemon]:
    """Yield a warm daemon that has no other clients."""
    with running(tmp_path_factory.mktemp("lonely"), state=state, http=["off"]) as daemon:
        ask_all(daemon, 3000)
        connect_all(daemon, 200)
        leave_open(daemon, 300)
        yield daemon


def private_bytes(daemon: Daemon) -> int:
    """Return the memory that is the daemon's own, not its files'."""
    for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise LookupError("RssAnon")


def descriptors(daemon: Daemon) -> int:
    return len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))


def message(ident: str = "") -> bytes:
    known = golden("activity", 1)
    request = service_pb2.ModelInferRequest(
        model_name="activity", id=ident, raw_input_contents=[known.rows.astype("<f4").tobytes()]
    )
    request.inputs.add(name=known.name, datatype="FP32", shape=known.rows.shape)
    raw = request.SerializeToString()
    return b"\0" + len(raw).to_bytes(4, "big") + raw


class Caller:
    """A connection that asks and reads."""

    def __init__(self, daemon: Daemon) -> None:
        host, port = daemon.grpc.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=LIMIT_S)
        self.socket.sendall(WELCOME + WIDE)
        self._numbers = itertools.count(1, 2)

    def ask(self, bodies: list[bytes]) -> list[bytes]:
        """Send all requests at once; return their answers' bodies, in the order of the requests."""
        numbers = list(itertools.islice(self._numbers, len(bodies)))
        self.socket.sendall(b"".join(asked(number, body) for number, body in zip(numbers, bodies, strict=True)))
        answers = dict.fromkeys(numbers, b"")
        ended = 0
        while ended < len(numbers):
            for frame in self._frames():
                assert frame.kind not in {frames.RST_STREAM, frames.GOAWAY}
                ended += frame.ends
                if frame.kind == frames.DATA:
                    answers[frame.stream] += frame.payload
        return list(answers.values())

    def _frames(self) -> list[Said]:
        raw = b""
        while True:
            raw += self._received()
            if whole(raw):
                return parsed(raw)

    def _received(self) -> bytes:
        part = self.socket.recv(1 << 18)
        assert part, "the daemon hung up"
        return part


def whole(raw: bytes) -> bool:
    place = 0
    while place + frames.HEADER_BYTES <= len(raw):
        place += frames.HEADER_BYTES + int.from_bytes(raw[place : place + 3], "big")
    return place == len(raw)


def answered(caller: Caller) -> bytes:
    """Return an answer; it is refused as long as the calls of closed connections are counted."""
    ends_s = time.monotonic() + LIMIT_S
    while not (answer := caller.ask([message()])[0]):
        assert time.monotonic() < ends_s
    return answer


def ask_all(daemon: Daemon, count: int) -> None:
    """Send so many requests, half of them with an id of their own; check that all are answered alike."""
    caller, plain = Caller(daemon), message()
    with caller.socket:
        expected = answered(caller)
        for number in range(0, count, AT_ONCE):
            idents = [f"{number + index:012}" for index in range(AT_ONCE // 2)]
            answers = caller.ask([plain] * len(idents) + [message(ident) for ident in idents])
            assert answers[: len(idents)] == [expected] * len(idents)
            assert all(ident.encode() in each for ident, each in zip(idents, answers[len(idents) :], strict=True))


def connect_all(daemon: Daemon, count: int) -> None:
    """Open so many connections, each dropped after a request, or within its handshake."""
    host, port = daemon.grpc.rsplit(":", 1)
    for number in range(count):
        if number % 2:
            caller = Caller(daemon)
            caller.ask([message()])
            caller.socket.close()
        else:
            with socket.create_connection((host, int(port)), timeout=LIMIT_S) as half:
                half.sendall(WELCOME[: number % len(WELCOME)])


def leave_open(daemon: Daemon, count: int) -> None:
    """Open so many connections with a hundred streams each, half a message on every one; close them without notice."""
    part = b"\0" + (100_000).to_bytes(4, "big") + bytes(8000)
    for _ in range(count):
        caller = Caller(daemon)
        with caller.socket:
            answered(caller)
            numbers = itertools.islice(caller._numbers, 100)
            caller.socket.sendall(b"".join(headers(number) + data(number, part) for number in numbers))


def is_flat(daemon: Daemon, act: Callable[[Daemon, int], None], count: int) -> None:
    """Check that `act` leaves no more behind than the allocators' room, in memory and in descriptors."""
    before, open_before = private_bytes(daemon), descriptors(daemon)
    act(daemon, count)
    ask_all(daemon, AT_ONCE)  # whatever was left behind has been noticed
    grown = private_bytes(daemon) - before
    print(f"{act.__name__} {count}: {grown / MIB:+.2f} MiB")
    assert grown < ROOM_BYTES
    assert descriptors(daemon) <= open_before + 2


ACTS = {"requests": (ask_all, 10_000), "connections": (connect_all, 1000), "streams left open": (leave_open, 60)}
LONG = {"requests": (ask_all, 100_000), "connections": (connect_all, 10_000), "streams left open": (leave_open, 1000)}


@pytest.mark.parametrize("name", ACTS)
def test_memory_is_flat(lonely: Daemon, name: str) -> None:
    is_flat(lonely, *ACTS[name])


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LONG)
def test_memory_is_flat_for_long(lonely: Daemon, name: str) -> None:
    is_flat(lonely, *LONG[name])
