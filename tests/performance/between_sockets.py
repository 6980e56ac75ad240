"""Cost of a tiny request in the server, from the bytes that were read to the bytes that are written.

    python -m tests.performance.between_sockets [--instant] [--passes N]

Connections get their bytes directly and write nowhere: no kernel, no other process. The engine, the HTTP/2 connections
and, without --instant, ONNX Runtime are the real ones. Prints the quickest pass for each number of connections.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import time
from typing import Any

import numpy as np
import onnxruntime

from gateway.common.domain.access import Security
from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Datatype, Tensors
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.domain.ports import Session
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.hpack import encode
from gateway.serving.frontends.grpc_v2.service.inference import InferenceService
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.grpc_v2.transport.connection import GrpcConnection
from gateway.serving.frontends.grpc_v2.transport.server import GrpcServer
from gateway.serving.frontends.peer import Peer
from gateway.serving.frontends.pools import Pools
from gateway.serving.runtimes.onnx import OnnxEngine, session_options
from gateway.serving.runtimes.session import bind
from tests.performance import networks
from tests.performance.servers import SERVER_CORE
from tests.simulators.engine_rig import Rig, manifest, measured
from tests.simulators.grpc_gateway import UNDIVIDED
from tests.simulators.http2_peer import ASKED, WELCOME

WIDTH, CLASSES, REQUESTS = 16, 4, 8192
INPUTS = (TensorSpec("x", Datatype.FP32, (-1, WIDTH)),)
OUTPUTS = (TensorSpec("y", Datatype.FP32, (-1, CLASSES)),)
SHAPES = ((1, 1), (8, 1), (32, 1), (1, 16))
"""Connections, and requests of each in one read."""


class Instant:
    """A session that costs nothing."""

    lends, in_parts, remarks, rows = False, False, (), None
    _answers = tuple({"y": np.zeros((rows, CLASSES), np.float32)} for rows in range(65))

    def run(self, inputs: Tensors) -> Tensors:
        return self._answers[len(inputs["x"])]

    def close(self) -> None:
        pass


class Nowhere(asyncio.Transport):
    """Transport that keeps nothing of what is written."""

    def write(self, data: Any) -> None:
        pass

    def writelines(self, list_of_data: Any) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


def opened(*_: object) -> Session:
    """Return a session of the tiny model."""
    served = manifest(inputs=INPUTS, outputs=OUTPUTS)
    options = session_options(onnxruntime, SessionBudget(threads=1))
    session = onnxruntime.InferenceSession(networks.tiny().content, options, providers=["CPUExecutionProvider"])
    return bind(OnnxEngine(session), served, served.variants[0], lends=False)


def words(number: int) -> bytes:
    """Return HEADERS and DATA of one request."""
    asked = message("inference.ModelInferRequest")(model_name="m")
    asked.inputs.add(name="x", datatype="FP32", shape=[1, WIDTH])
    asked.raw_input_contents.append(np.ones(WIDTH, "<f4").tobytes())
    content = asked.SerializeToString()
    body = b"\0" + len(content).to_bytes(4, "big") + content
    return frames.frame(frames.HEADERS, 4, number, encode(ASKED)) + frames.frame(frames.DATA, 1, number, body)


def linked(server: GrpcServer) -> GrpcConnection:
    """Return a connection that is settled, with windows for all answers."""
    link = GrpcConnection(server, Peer(address="127.0.0.1"))
    link.connection_made(Nowhere())
    link.receive(memoryview(WELCOME + frames.window_frame(0, 1 << 30)))
    return link


async def measure(connections: int, at_once: int, passes: int, *, instant: bool) -> float:
    """Return the microseconds of the quickest pass, per request."""
    rig = Rig()
    rig.trials["a"] = measured(10.0, row_us=1.0)
    object.__setattr__(rig.repository._loader, "open_session", (lambda *_: Instant()) if instant else opened)
    await rig.serve(manifest(inputs=INPUTS, outputs=OUTPUTS))
    service = InferenceService(rig.engine, rig.engine, rig.engine, GrpcSettings(), pools=Pools(UNDIVIDED))  # type: ignore[arg-type]
    links = [linked(GrpcServer(service, GrpcSettings(), Security())) for _ in range(connections)]
    rounds, best, number = REQUESTS // (connections * at_once), float("inf"), 1
    for _ in range(passes + 1):  # the first one warms up
        reads = []
        for _ in range(rounds):
            reads.append(memoryview(b"".join(words(number + 2 * index) for index in range(at_once))))
            number += 2 * at_once
        gc.collect()
        began = time.perf_counter()
        for read in reads:
            service.hold()
            for link in links:
                link.receive(read)
            service.release()
        best = min(best, (time.perf_counter() - began) / (rounds * connections * at_once))
    (counted,) = rig.engine.statistics()
    assert counted.success.count == (passes + 1) * rounds * connections * at_once
    await rig.repository.close()
    return best * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instant", action="store_true", help="a session that answers at once, from memory")
    parser.add_argument("--passes", type=int, default=7, help="passes, of which the quickest counts (7)")
    options = parser.parse_args()
    os.sched_setaffinity(0, {SERVER_CORE})
    for connections, at_once in SHAPES:
        took_us = asyncio.run(measure(connections, at_once, options.passes, instant=options.instant))
        print(f"{connections:3} connections, {at_once:2} requests in a read: {took_us:6.2f} µs a request")


if __name__ == "__main__":
    main()
