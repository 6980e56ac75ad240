"""Load of HTTP/1.1 requests: equal ones, or each with a traceparent, a query or a connection of its own.

h2load posts equal requests on connections that stay open. Arguments: JSON of `Plan`. Prints JSON.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SILENCE_S = 30.0
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a run: one request in flight for each of `callers`. `vary`: traceparent, query, connection or "".

    `body`: a file, or "" for GET. `json_bytes`: length of the JSON part before raw tensors, or 0.
    """

    host: str
    port: int
    path: str
    body: str
    json_bytes: int
    vary: str
    callers: int
    seconds: float


class Caller:
    """One caller, with a thread of its own."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self.laps_ns = plan, list[int]()
        content = Path(plan.body).read_bytes() if plan.body else b""
        fields = f"Host: {plan.host}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        fields += f"Inference-Header-Content-Length: {plan.json_bytes}\r\n" if plan.json_bytes else ""
        self._rest = (fields if plan.body else f"Host: {plan.host}\r\n").encode() + b"\r\n" + content
        self._word = "POST" if plan.body else "GET"

    def run(self) -> None:
        """Ask until the time is over. Raises OSError, and SystemExit for another status than 200."""
        plan, index = self._plan, 0
        ends = time.monotonic() + plan.seconds
        connection = self._connect()
        while time.monotonic() < ends:
            index += 1
            query = f"?request={index}" if plan.vary == "query" else ""
            trace = f"traceparent: 00-{index:032x}-{index:016x}-01\r\n" if plan.vary == "traceparent" else ""
            began_ns = time.perf_counter_ns()
            if plan.vary == "connection":
                connection.close()
                connection = self._connect()
            connection.sendall(f"{self._word} {plan.path}{query} HTTP/1.1\r\n{trace}".encode() + self._rest)
            _receive(connection)
            self.laps_ns.append(time.perf_counter_ns() - began_ns)
        connection.close()

    def _connect(self) -> socket.socket:
        connection = socket.create_connection((self._plan.host, self._plan.port), timeout=SILENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _receive(connection: socket.socket) -> None:
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(READ_BYTES) or sys.exit("http_load: the connection was closed")
    head, _, content = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        sys.exit(f"http_load: {answer[:300].decode(errors='replace')}")
    left = int(head.lower().split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0]) - len(content)
    while left:
        left -= len(connection.recv(READ_BYTES)) or sys.exit("http_load: the connection was closed")


def main() -> None:
    """Run the plan, and print the figures."""
    plan = Plan(**json.loads(sys.argv[1]))
    callers = [Caller(plan) for _ in range(plan.callers)]
    threads = [threading.Thread(target=caller.run) for caller in callers]
    began, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    laps = np.array([lap for caller in callers for lap in caller.laps_ns]) / 1000
    if not len(laps):
        sys.exit("http_load: no request was answered")
    p50, p99 = np.percentile(laps, (50, 99))
    figures = {"requests": len(laps), "per_s": len(laps) / wall_s, "load_busy": cpu_s / wall_s}
    sys.stdout.write(json.dumps(figures | {"p50_us": float(p50), "p99_us": float(p99)}))


if __name__ == "__main__":
    main()
