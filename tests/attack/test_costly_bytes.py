"""Bytes that cost much: 128 connections of one host send header blocks, tables, tiny DATA and control frames as fast as
their link carries them, and connect again where they are hung up on."""

from __future__ import annotations

import itertools
import select
import socket
import time
from pathlib import Path

import pytest

from tests.attack.attacker import Pace
from tests.attack.rig import WATCHDOG_GAP_S, Attack, Target, observe
from tests.simulators.http2_peer import WELCOME
from tests.simulators.http2_work import CLASSES, Work

CONNECTIONS, PROCESSES = 128, 2
SOURCE = "127.0.0.66"
"""Address of the attacker; the well-behaved clients are at 127.0.0.1."""
PART_BYTES = 16 * 1024
MODULE = "tests.attack.test_costly_bytes"
ATTACKS = {
    "blocks of index bytes": Attack(f"{MODULE}:index_bytes", processes=PROCESSES),
    "large header lists": Attack(f"{MODULE}:large_lists", processes=PROCESSES),
    "table churn": Attack(f"{MODULE}:table_churn", processes=PROCESSES),
    "DATA of 1 byte": Attack(f"{MODULE}:tiny_data", processes=PROCESSES),
    "DATA on closed streams": Attack(f"{MODULE}:late_data", processes=PROCESSES),
    "all costly bytes at once": Attack(f"{MODULE}:everything", processes=PROCESSES),
}


class Flooder:
    """One connection that sends a class of work without end, and reads what comes back."""

    def __init__(self, address: str, work: Work) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), 30.0, (SOURCE, 0))
        self.socket.setblocking(False)
        self._numbers, self._work = itertools.count(1001, 2), work
        self._waiting = WELCOME + work.first

    def send(self) -> int:
        """Send what the socket takes; return its bytes. Raises OSError."""
        while len(self._waiting) < PART_BYTES:
            self._waiting += b"".join(map(self._work.words, itertools.islice(self._numbers, 100)))
        try:
            sent = self.socket.send(self._waiting)
        except BlockingIOError:
            return 0
        self._waiting = self._waiting[sent:]
        return sent

    def read(self) -> bool:
        """Read and forget; return False at the end. Raises OSError."""
        try:
            return bool(self.socket.recv(1 << 16))
        except BlockingIOError:
            return True


def index_bytes(target: Target, ends_s: float) -> int:
    """Requests of hundreds of fields, a byte each."""
    return flood(target, ends_s, "blocks of index bytes")


def large_lists(target: Target, ends_s: float) -> int:
    """Requests whose few bytes unfold to lists that are refused."""
    return flood(target, ends_s, "large lists of index bytes", "refused lists of index bytes")


def table_churn(target: Target, ends_s: float) -> int:
    """Blocks that fill and empty HPACK's table."""
    return flood(target, ends_s, "table churn by insertions", "table churn by size updates")


def tiny_data(target: Target, ends_s: float) -> int:
    """A message in frames of one byte."""
    return flood(target, ends_s, "DATA of 1 byte")


def late_data(target: Target, ends_s: float) -> int:
    """DATA on a stream that is closed."""
    return flood(target, ends_s, "DATA on a closed stream")


def everything(target: Target, ends_s: float) -> int:
    """Every class at once."""
    return flood(target, ends_s, *CLASSES)


def flood(target: Target, ends_s: float, *names: str) -> int:
    """Send these classes, each on its share of the connections, until `ends_s`; return the bytes that were sent."""
    pace, works = Pace(target), itertools.cycle(CLASSES[name] for name in names)
    flooders, poll = dict[int, Flooder](), select.epoll()
    while time.monotonic() < ends_s:
        while len(flooders) < CONNECTIONS // PROCESSES and time.monotonic() < ends_s:
            flooder = Flooder(target.grpc, next(works))
            flooders[flooder.socket.fileno()] = flooder
            poll.register(flooder.socket, select.EPOLLIN | select.EPOLLOUT)
        for descriptor, events in poll.poll(0.1):
            try:
                if events & ~select.EPOLLOUT and not flooders[descriptor].read():
                    raise ConnectionAbortedError
                pace.sent(flooders[descriptor].send())
            except OSError:
                flooders.pop(descriptor).socket.close()
    return pace.sent_bytes


@pytest.mark.parametrize("name", ATTACKS)
def test_well_behaved_clients_are_served_meanwhile(name: str, tmp_path: Path) -> None:
    observed = observe(ATTACKS[name], tmp_path)
    assert not observed.failures
    assert observed.watchdog_gap_s <= WATCHDOG_GAP_S
    assert observed.sent_bytes > 0
