"""Endpoints of REST. Litestar reads the annotations when it builds the application: import this only to build one."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import msgspec
from litestar import Request, Response, get, post
from litestar.response import Stream

from gateway.domain.errors import Fault, RequestError
from gateway.domain.infer import InferResponse
from gateway.domain.ports import Inference, Repository, Statistics
from gateway.domain.rights import ANY_CALLER, CONTROL, INFER, METRICS, READ
from gateway.domain.tensor import Steps
from gateway.frontends import documents
from gateway.frontends.authentication import Authentication
from gateway.frontends.http.body import BodyReader, ClientGone, Lease, Most, accepted_encoding, compress_steps
from gateway.frontends.not_offered import refuse_load_parameters
from gateway.frontends.oip_json import (
    JsonBody,
    JsonRequest,
    declared,
    decode_request,
    parse_body,
    request_steps,
)
from gateway.frontends.oip_json_answers import JsonAnswer, answer_steps, most_bytes_steps
from gateway.frontends.oip_raw import raw_request
from gateway.frontends.regions import EXTENSION, Regions
from gateway.frontends.rest_v2.door import rights_of
from gateway.frontends.rest_v2.openapi import InferOperation
from gateway.frontends.rest_v2.settings import RestSettings

HEADER_LENGTH = "inference-header-content-length"
MODEL = "/v2/models/{model:str}"
VERSION = MODEL + "/versions/{version:str}"
UNAVAILABLE = 503
WHOLE_BYTES = 16 * 1024
"""Bodies up to this size are decoded on the event loop: 0.4 ms for JSON numbers, 1.3 ms for BYTES."""
PIECE_BYTES = 256 * 1024
"""Larger answers are sent in pieces of about this size, at most twice as much."""

Document = dict[str, Any]
Call = Request[Any, Any, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ports:
    """Interfaces that the endpoints use.

    `metrics_text` gives the metrics page and its content type. `regions` is None if shared memory is not allowed.
    `server_name` is part of the server metadata.
    """

    inference: Inference
    repository: Repository
    statistics: Statistics
    settings: RestSettings
    metrics_text: Callable[[], Awaitable[tuple[bytes, str]]]
    bodies: BodyReader
    regions: Regions | None
    server_name: str
    authentication: Authentication


class _IndexBody(msgspec.Struct):
    ready: bool = False


class _LoadBody(msgspec.Struct):
    parameters: dict[str, bool | int | float | str] | None = None


@get("/v2", summary="Server metadata", opt={"needs": READ})
async def server_metadata(request: Call) -> Document:
    """Return name, version and the extensions that work here."""
    ports = ports_of(request)
    shared = () if ports.regions is None else (EXTENSION,)
    return documents.server_metadata(ports.server_name, "binary_tensor_data", *shared)


@get("/v2/health/live", summary="Liveness", opt={"needs": ANY_CALLER})
async def live() -> Document:
    """Report that the process answers."""
    return {"live": True}


@get("/v2/health/ready", summary="Readiness", opt={"needs": ANY_CALLER})
async def ready(request: Call) -> Response[Document]:
    """Report if the server answers inference requests; 503 if not."""
    is_ready = ports_of(request).inference.ready()
    return Response({"ready": is_ready}, status_code=200 if is_ready else UNAVAILABLE)


@get([MODEL + "/ready", VERSION + "/ready"], summary="Model readiness", opt={"needs": READ})
async def model_ready(request: Call) -> Response[Document]:
    """Report if a model version answers; 503 if it does not, or is unknown."""
    model, version = _names(request)
    is_ready = ports_of(request).inference.ready(model, version)
    return Response({"name": model, "ready": is_ready}, status_code=200 if is_ready else UNAVAILABLE)


@get([MODEL, VERSION], summary="Model metadata", opt={"needs": READ})
async def model_metadata(request: Call) -> Document:
    """Return inputs and outputs with the batch dimension, and the versions that are ready."""
    ports = ports_of(request)
    return documents.model_metadata(*documents.described(ports.inference, ports.repository, *_names(request)))


@get([MODEL + "/config", VERSION + "/config"], summary="Model configuration", opt={"needs": READ})
async def model_config(request: Call) -> Document:
    """Return Triton's model configuration: dims without the batch dimension."""
    ports = ports_of(request)
    return documents.model_config(*documents.described(ports.inference, ports.repository, *_names(request)))


