"""Large invalid messages: one anonymous caller sends 60 MB to a model with an input of 256 bytes."""

from __future__ import annotations

import gzip
import http.client
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.attack.attacker import Pace
from tests.attack.rig import Attack, Target, check_harmless
from tests.attack.transport import HttpConnection, channel

SIZE = 60_000_000
JSON_SIZE = 15_000_000
OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
INFER = "/inference.GRPCInferenceService/ModelInfer"


def _tensor(datatype: str, count: int) -> dict[str, object]:
    return {"name": "x", "datatype": datatype, "shape": [count]}


def _request(
    model: str, tensor: dict[str, object], contents: Mapping[str, object] | None = None, **raw: object
) -> bytes:
    if contents is not None:
        tensor = tensor | {"contents": contents}
    return pb.ModelInferRequest(model_name=model, inputs=[tensor], **raw).SerializeToString()


MESSAGES: Mapping[str, Callable[[], bytes]] = {
    "elements": lambda: _request("small", _tensor("BYTES", SIZE // 4), raw_input_contents=[bytes(SIZE)]),
    "integers": lambda: _request("small", _tensor("INT64", SIZE), {"int64_contents": [1] * SIZE}),
    "texts": lambda: _request("small", _tensor("BYTES", SIZE // 2), {"bytes_contents": [b""] * (SIZE // 2)}),
    "inputs": lambda: _request("small", {}) + _request("", {}) * (SIZE // 2 - 1),  # a repeated field is appended
    "accepted elements": lambda: _request(
        "texts",
        _tensor("BYTES", SIZE // 20),
        raw_input_contents=[(b"\x10\0\0\0" + bytes(16)) * (SIZE // 20)],
    ),
    "accepted integers": lambda: _request(
        "numbers", _tensor("INT64", SIZE // 3), {"int64_contents": [1] * (SIZE // 3)}
    ),
}
"""Requests by kind. Each takes seconds to make."""


def _over_grpc(kind: str, target: Target, ends_s: float, *, compressed: bool = False) -> int:
    content = MESSAGES[kind]()
    pace = Pace(target)
    compression = grpc.Compression.Gzip if compressed else grpc.Compression.NoCompression
    sent_bytes = len(gzip.compress(content, 1)) if compressed else len(content)
    with channel(target, target.grpc, OPTIONS, compression) as connection:
        infer = connection.unary_unary(INFER)
        while not pace.sent_bytes or time.monotonic() < ends_s:
            with suppress(grpc.RpcError):
                infer(content, timeout=60.0)
            pace.sent(sent_bytes)
    return pace.sent_bytes


def elements(target: Target, ends_s: float) -> int:
    """Send raw BYTES of empty elements."""
    return _over_grpc("elements", target, ends_s)


def integers(target: Target, ends_s: float) -> int:
    """Send typed integers of one byte each."""
    return _over_grpc("integers", target, ends_s)


def texts(target: Target, ends_s: float) -> int:
    """Send typed BYTES of empty elements."""
    return _over_grpc("texts", target, ends_s)


def inputs(target: Target, ends_s: float) -> int:
    """Send thirty million empty inputs."""
    return _over_grpc("inputs", target, ends_s)


def accepted_elements(target: Target, ends_s: float) -> int:
    """Send three million BYTES elements that the model accepts: they are decoded."""
    return _over_grpc("accepted elements", target, ends_s)


def accepted_integers(target: Target, ends_s: float) -> int:
    """Send twenty million typed integers that the model accepts."""
    return _over_grpc("accepted integers", target, ends_s)


def compressed(target: Target, ends_s: float) -> int:
    """Send raw BYTES of empty elements as a few dozen kilobytes of gzip."""
    return _over_grpc("elements", target, ends_s, compressed=True)


def _over_http(model: str, body: bytes, headers: Mapping[str, str], target: Target, ends_s: float) -> int:
    pace = Pace(target)
    while not pace.sent_bytes or time.monotonic() < ends_s:
        connection = HttpConnection(target, target.http, 60.0)
        try:
            connection.request("POST", f"/v2/models/{model}/infer", body, dict(headers))
            response = connection.getresponse()
            assert response.status in {200, 400, 413, 503}
            response.read()
        except (OSError, http.client.HTTPException):
            pass  # refused before the body was complete
        finally:
            connection.close()
        pace.sent(len(body))
    return pace.sent_bytes


def _binary() -> tuple[bytes, Mapping[str, str]]:
    described = b'{"name":"x","datatype":"BYTES","shape":[%d],"parameters":{"binary_data_size":%d}}' % (SIZE // 4, SIZE)
    head = b'{"inputs":[%s]}' % described
    return head + bytes(SIZE), {"Inference-Header-Content-Length": str(len(head))}


def rest_elements(target: Target, ends_s: float) -> int:
    """Send binary BYTES of empty elements over REST."""
    return _over_http("small", *_binary(), target, ends_s)


def rest_compressed(target: Target, ends_s: float) -> int:
    """Send binary BYTES of empty elements over REST, compressed."""
    body, headers = _binary()
    return _over_http("small", gzip.compress(body, 1), {**headers, "Content-Encoding": "gzip"}, target, ends_s)


def rest_numbers(target: Target, ends_s: float) -> int:
    """Send one-digit numbers as JSON."""
    return _over_http(*_numbers("small", "FP32"), target, ends_s)


def _numbers(model: str, datatype: str) -> tuple[str, bytes, Mapping[str, str]]:
    count = JSON_SIZE // 2
    described = b'{"inputs":[{"name":"x","datatype":"%s","shape":[%d],"data":[%s]}]}'
    return model, described % (datatype.encode(), count, b",".join([b"1"] * count)), {}


def rest_accepted(target: Target, ends_s: float) -> int:
    """Send seven million numbers as JSON that the model accepts."""
    return _over_http(*_numbers("numbers", "INT64"), target, ends_s)


def rest_answers(target: Target, ends_s: float) -> int:
    """Send a few bytes whose result is three million numbers as JSON."""
    return _over_http(
        "wide", b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[0.1]}]}', {}, target, ends_s
    )


KINDS = (
    *(elements, integers, texts, inputs, compressed, accepted_elements, accepted_integers),
    *(rest_elements, rest_compressed, rest_numbers, rest_accepted, rest_answers),
)
GRAPHS = {
    "texts": "(string[n] x) => (int64[k] y) { y = Shape(x) }",
    "wide": "(float[1] x) => (float[m] y) <int64[1] many = {3000000}> { y = Expand(x, many) }",
    "numbers": "(int64[n] x) => (int64[k] y) { y = Shape(x) }",
}
ATTACKS = {
    f"large message: {kind.__name__}": Attack(f"{__name__}:{kind.__name__}", seconds=8.0, graphs=GRAPHS)
    for kind in KINDS
}


OFTEN = {f"large message: {kind.__name__}" for kind in (compressed, accepted_elements, rest_answers)}
"""Both protocols, accepted messages, compressed bytes, and a large answer. `make test-long` sends all."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in OFTEN else pytest.mark.long) for n in ATTACKS])
def test_well_behaved_clients_are_served_meanwhile(name: str, tmp_path: Path) -> None:
    check_harmless(ATTACKS[name], tmp_path)
