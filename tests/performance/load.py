"""The load: h2load, a C++ gRPC client, and wire.py for requests that all differ. Each pinned, each checked.

A tool that fails, a call that is refused and a reply of the wrong length end the run with what was said.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from gateway.serving.frontends.grpc_v2.codec.protocol import message
from tests.performance import cpp, http_load
from tests.performance import streams as streaming
from tests.performance.networks import Network
from tests.performance.servers import LOAD_CORE, WAIT_S, Server, pinned, said
from tests.performance.wire import Plan

METHOD = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
WIRE_PER_S = 80_000
"""Requests that wire.py makes beforehand, for each second and over all connections; about as many as it can send."""

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Body:
    """One request: `message` is the ModelInferRequest, `file` holds it behind gRPC's five bytes, as h2load posts it."""

    file: Path
    message: bytes


@dataclass(frozen=True, slots=True)
class Posting:
    """Load of one h2load: what it posts, where, over how many connections, with which headers besides gRPC's."""

    server: Server
    body: Body
    connections: int
    unix: bool = False
    headers: tuple[str, ...] = ()
    warm_up_s: int = 0


def request(folder: Path, network: Network, region: str = "", rows: int = 1, *, typed: bool = False) -> Body:
    """Return `rows` equal rows for `network`; with `region`, a reference to shared memory instead of the tensor.

    `typed`: floats in InferTensorContents.
    """
    row = np.repeat(network.row(), rows, axis=0)
    made = message("inference.ModelInferRequest")(model_name=network.name)
    tensor = made.inputs.add(name=network.input, datatype=network.datatype, shape=row.shape)
    if region:
        tensor.parameters["shared_memory_region"].string_param = region
        tensor.parameters["shared_memory_byte_size"].int64_param = row.nbytes
    elif typed:
        tensor.contents.fp32_contents.extend(row.ravel().tolist())
    else:
        made.raw_input_contents.append(row.tobytes())
    content = made.SerializeToString()
    file = folder / f"{network.name}{'-' if region else ''}{region}-{rows}{'-typed' * typed}.grpc"
    file.write_bytes(b"\0" + len(content).to_bytes(4, "big") + content)
    return Body(file, content)


# ---- h2load ---------------------------------------------------------------------------------------------------------
def h2load(postings: Sequence[Posting], seconds: float, reply_bytes: Sequence[int]) -> list[Figures]:
    """Run all postings at once; return the figures of each."""
    return [_read(log, seconds, report) for log, report in post(postings, seconds, reply_bytes)]


