"""gRPC for programs that speak HTTP/2 only: a question as the body they post, and what curl heard in return."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tritonclient.grpc import service_pb2

from tests.simulators.daemon import golden

MODEL = "meter-reader"
INFER = "/inference.GRPCInferenceService/ModelInfer"
GRPC = ("-H", "content-type: application/grpc", "-H", "te: trailers")


def framed(message: bytes, flag: int = 0) -> bytes:
    """Return a length-prefixed message, as gRPC over HTTP/2 has it."""
    return struct.pack(">BI", flag, len(message)) + message


def question(model: str = MODEL, rows: int = 1) -> bytes:
    """Return a serialized ModelInferRequest of the golden digits' first rows."""
    wanted = golden(MODEL, rows)
    asked = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[wanted.rows.tobytes()])
    asked.inputs.add(name=wanted.name, datatype="FP32", shape=wanted.rows.shape)
    return asked.SerializeToString()


def is_right(message: bytes, rows: int = 1) -> bool:
    """Return whether it is the ModelInferResponse that names the golden digits' classes."""
    reply = service_pb2.ModelInferResponse.FromString(message)
    scores = np.frombuffer(reply.raw_output_contents[0], "<f4").reshape(rows, -1)
    return bool((scores.argmax(axis=1) == golden(MODEL, rows).scores.argmax(axis=1)).all())


@dataclass(frozen=True, slots=True)
class Heard:
    """One answer. `status` is HTTP's, 0 where none came; `headers` are in small letters, trailers among them."""

    exit_code: int
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def message(self) -> bytes:
        """The only message of the body, without its prefix."""
        flag, length = struct.unpack_from(">BI", self.body)
        assert (flag, length) == (0, len(self.body) - 5)
        return self.body[5:]

    @property
    def grpc_status(self) -> str:
        """The number in the trailers, "" where there is none."""
        return self.headers.get("grpc-status", "")


def curl(scratch: Path, url: str, *options: str, body: bytes | None = None) -> Heard:
    """Ask `url` by HTTP/2; with `body` it is posted, whatever it is. Files are made in `scratch`."""
    head, said, sent = scratch / "head", scratch / "said", scratch / "sent"
    for file in (head, said):
        file.write_bytes(b"")
    command = ["curl", "-sS", "--max-time", "20", "-D", str(head), "-o", str(said), *options]
    if body is not None:
        sent.write_bytes(body)
        command += ["--data-binary", f"@{sent}"]
    done = subprocess.run([*command, url], capture_output=True, text=True, timeout=30, check=False)
    lines = [line for line in head.read_text().splitlines() if line]
    status = int(lines[0].split()[1]) if lines else 0
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
    return Heard(done.returncode, status, headers, said.read_bytes())
