"""The load: connections with one request in flight each, in a process of its own."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.workshop.bench.grpc_connection import GrpcLoadConnection
from gateway.workshop.bench.http_connection import HttpLoadConnection, LoadError
from gateway.workshop.bench.mqtt_connection import MqttLoadConnection
from gateway.workshop.bench.settings import BenchSettings

Connection = HttpLoadConnection | GrpcLoadConnection | MqttLoadConnection


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Load of one measurement. `request`: of HTTP; a gRPC message if `is_grpc`; JSON for MQTT if it has a `topic`."""

    address: tuple[str, int]
    request: bytes
    is_grpc: bool
    connections: int
    seconds: float
    cores: tuple[int, ...]
    server: int | None
    grpc_headers: tuple[tuple[bytes, bytes], ...] = ()
    topic: str = ""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Times of the answered requests, and processor time of the server meanwhile (None: not known)."""

    laps_ns: list[int]
    span_s: float
    cpu_s: float | None


def drive(plan: LoadPlan, settings: BenchSettings) -> LoadResult:
    """Send requests for the time of the plan, after a warm-up. Raise LoadError if one fails, OSError."""
    os.sched_setaffinity(0, plan.cores)
    connections = [_connected(plan, settings) for _ in range(plan.connections)]
    with selectors.DefaultSelector() as selector:
        for index, connection in enumerate(connections):
            selector.register(connection.socket, selectors.EVENT_READ, index)
        began_ns = [0] * len(connections)
        for index, connection in enumerate(connections):
            began_ns[index] = time.perf_counter_ns()
            connection.send()
        _run(selector, connections, began_ns, settings.warm_up_s, settings)
        cpu_s = server_cpu_s(plan.server)
        start_ns = time.perf_counter_ns()
        laps = _run(selector, connections, began_ns, plan.seconds, settings)
        span_s = (time.perf_counter_ns() - start_ns) / 1e9
        spent = server_cpu_s(plan.server)
    for connection in connections:
        connection.close()
    return LoadResult(laps, span_s, None if cpu_s is None or spent is None else spent - cpu_s)


def server_cpu_s(process: int | None) -> float | None:
    """Return user and system time of all threads of a process (clock_getcpuclockid(3)); None if it is not known."""
    return None if process is None else time.clock_gettime(~process << 3 | 2)


def ask_once(plan: LoadPlan, settings: BenchSettings) -> None:
    """Send one request of the plan. Raise LoadError if it is refused or not answered, OSError."""
    connection = _connected(plan, settings)
    try:
        connection.send()
        while not connection.receive():
            pass
    except TimeoutError:
        raise LoadError(f"no answer came within {settings.silence_s:g} s; see the gateway's log") from None
    finally:
        connection.close()


def _connected(plan: LoadPlan, settings: BenchSettings) -> Connection:
    if plan.is_grpc:
        return GrpcLoadConnection(plan.address, plan.request, settings.silence_s, plan.grpc_headers)
    if plan.topic:
        limit_bytes = settings.answer_limit_bytes
        return MqttLoadConnection(plan.address, plan.topic, plan.request, settings.silence_s, limit_bytes)
    return HttpLoadConnection(plan.address, plan.request, settings.silence_s, settings.answer_limit_bytes)


def _run(
    selector: selectors.BaseSelector,
    connections: Sequence[Connection],
    began_ns: list[int],
    seconds: float,
    settings: BenchSettings,
) -> list[int]:
    """Return the times of the answers that came within `seconds`; each is followed by the next request."""
    laps: list[int] = []
    end_ns = time.perf_counter_ns() + round(seconds * 1e9)
    while time.perf_counter_ns() < end_ns and len(laps) < settings.laps_limit:
        ready = selector.select(settings.silence_s)
        if not ready:
            raise LoadError(f"no answer came within {settings.silence_s:g} s; see the gateway's log")
        for key, _ in ready:
            index = key.data
            if connections[index].receive():
                now_ns = time.perf_counter_ns()
                laps.append(now_ns - began_ns[index])
                began_ns[index] = now_ns
                connections[index].send()
    return laps
