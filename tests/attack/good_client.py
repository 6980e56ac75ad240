"""Well-behaved clients: one small request after another, each call a line of JSON on standard output.

Used by `rig`: `python -m tests.attack.good_client TARGET CLIENT…`. It ends with its standard input.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.attack.rig import Target
from tests.attack.transport import HttpConnection, channel

EVERY_S = 0.02
DEADLINE_S = 30.0
X = np.arange(64, dtype=np.float32)
REQUEST = pb.ModelInferRequest(
    model_name="small", inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 64]}], raw_input_contents=[X.tobytes()]
)
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 64], "data": X.tolist()}]})
LOCAL = (("grpc.use_local_subchannel_pool", 1),)


def kept(target: Target, address: str) -> Callable[[], str]:
    """Return calls over one channel."""
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel(target, address, LOCAL))
    return lambda: _asked(stub)


def fresh(target: Target, address: str) -> Callable[[], str]:
    """Return calls with one connection each."""

    def call() -> str:
        with channel(target, address, LOCAL) as connection:
            return _asked(service_pb2_grpc.GRPCInferenceServiceStub(connection))

    return call


def rest(target: Target, address: str, *, keeps: bool = True) -> Callable[[], str]:
    """Return HTTP calls over one connection, reopened if it was closed, or with one connection each."""
    connection = HttpConnection(target, address, DEADLINE_S, source="127.0.0.1")

    def call() -> str:
        try:
            connection.request("POST", "/v2/models/small/infer", BODY)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return repr(error)
        if not keeps:
            connection.close()
        right = response.status == 200 and json.loads(content)["outputs"][0]["data"] == (-X).tolist()
        return "" if right else f"HTTP {response.status} {content[:200]!r}"

    return call


def _asked(stub: service_pb2_grpc.GRPCInferenceServiceStub) -> str:
    try:
        answer = stub.ModelInfer(REQUEST, timeout=DEADLINE_S)
    except grpc.RpcError as error:
        return f"{error.code().name} {error.details()}"
    return "" if answer.raw_output_contents[0] == (-X).tobytes() else "a wrong answer"


def _call_on(client: str, call: Callable[[], str], over: threading.Event, printing: threading.Lock) -> None:
    while not over.wait(EVERY_S):
        began_s = time.monotonic()
        failure = call()
        line = {"client": client, "began_s": began_s, "took_s": time.monotonic() - began_s, "failure": failure}
        with printing:
            print(json.dumps(line), flush=True)


def main() -> None:
    """Call until standard input ends."""
    target = Target(**json.loads(sys.argv[1]))
    makers = {
        "grpc": partial(kept, address=target.grpc),
        "grpc-fresh": partial(fresh, address=target.grpc),
        "unix": partial(kept, address=target.unix),
        "http": partial(rest, address=target.http),
        "http-fresh": partial(rest, address=target.http, keeps=False),
    }
    over, printing = threading.Event(), threading.Lock()
    threads = []
    for client in sys.argv[2:]:
        threads.append(threading.Thread(target=_call_on, args=(client, makers[client](target), over, printing)))
        threads[-1].start()
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
