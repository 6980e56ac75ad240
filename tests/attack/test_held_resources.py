"""One address that holds connections, handshakes, requests and streams: others must still be served."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.serving.frontends.grpc_v2.http2.hpack import encode
from tests.attack.rig import CLIENTS, Attack, Target, check_harmless
from tests.attack.transport import WOULD_BLOCK, connected
from tests.simulators.http2_peer import ASKED, REQUEST, WELCOME, headers

STREAM = encode([(key, b"/inference.GRPCInferenceService/ModelStreamInfer" if key == b":path" else value)
                 for key, value in ASKED])  # fmt: skip
HALF_POST = b"POST /v2/models/small/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
AT_ONCE = 32
"""Connections opened between two pauses. More than the backlog would cost this attacker seconds."""
PAUSE_S = 0.01
"""Pause between two checks for closed connections."""


def hold(target: Target, address: str, count: int, words: bytes, ends_s: float) -> int:
    """Hold `count` connections after sending `words`; reopen closed ones. Return the number of bytes sent."""
    sent, held = 0, dict[int, socket.socket]()
    poll = select.poll()
    while time.monotonic() < ends_s:
        for number, _ in poll.poll(0):
            if _closed(held[number]):
                poll.unregister(number)
                held.pop(number).close()
        for _ in range(min(count - len(held), AT_ONCE)):
            with suppress(OSError):
                peer = connected(target, address, 5.0, mute=not words)
                peer.setblocking(False)
                held[peer.fileno()] = peer
                poll.register(peer, select.POLLIN)
                sent += peer.send(words) if words else 0
        time.sleep(PAUSE_S)
    for peer in held.values():
        peer.close()
    return sent + 60 * count  # a TCP handshake


def _closed(peer: socket.socket) -> bool:
    try:
        return not peer.recv(1 << 16)
    except WOULD_BLOCK:
        return False
    except OSError:
        return True


def both(target: Target, first: tuple[str, int, bytes], second: tuple[str, int, bytes], ends_s: float) -> int:
    """Hold connections to gRPC and to HTTP."""
    sent: list[int] = []
    threads = [
        threading.Thread(target=lambda each=each: sent.append(hold(target, *each, ends_s))) for each in (first, second)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(sent)


def idle_streams(target: Target, ends_s: float) -> int:
    """Hold 1,024 idle ModelStreamInfer streams on one connection."""
    return hold(
        target, target.grpc, 1, WELCOME + _all(headers(number, 0, STREAM) for number in range(1, 2048, 2)), ends_s
    )


def half_open_requests(target: Target, ends_s: float) -> int:
    """Hold 1,100 requests without their body, one per connection."""
    words = WELCOME + headers(1, 0, REQUEST)
    return both(target, (target.grpc, 1100, words), (target.http, 1100, HALF_POST), ends_s)


def half_open_of_six(target: Target, ends_s: float) -> int:
    """Hold 300 requests without their body from each of six loopback addresses, which are none of the clients'."""
    words, port = WELCOME + headers(1, 0, REQUEST), int(target.grpc.rpartition(":")[2])
    sent, held = 0, list[socket.socket]()
    for number in range(2, 8):
        for _ in range(300):
            with suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", port), 5.0, (f"127.0.0.{number}", 0)))
                sent += held[-1].send(words)
    time.sleep(max(0.0, ends_s - time.monotonic()))
    for peer in held:
        peer.close()
    return sent + 60 * len(held)


def mute_sockets(target: Target, ends_s: float) -> int:
    """Hold 2,294 silent connections to each port."""
    return both(target, (target.grpc, 2294, b""), (target.http, 2294, b""), ends_s)


def kept_alive(target: Target, ends_s: float) -> int:
    """Hold 520 connections to HTTP after one request, and 1,100 to gRPC."""
    return both(target, (target.grpc, 1100, WELCOME), (target.http, 520, GET), ends_s)


def _all(words: Iterable[bytes]) -> bytes:
    return b"".join(words)


ATTACKS = {
    "idle streams": Attack("tests.attack.test_held_resources:idle_streams"),
    "half-open requests": Attack("tests.attack.test_held_resources:half_open_requests", seconds=10.0),
    "half-open requests of six addresses": Attack("tests.attack.test_held_resources:half_open_of_six", seconds=10.0),
    "mute sockets": Attack("tests.attack.test_held_resources:mute_sockets", seconds=10.0),
    "connections kept alive": Attack(
        "tests.attack.test_held_resources:kept_alive", seconds=10.0, clients=(*CLIENTS, "http-fresh")
    ),
}


OFTEN = tuple(ATTACKS)[::2]
"""Sample of `make test`. `make test-long` runs all."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in OFTEN else pytest.mark.long) for n in ATTACKS])
def test_well_behaved_clients_are_served_meanwhile(name: str, tmp_path: Path) -> None:
    check_harmless(ATTACKS[name], tmp_path)