def post(postings: Sequence[Posting], seconds: float, reply_bytes: Sequence[int]) -> list[tuple[Path, str]]:
    """Run all postings at once, one request in flight on each connection; return log and words of each h2load.

    `reply_bytes`: what a reply to each holds without its headers; less on average means calls that failed behind 200.
    """
    logs = [posting.body.file.with_suffix(f".{index}.log") for index, posting in enumerate(postings)]
    started = []
    for posting, log in zip(postings, logs, strict=True):
        log.unlink(missing_ok=True)
        command = [*pinned(LOAD_CORE), *_words(posting, seconds), f"--log-file={log}", *_where(posting)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    reports = [process.communicate(timeout=seconds + WAIT_S)[0] for process in started]
    for process, report, expected in zip(started, reports, reply_bytes, strict=True):
        _refuse_failure(process.returncode, report, expected)
    return list(zip(logs, reports, strict=True))


def _words(posting: Posting, seconds: float) -> list[str]:
    words = ["h2load", f"-c{posting.connections}", "-m1", "-t1", f"-D{round(seconds * 1000)}ms"]
    headers = ("content-type: application/grpc", "te: trailers", *posting.headers)
    words += [f"--warm-up-time={posting.warm_up_s}s"] if posting.warm_up_s else []
    return [*words, f"-d{posting.body.file}", *(word for header in headers for word in ("-H", header))]


def _where(posting: Posting) -> list[str]:
    if posting.unix:
        return [f"--base-uri=unix:{posting.server.unix}", f"http://localhost{METHOD}"]
    return [f"{'https' if posting.server.tls else 'http'}://127.0.0.1:{posting.server.port}{METHOD}"]


def _refuse_failure(code: int, report: str, reply_bytes: int) -> None:
    counted = re.search(r"requests: .*?(\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored", report)
    data = re.search(r"\((\d+)\) data", report)
    if code or counted is None or data is None or int(counted[3]) or int(counted[4]):
        raise SystemExit(f"h2load failed (exit code {code}):\n{report}")
    if int(data[1]) < int(counted[1]) * reply_bytes:
        raise SystemExit(f"h2load: replies shorter than {reply_bytes} bytes, so calls were refused:\n{report}")


def _read(log: Path, seconds: float, report: str) -> Figures:
    """Return the figures of a log.

    Its columns: start in µs since the epoch, status (-1: cut off by the end), µs to the end of the reply.
    """
    rows = np.array([line.split("\t")[:3] for line in log.read_text().splitlines()], np.int64).reshape(-1, 3)
    rows = rows[rows[:, 1] == 200]
    if not len(rows):
        raise SystemExit(f"h2load: no request was answered within {seconds} s:\n{report}")
    span_s = ((rows[:, 0] + rows[:, 2]).max() - rows[:, 0].min()) / 1e6
    p50, p99 = np.percentile(rows[:, 2], (50, 99))
    per_s = len(rows) / max(float(span_s), 0.9 * seconds)
    return {"requests": len(rows), "per_s": per_s, "p50_us": float(p50), "p99_us": float(p99)}


# ---- real gRPC clients ----------------------------------------------------------------------------------------------
def ask_once(server: Server, body: Body, *, unix: bool = False, roots: bytes = b"") -> int:
    """Make one call by grpcio; return the length of its reply as gRPC frames it.

    A refusal ends the run with its status.
    """
    import grpc

    target = f"unix:{server.unix}" if unix else f"localhost:{server.port}"
    secure = server.tls and not unix
    credentials = grpc.ssl_channel_credentials(roots)
    with grpc.secure_channel(target, credentials) if secure else grpc.insecure_channel(target) as channel:
        try:
            return 5 + len(channel.unary_unary(METHOD)(body.message, timeout=WAIT_S))
        except grpc.RpcError as error:
            raise SystemExit(f"{server.name} refused a request: {error}") from error


def call(server: Server, body: Body, seconds: float, *, connections: int, calls: int, vary: str = "") -> Figures:
    """Keep `calls` in flight on each of `connections` of gRPC's C++ client; return its figures.

    `vary`: "id" or "traceparent", another with each call.
    """
    file = body.file.with_suffix(".message")
    file.write_bytes(body.message)
    words = [f"127.0.0.1:{server.port}", METHOD, str(file), str(seconds), str(connections), str(calls), vary]
    return dict(json.loads(said([str(cpp.caller()), *words], LOAD_CORE, seconds + WAIT_S)))


def streams(server: Server, body: Body, seconds: float, *, connections: int, in_flight: int) -> Figures:
    """Open one stream on each connection, with requests in flight on it."""
    plan = streaming.Plan(server.port, str(body.file), STREAM, connections, in_flight, seconds)
    command = [sys.executable, "-m", "tests.performance.streams", json.dumps(asdict(plan))]
    return dict(json.loads(said(command, LOAD_CORE, seconds + WAIT_S)))


def rest(server: Server, network: Network, folder: Path, seconds: float, *, connections: int) -> Figures:
    """Send one row for `network` as JSON over HTTP/1.1, one request in flight on each connection."""
    row = network.row()
    tensor = {"name": network.input, "datatype": network.datatype, "shape": row.shape, "data": row.ravel().tolist()}
    file, log = folder / f"{network.name}.json", folder / f"{network.name}-rest.log"
    file.write_text(json.dumps({"inputs": [tensor]}))
    log.unlink(missing_ok=True)
    words = [
        "h2load",
        "--h1",
        f"-c{connections}",
        "-t1",
        f"-D{round(seconds * 1000)}ms",
        f"-d{file}",
        f"--log-file={log}",
    ]
    report = said([*words, f"http://{server.rest}/v2/models/{network.name}/infer"], LOAD_CORE, seconds + WAIT_S)
    _refuse_failure(0, report, 1)
    return _read(log, seconds, report)


def http(
    server: Server,
    folder: Path,
    seconds: float,
    network: Network | None,
    *,
    rows: int = 1,
    binary: bool = False,
    vary: str = "",
    callers: int = 1,
) -> Figures:
    """Ask over HTTP/1.1 for inference, or without `network` for the metrics; return the figures of `http_load`."""
    host, port = server.rest.rsplit(":", 1)
    plan = http_load.Plan(host, int(port), "/metrics", "", 0, vary, callers, seconds)
    if network is not None:
        array, file = np.repeat(network.row(), rows, 0), folder / f"{network.name}-{rows}-{binary}.http"
        tensor = {"name": network.input, "datatype": network.datatype, "shape": array.shape}
        more = {"parameters": {"binary_data_size": array.nbytes}} if binary else {"data": array.ravel().tolist()}
        head = json.dumps({"inputs": [{**tensor, **more}]}).encode()
        file.write_bytes(head + (array.tobytes() if binary else b""))
        path, size = f"/v2/models/{network.name}/infer", len(head) if binary else 0
        plan = replace(plan, path=path, body=str(file), json_bytes=size)
    command = [sys.executable, "-m", "tests.performance.http_load", json.dumps(asdict(plan))]
    return dict(json.loads(said(command, LOAD_CORE, seconds + WAIT_S)))


def wire(server: Server, body: Body, seconds: float, *, connections: int, vary: str) -> Figures:
    """Send requests that differ in `vary`: id, traceparent, traceparent-indexed, or nothing; return the figures."""
    requests = round(WIRE_PER_S * max(seconds, 0.5) / connections)
    plan = Plan(server.port, str(body.file), METHOD, vary, connections, seconds, requests)
    command = [sys.executable, "-m", "tests.performance.wire", json.dumps(asdict(plan))]
    return dict(json.loads(said(command, LOAD_CORE, seconds + WAIT_S)))
