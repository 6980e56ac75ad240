"""Clients that connect for every request, over gRPC and HTTP, by TCP and UNIX socket; every failure is kept."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

PAUSE_S = 0.01
"""Pause between two connections of a client: all of them share a small machine with the gateway."""
ANSWER_S = 60.0
"""Longest wait for an answer: a gateway that restarts lets its clients wait."""

Ask = Callable[[], None]


class Newcomers:
    """Clients by name, each with the number of its answers and its failures."""

    def __init__(self, **clients: Ask) -> None:
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        self._clients, self._stopped = clients, threading.Event()

    @contextmanager
    def coming(self) -> Iterator[Newcomers]:
        """Connect continuously, until every client had another answer after the context."""
        threads = [threading.Thread(target=self._ask, args=client) for client in self._clients.items()]
        for thread in threads:
            thread.start()
        try:
            self.wait_answers()
            yield self
            self.wait_answers()
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join(ANSWER_S)

    def wait_answers(self, more: int = 3) -> None:
        """Wait until every client had this many more answers. Raise AssertionError after its longest wait."""
        wanted = {name: self.answers[name] + more for name in self._clients}
        deadline = time.monotonic() + ANSWER_S
        while any(self.answers[name] < number for name, number in wanted.items()):
            assert time.monotonic() < deadline, (self.answers, self.failures)
            time.sleep(PAUSE_S)

    def _ask(self, name: str, ask: Ask) -> None:
        while not self._stopped.wait(PAUSE_S):
            try:
                ask()
            except Exception as error:  # noqa: BLE001  the test checks for any exception of a client
                self.failures.append(f"{name}: {type(error).__name__}: {error}")
            self.answers[name] += 1


def over_grpc(target: str) -> Ask:
    """Return a client that asks ServerLive of `target`, as grpcio names addresses."""
    options = [("grpc.use_local_subchannel_pool", 1)]

    def ask() -> None:
        with grpc.insecure_channel(target, options) as channel:
            channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=ANSWER_S)

    return ask


def over_http(target: str, path: str) -> Ask:
    """Return a client that gets `path` of host:port, or of a UNIX socket if `target` is its path."""

    def ask() -> None:
        connection = http.client.HTTPConnection(target if ":" in target else "localhost", timeout=ANSWER_S)
        if ":" not in target:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(ANSWER_S)
            connection.sock.connect(target)
        try:
            connection.request("GET", path)
            status = connection.getresponse().status
            assert status == http.client.OK, status
        finally:
            connection.close()

    return ask
