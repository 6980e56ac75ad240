"""Load on ModelStreamInfer: one stream on each connection, some requests in flight on it, every reply compared.

Arguments: JSON of `Plan`. Prints JSON.
"""

from __future__ import annotations

import json
import selectors
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.performance.wire import DATA, HEADERS, SILENCE_S, WIDE_OPEN, Connection, RefusedError, frame, headers

WIDE_STREAM = WIDE_OPEN[:5] + (1).to_bytes(4, "big") + WIDE_OPEN[9:]
"""WINDOW_UPDATE of the stream."""
PREFIX_BYTES = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a run: `in_flight` requests on each of `connections` streams."""

    port: int
    body: str
    path: str
    connections: int
    in_flight: int
    seconds: float


class Streamed(Connection):
    """One stream. The next request is sent when a reply came; replies to equal requests are equal."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.port, [])
        self._request = frame(DATA, 0, 1, Path(plan.body).read_bytes())
        self._sent: deque[int] = deque()
        self._body, self._reply = b"", b""
        self.socket.sendall(frame(HEADERS, 4, 1, headers(plan.port, plan.path)) + WIDE_STREAM)

    def ask(self, count: int) -> None:
        """Send requests, in one write."""
        self._sent.extend([time.perf_counter_ns()] * count)
        self.socket.sendall(self._request * count)

    def data(self, payload: bytes) -> None:
        """Add a part of the replies."""
        self._body += payload

    def replies(self) -> int:
        """Take what has come. Return the number of replies that ended."""
        self.receive()
        count = 0
        while len(self._body) >= PREFIX_BYTES:
            end = PREFIX_BYTES + int.from_bytes(self._body[1:PREFIX_BYTES], "big")
            if end > len(self._body):
                break
            reply, self._body = self._body[:end], self._body[end:]
            self._reply = self._reply or reply
            if reply != self._reply:
                raise RefusedError(f"a reply differs from the first: {reply!r}")
            self.laps_ns.append(time.perf_counter_ns() - self._sent.popleft())
            count += 1
        return count


def drive(plan: Plan) -> dict[str, float]:
    """Run the plan. Raises RefusedError."""
    streams = [Streamed(plan) for _ in range(plan.connections)]
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.socket, selectors.EVENT_READ, stream)
        began, cpu = time.perf_counter(), time.process_time()
        for stream in streams:
            stream.ask(plan.in_flight)
        while (now := time.perf_counter()) < began + plan.seconds:
            ready = selector.select(SILENCE_S)
            if not ready:
                raise RefusedError(f"no answer came for {SILENCE_S} s")
            for key, _ in ready:
                if count := key.data.replies():
                    key.data.ask(count)
        cpu_s = time.process_time() - cpu
    laps = np.array([lap for stream in streams for lap in stream.laps_ns]) / 1000
    p50, p99 = np.percentile(laps, (50, 99))
    wall_s = now - began
    figures = {"requests": len(laps), "per_s": len(laps) / wall_s, "load_busy": cpu_s / wall_s}
    return figures | {"p50_us": float(p50), "p99_us": float(p99)}


if __name__ == "__main__":
    try:
        sys.stdout.write(json.dumps(drive(Plan(**json.loads(sys.argv[1])))))
    except RefusedError as error:
        sys.exit(f"streams: {error}")