@get(["/v2/models/stats", MODEL + "/stats", VERSION + "/stats"], summary="Model statistics", opt={"needs": READ})
async def model_statistics(request: Call) -> Document:
    """Return Triton's counters of one version, of all versions of a model, or of all models that the caller may see."""
    statistics, rights = ports_of(request).statistics, rights_of(request.scope["state"])
    return documents.model_statistics(documents.visible_statistics(statistics, rights, *_names(request)))


@post("/v2/repository/index", status_code=200, summary="Repository index", opt={"needs": READ})
async def repository_index(request: Call) -> list[Document]:
    """Return model versions that the caller may see, with their states; body `{"ready": true}`: only ready ones."""
    asked = await optional_body(request, _IndexBody)
    lines = ports_of(request).repository.index()
    return documents.repository_index(lines, rights_of(request.scope["state"]), only_ready=asked.ready)


@post("/v2/repository/models/{model:str}/load", status_code=200, summary="Load a model", opt={"needs": CONTROL})
async def load(request: Call) -> Document:
    """Read the model's folder again and serve the versions that pass their gate."""
    body = await optional_body(request, _LoadBody)
    refuse_load_parameters(body.parameters or ())
    await ports_of(request).repository.load(_names(request)[0])
    return {}


@post("/v2/repository/models/{model:str}/unload", status_code=200, summary="Unload a model", opt={"needs": CONTROL})
async def unload(request: Call) -> Document:
    """Drain and unload all versions of the model."""
    await optional_body(request, _LoadBody)
    await ports_of(request).repository.unload(_names(request)[0])
    return {}


@post(
    [MODEL + "/infer", VERSION + "/infer"],
    status_code=200,
    summary="Inference",
    operation_class=InferOperation,
    opt={"needs": INFER},
)
async def infer(request: Call) -> Response[bytes] | Stream:
    """Answer one inference request, in JSON or with binary tensors. A client that leaves abandons its request."""
    ports = ports_of(request)
    ports.inference.describe(*_names(request))  # an unknown model is refused before its body is read
    admitted = request.scope["state"]["admitted"]
    with ports.bodies.lease(admitted) as lease:
        asked = await _asked(request, lease)
        response = await _unless_gone(ports.inference.infer(asked.request), request.receive)
    asked = replace(asked, request=replace(asked.request, inputs={}))  # nothing holds the body any more
    decoding, caller = ports.inference.decoding, admitted.caller
    _hold(request, await decoding.run(caller, most_bytes_steps(response, asked)))
    answer = await decoding.run(caller, answer_steps(response, asked, literals=True))
    return await _response(answer, request)


@get("/metrics", summary="Metrics", media_type="text/plain", opt={"needs": METRICS})
async def metrics(request: Call) -> Response[bytes]:
    """Return counters and gauges in Prometheus' text format."""
    text, content_type = await ports_of(request).metrics_text()
    # litestar adds the charset of text itself
    return Response(text, media_type=content_type.partition("; charset=")[0])


HANDLERS = (
    server_metadata,
    live,
    ready,
    model_ready,
    model_metadata,
    model_config,
    model_statistics,
    repository_index,
    load,
    unload,
    infer,
    metrics,
)


def ports_of(request: Call) -> Ports:
    """Return the objects with which the application was built."""
    return cast("Ports", request.app.state.ports)


def _names(request: Call) -> tuple[str, str]:
    """Return model and version of the path, "" if it has none.

    They are not parameters of the handlers: if a handler has two paths, litestar reads an absent version from the
    query.
    """
    return request.path_params.get("model", ""), request.path_params.get("version", "")


