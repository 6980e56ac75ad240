"""Bounds and decoding of requests for inference over HTTP, for direct requests and for ASGI."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.common.domain.errors import Fault, RequestError, of_answer
from gateway.common.domain.tensor import Steps, finish
from gateway.serving.domain.cameras import CameraViews
from gateway.serving.domain.ports import Inference, Repository, Statistics, Submission
from gateway.serving.frontends.authentication import Authentication
from gateway.serving.frontends.http.body import BodyReader, Lease, Most
from gateway.serving.frontends.oip_json import (
    JsonBody,
    JsonRequest,
    declared,
    parse_body,
    request_steps,
)
from gateway.serving.frontends.oip_raw import raw_request
from gateway.serving.frontends.regions import Regions
from gateway.serving.frontends.rest_v2.settings import RestSettings

HEADER_LENGTH = "inference-header-content-length"
WHOLE_BYTES = 16 * 1024
"""Bodies up to this size are decoded on the event loop: 0.4 ms for JSON numbers, 1.3 ms for BYTES."""
APART_BYTES = 64 * 1024
"""JSON parts above this size are decoded by a thread from the first step on, which parses all of it.

64 KiB of one tensor take 0.05 ms, of many small inputs 2.5 ms.
"""


class RestEngine(Inference, Submission, Protocol):
    """Ports of the engine that REST uses."""


@dataclass(frozen=True, slots=True)
class RestPorts:
    """Interfaces that the endpoints use.

    `metrics_text` gives the metrics page and its content type. `regions` is None if shared memory is not allowed,
    `cameras` without cameras.
    """

    inference: RestEngine
    repository: Repository
    statistics: Statistics
    settings: RestSettings
    metrics_text: Callable[[], Awaitable[tuple[bytes, str]]]
    bodies: BodyReader
    regions: Regions | None
    authentication: Authentication
    cameras: CameraViews | None = None


def most_of(ports: RestPorts, model: str, length: str | None) -> Most | None:
    """Return the largest body that a model accepts, with a JSON part of `length`; None: no such limit."""
    sizes = ports.inference.sizes(model)
    if length is None:
        most = min(sizes.json_bytes or ports.settings.max_json_bytes, ports.settings.max_json_bytes)
        return Most(most, "as JSON this model takes no more; send large tensors as binary data")
    if sizes.binary_bytes is None or sizes.json_bytes is None or not length.isdecimal() or len(length) >= 12:
        return None
    most = sizes.binary_bytes + min(int(length), sizes.json_bytes)
    return Most(most, "this model's shapes and rows take no more")


def decode_whole(
    ports: RestPorts,
    whole: memoryview,
    length: str | None,
    names: tuple[str, str],
    caller: str,
    *,
    parsed: JsonBody | None = None,
) -> JsonRequest:
    """Return the request in a small body, whose JSON part has `length`, for model and version `names`.

    `parsed`: its JSON part, if that was parsed already.
    """
    model, version = names
    if length == "0":
        return raw_request(whole, ports.inference.describe(model, version), version, caller=caller)
    end = json_end(len(whole), length, ports.settings)
    binary = None if length is None else whole[end:]
    parsed = parsed or parse_body(whole[:end])
    now_ns, regions = time.monotonic_ns(), ports.regions
    return finish(request_steps(parsed, model, version, binary=binary, now_ns=now_ns, caller=caller, regions=regions))


async def decode_large(
    ports: RestPorts,
    whole: memoryview,
    length: str | None,
    names: tuple[str, str],
    lease: Lease,
    *,
    parsed: JsonBody | None = None,
) -> JsonRequest:
    """Return the request in a body of any size as `decode_whole` does. A large one is checked before it is decoded."""
    if len(whole) <= WHOLE_BYTES or length == "0":
        return decode_whole(ports, whole, length, names, lease.caller, parsed=parsed)
    end, now_ns = json_end(len(whole), length, ports.settings), time.monotonic_ns()
    head, binary = whole[:end], None if length is None else whole[end:]
    decoding, apart = ports.inference.decoding, len(head) > APART_BYTES
    if parsed is None:
        parsed = await decoding.run(lease.caller, _parsing(head), apart=apart)
    alike, size = declared(parsed, *names)
    ports.inference.check(alike)
    lease.take(size)
    steps = request_steps(parsed, *names, binary=binary, now_ns=now_ns, caller=lease.caller, regions=ports.regions)
    return await decoding.run(lease.caller, steps, apart=apart)


def _parsing(body: memoryview) -> Steps[JsonBody]:
    """Parse the JSON part in one step: msgspec leaves the tensors' data unparsed."""
    yield from ()
    return parse_body(body)


def json_end(whole: int, length: str | None, settings: RestSettings) -> int:
    """Return the end of the JSON part in a body of `whole` bytes, from Inference-Header-Content-Length."""
    end = whole
    if length is not None:
        end = int(length) if length.isdecimal() and len(length) < 12 else 0
        if not 0 < end <= whole:
            raise RequestError(
                Fault.INVALID,
                f"Inference-Header-Content-Length must be the JSON part's size, 1 to {whole}, or 0 for a raw binary "
                f"request, not {length:.20}",
            )
    if end > settings.max_json_bytes:
        raise RequestError(
            Fault.TOO_LARGE,
            f"the JSON part is larger than {settings.max_json_bytes} bytes; send large tensors as binary data",
        )
    return end


def hold_answer(lease: Lease, size: int) -> None:
    """Count the memory of an answer, instead of its request's. Raises RequestError TOO_LARGE, OVERLOADED."""
    try:
        lease.become(size)
    except RequestError as error:
        raise of_answer(error, "binary_data_output takes less memory than JSON") from None