async def optional_body(request: Call, kind: type[T]) -> T:
    """Return the JSON body as `kind`; an empty one is `{}`.

    Raises as `BodyReader.read` does, and INVALID for other JSON.
    """
    ports = ports_of(request)
    with ports.bodies.lease(request.scope["state"]["admitted"]) as lease:
        body = await ports.bodies.read(request.receive, dict(request.headers), lease)
        try:
            return msgspec.json.decode(body.strip() or b"{}", type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RequestError(Fault.INVALID, f"the request body: {error}") from None


def _most(request: Call, length: str | None) -> Most | None:
    """Return the largest body that the request's model accepts, with a JSON part of `length`; None: no such limit."""
    ports = ports_of(request)
    sizes = ports.inference.sizes(_names(request)[0])
    if length is None:
        most = min(sizes.json_bytes or ports.settings.max_json_bytes, ports.settings.max_json_bytes)
        return Most(most, "as JSON this model takes no more; send large tensors as binary data")
    if sizes.binary_bytes is None or sizes.json_bytes is None or not length.isdecimal() or len(length) >= 12:
        return None
    most = sizes.binary_bytes + min(int(length), sizes.json_bytes)
    return Most(most, "this model's shapes and rows take no more ([limits] request_slack_bytes)")


async def _asked(request: Call, lease: Lease) -> JsonRequest:
    """Read the body, and return the request in it."""
    ports, caller = ports_of(request), request.scope["state"]["caller"]
    headers = dict(request.headers)
    length = headers.get(HEADER_LENGTH)
    body = await ports.bodies.read(request.receive, headers, lease, _most(request, length))
    whole = memoryview(body).toreadonly()
    model, version = _names(request)
    if length == "0":
        return raw_request(whole, ports.inference.describe(model, version), version, caller=caller)
    end, now_ns = _json_end(len(whole), length, ports.settings), time.monotonic_ns()
    head, binary = whole[:end], None if length is None else whole[end:]
    if len(whole) <= WHOLE_BYTES:
        return decode_request(head, model, version, binary=binary, now_ns=now_ns, caller=caller, regions=ports.regions)
    decoding, apart = ports.inference.decoding, len(head) > WHOLE_BYTES
    parsed = await decoding.run(caller, _parsing(head), apart=apart)
    alike, size = declared(parsed, model, version)
    ports.inference.check(alike)
    lease.take(size)
    steps = request_steps(parsed, model, version, binary=binary, now_ns=now_ns, caller=caller, regions=ports.regions)
    return await decoding.run(caller, steps, apart=apart)


def _parsing(body: memoryview) -> Steps[JsonBody]:
    """Parse the JSON part in one step: msgspec leaves the tensors' data unparsed."""
    yield from ()
    return parse_body(body)


def _json_end(whole: int, length: str | None, settings: RestSettings) -> int:
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


async def _unless_gone(answering: Awaitable[InferResponse], receive: Callable[[], Awaitable[Any]]) -> InferResponse:
    """Return the answer. If the client disconnects first, cancel the inference and raise ClientGone."""
    answer = asyncio.ensure_future(answering)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientGone
        return answer.result()
    finally:
        answer.cancel()
        gone.cancel()
        await asyncio.wait({answer, gone})


async def _disconnected(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _hold(request: Call, size: int) -> None:
    """Count the memory of an answer until it was sent. RequestError TOO_LARGE, OVERLOADED."""
    state = request.scope["state"]
    lease = state["until_sent"].enter_context(ports_of(request).bodies.lease(state["admitted"]))
    try:
        lease.take(size)
    except RequestError as error:
        message = f"the answer: {error.message}; binary_data_output takes less memory than JSON"
        raise RequestError(error.fault, message, retry_after_s=error.retry_after_s) from None


async def _response(answer: JsonAnswer, request: Call) -> Response[bytes] | Stream:
    ports, accept = ports_of(request), request.headers.get("accept-encoding", "")
    settings, headers = ports.settings, dict[str, str]()
    if answer.tensors:
        headers[HEADER_LENGTH] = str(sum(map(len, answer.pieces)))
    media_type = "application/octet-stream" if answer.tensors else "application/json"
    encoding = accepted_encoding(accept) if len(answer) >= settings.compress_from_bytes else "identity"
    if encoding != "identity":
        headers["content-encoding"], headers["vary"] = encoding, "accept-encoding"
        steps = compress_steps((*answer.pieces, *answer.tensors), encoding, settings.compression_level)
        content = await ports.inference.decoding.run(request.scope["state"]["caller"], steps, apart=True)
        return Response(content, media_type=media_type, headers=headers)
    if len(answer) <= PIECE_BYTES:
        return Response(bytes(answer), media_type=media_type, headers=headers)
    headers["content-length"] = str(len(answer))
    return Stream(_pieces(answer), media_type=media_type, headers=headers)


async def _pieces(answer: JsonAnswer) -> AsyncIterator[bytes]:
    """Yield the answer in pieces, each after the peer took most of those before it."""
    gathered = bytearray()
    for piece in (*answer.pieces, *answer.tensors):
        for begin in range(0, len(piece), PIECE_BYTES):
            gathered += piece[begin : begin + PIECE_BYTES]
            if len(gathered) >= PIECE_BYTES:
                yield bytes(gathered)
                gathered.clear()
    yield bytes(gathered)
