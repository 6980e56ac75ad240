"""Endpoints of REST. Litestar reads the annotations when it builds the application: import this only to build one."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
from litestar import HttpMethod, Request, Response, get, post, route
from litestar.openapi.spec import Operation
from litestar.response import Stream

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.problem import error_text
from gateway.common.domain.rights import ANY_CALLER, CONTROL, INFER, METRICS, READ
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.common.domain.text_model import STREAM, is_generative
from gateway.common.wire.events import HEADERS, MEDIA_TYPE, event
from gateway.serving.domain.infer import InferRequest, InferResponse, RequestedOutput
from gateway.serving.frontends import documents
from gateway.serving.frontends.http.body import ClientGone, Lease
from gateway.serving.frontends.not_offered import no_log_settings, no_trace_settings, refuse_load_parameters
from gateway.serving.frontends.oip_json import JsonRequest
from gateway.serving.frontends.oip_json_answers import JsonAnswer, answer_steps, most_bytes_steps
from gateway.serving.frontends.oip_json_literals import malformed
from gateway.serving.frontends.regions import EXTENSION
from gateway.serving.frontends.rest_v2.answers import PIECE_BYTES, encoded
from gateway.serving.frontends.rest_v2.authorisation import rights_of
from gateway.serving.frontends.rest_v2.openapi import GenerateOperation, InferOperation, ResultOperation
from gateway.serving.frontends.rest_v2.requests import (
    HEADER_LENGTH,
    RestPorts,
    decode_large,
    hold_answer,
    most_of,
)
from gateway.serving.frontends.rest_v2.texts import (
    language_answer,
    language_request,
    text_answer,
    text_model,
    text_request,
)

MODEL = "/v2/models/{model:str}"
VERSION = MODEL + "/versions/{version:str}"
UNAVAILABLE = 503
ENCODED = frozenset({"image/jpeg", "image/png", "audio/wav"})
"""Content types of a body that is one image or recording."""

Document = dict[str, Any]
Call = Request[Any, Any, Any]
T = TypeVar("T")


class _IndexBody(msgspec.Struct):
    ready: bool = False


class _LoadBody(msgspec.Struct):
    parameters: dict[str, bool | int | float | str] | None = None


def _inference(end: str, summary: str, kind: type[Operation], **more: Any) -> post:
    """Return the decorator of a route below a model and below a version that infers. `more`: options of litestar."""
    paths, needs = [MODEL + end, VERSION + end], {"needs": INFER}
    return post(paths, status_code=200, summary=summary, operation_class=kind, opt=needs, **more)


@get("/v2", summary="Server metadata", opt={"needs": READ})
async def server_metadata(request: Call) -> Document:
    """Return name, version and the extensions that work here."""
    return metadata_of(ports_of(request))


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
    model, version = names_of(request)
    is_ready = ports_of(request).inference.ready(model, version)
    return Response({"name": model, "ready": is_ready}, status_code=200 if is_ready else UNAVAILABLE)


@get("/v2/models", summary="Models", opt={"needs": READ})
async def models(request: Call) -> Document:
    """Return the names of the models that are ready and that the caller may see, as KServe's server does."""
    lines = ports_of(request).repository.index()
    ready = documents.repository_index(lines, rights_of(request.scope["state"]), only_ready=True)
    return {"models": sorted({line["name"] for line in ready})}


@get([MODEL, VERSION], summary="Model metadata", opt={"needs": READ})
async def model_metadata(request: Call) -> Document:
    """Return inputs and outputs with the batch dimension, and the versions that are ready."""
    ports = ports_of(request)
    return documents.model_metadata(*documents.described(ports.inference, ports.repository, *names_of(request)))


@get([MODEL + "/config", VERSION + "/config"], summary="Model configuration", opt={"needs": READ})
async def model_config(request: Call) -> Document:
    """Return Triton's model configuration: dims without the batch dimension."""
    ports = ports_of(request)
    return documents.model_config(*documents.described(ports.inference, ports.repository, *names_of(request)))


@get(["/v2/models/stats", MODEL + "/stats", VERSION + "/stats"], summary="Model statistics", opt={"needs": READ})
async def model_statistics(request: Call) -> Document:
    """Return Triton's counters of one version, of all versions of a model, or of all models that the caller may see."""
    statistics, rights = ports_of(request).statistics, rights_of(request.scope["state"])
    return documents.model_statistics(documents.visible_statistics(statistics, rights, *names_of(request)))


@get([MODEL + "/steps", VERSION + "/steps"], summary="Steps of a pipeline", opt={"needs": READ})
async def pipeline_steps(request: Call) -> Document:
    """Return the graph of a pipeline: what each step reads, its conditions, and its counters."""
    ports, (model, version) = ports_of(request), names_of(request)
    pipeline = ports.inference.placement(model, version).pipeline
    if pipeline is None:
        raise RequestError(Fault.INVALID, f"model '{model}' is no pipeline: it has no steps")
    counted = ports.statistics.statistics(model, pipeline.version)
    return documents.pipeline_steps(pipeline, counted[0].steps if counted else {})


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
    model, _ = names_of(request)
    await ports_of(request).repository.load(model)
    return {"name": model, "load": True}


@post("/v2/repository/models/{model:str}/unload", status_code=200, summary="Unload a model", opt={"needs": CONTROL})
async def unload(request: Call) -> Document:
    """Drain and unload all versions of the model."""
    await optional_body(request, _LoadBody)
    model, _ = names_of(request)
    await ports_of(request).repository.unload(model)
    return {"name": model, "unload": True}


@_inference("/infer", "Inference", InferOperation)
async def infer(request: Call) -> Response[bytes] | Stream:
    """Answer one inference request, in JSON or with binary tensors. A client that leaves abandons its request."""
    ports = ports_of(request)
    ports.inference.describe(*names_of(request))  # an unknown model is refused before its body is read
    lease = lease_of(request)
    asked = await _asked(request, lease)
    response = await unless_gone(ports.inference.infer(asked.request), request.receive)
    asked = replace(asked, request=replace(asked.request, inputs={}))  # nothing holds the body any more
    decoding, caller = ports.inference.decoding, lease.caller
    hold_answer(lease, await decoding.run(caller, most_bytes_steps(response, asked)))
    answer = await decoding.run(caller, answer_steps(response, asked, literals=True))
    return await _response(answer, request)


@_inference("/result", "Result of the model's task", ResultOperation)
async def result(request: Call) -> Response[bytes]:
    """Answer an inference request, or an image or recording as the body, with the result of the model's task."""
    ports = ports_of(request)
    manifest = ports.inference.describe(*names_of(request))
    media, lease = media_of(request.headers.get("content-type", "")), lease_of(request)
    name = check_task(manifest, media)
    if media in ENCODED:
        body = bytes(await ports.bodies.read(request.receive, dict(request.headers), lease))
        asked = encoded_request(manifest, body, names_of(request), lease.caller)
    else:
        asked = (await _asked(request, lease)).request
    asked = replace(asked, outputs=(RequestedOutput(name),))
    response = await unless_gone(ports.inference.infer(asked), request.receive)
    content = result_body(response.outputs[name])
    hold_answer(lease, len(content))
    return Response(content, media_type="application/json")


@get("/metrics", summary="Metrics", media_type="text/plain", opt={"needs": METRICS})
async def metrics(request: Call) -> Response[bytes]:
    """Return counters and gauges in Prometheus' text format."""
    text, content_type = await ports_of(request).metrics_text()
    # litestar adds the charset of text itself
    return Response(text, media_type=content_type.partition("; charset=")[0])


def metadata_of(ports: RestPorts) -> Document:
    """Return the server metadata."""
    shared = () if ports.regions is None else (EXTENSION,)
    return documents.server_metadata("binary_tensor_data", *shared)


def ports_of(request: Call) -> RestPorts:
    """Return the objects with which the application was built."""
    return cast("RestPorts", request.app.state.ports)


def names_of(request: Call) -> tuple[str, str]:
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
            raise RequestError(Fault.INVALID, f"the request body: {malformed(body, error)}") from None


async def _asked(request: Call, lease: Lease) -> JsonRequest:
    """Read the body, and return the request in it."""
    ports, names, headers = ports_of(request), names_of(request), dict(request.headers)
    length = headers.get(HEADER_LENGTH)
    body = await ports.bodies.read(request.receive, headers, lease, most_of(ports, names[0], length))
    return await decode_large(ports, memoryview(body).toreadonly(), length, names, lease)


async def unless_gone(answering: Awaitable[T], receive: Callable[[], Awaitable[Any]]) -> T:
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


def lease_of(request: Call) -> Lease:
    """Return a lease for the memory of a request, and then of its answer until it was sent."""
    state = request.scope["state"]
    lease: Lease = state["until_sent"].enter_context(ports_of(request).bodies.lease(state["admitted"]))
    return lease


async def _response(answer: JsonAnswer, request: Call) -> Response[bytes] | Stream:
    accept, caller = request.headers.get("accept-encoding", ""), request.scope["state"]["caller"]
    content = await encoded(answer, accept, ports_of(request), caller)
    media_type, fields = content.fields.pop("content-type"), content.fields
    if content.size <= PIECE_BYTES:
        return Response(b"".join(content.pieces), media_type=media_type, headers=fields)
    fields["content-length"] = str(content.size)
    return Stream(_sent(content.pieces), media_type=media_type, headers=fields)


async def _sent(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield each piece after the peer took most of those before it."""
    for piece in pieces:
        yield piece


@_inference("/generate", "Text for a text", GenerateOperation)
async def generate(request: Call) -> Response[bytes]:
    """Answer one text with one text, of a language model or one that has one text input and one text output."""
    return Response(await _generated(request), media_type="application/json")


@_inference("/generate_stream", "Text for a text, as Server-Sent Events", GenerateOperation, media_type=MEDIA_TYPE)
async def generate_stream(request: Call) -> Response[bytes] | Stream:
    """Answer as `generate` does, in Server-Sent Events: one for each part of a language model's answer.

    What fails after the first one is an event with `error`. A client that leaves abandons its request.
    """
    ports, (name, version) = ports_of(request), names_of(request)
    if not is_generative(ports.inference.describe(name, version)):
        return Response(event(await _generated(request)), media_type=MEDIA_TYPE)  # litestar adds the charset
    asked, lease = await _language_asked(request)
    if STREAM in asked.inputs and not asked.inputs[STREAM].array.all():
        return Response(event(await _answered(request, asked, lease, language_answer)), media_type=MEDIA_TYPE)
    parts = ports.inference.infer_in_parts(asked)
    first, is_last = await unless_gone(anext(parts), request.receive)
    return Stream(_events(first, parts, ends=is_last), media_type=MEDIA_TYPE, headers=HEADERS)


async def _events(
    first: InferResponse, parts: AsyncGenerator[tuple[InferResponse, bool], None], *, ends: bool
) -> AsyncIterator[bytes]:
    async with aclosing(parts):
        try:
            yield event(language_answer(first))
            while not ends:
                response, ends = await anext(parts)
                yield event(language_answer(response))
        except RequestError as error:
            yield event(msgspec.json.encode({"error": error_text(error.message)}))


async def _generated(request: Call) -> bytes:
    ports, (name, version) = ports_of(request), names_of(request)
    manifest = ports.inference.describe(name, version)
    if is_generative(manifest):
        return await _answered(request, *await _language_asked(request), language_answer)
    model = text_model(manifest)
    body, lease = await _text_body(request)
    asked, key = text_request(body, model, version, caller=lease.caller, now_ns=time.monotonic_ns())
    return await _answered(request, asked, lease, lambda response: text_answer(response, key))


async def _language_asked(request: Call) -> tuple[InferRequest, Lease]:
    """Read the body, and return the request to a language model in it."""
    body, lease = await _text_body(request)
    names, now_ns = names_of(request), time.monotonic_ns()
    return language_request(body, *names, caller=lease.caller, now_ns=now_ns), lease


async def _text_body(request: Call) -> tuple[bytes, Lease]:
    ports, lease = ports_of(request), lease_of(request)
    most = most_of(ports, names_of(request)[0], None)
    return bytes(await ports.bodies.read(request.receive, dict(request.headers), lease, most)), lease


async def _answered(
    request: Call, asked: InferRequest, lease: Lease, encode: Callable[[InferResponse], bytes]
) -> bytes:
    content = encode(await unless_gone(ports_of(request).inference.infer(asked), request.receive))
    hold_answer(lease, len(content))
    return content


@route(
    ["/v2/trace/setting", MODEL + "/trace/setting"],
    http_method=[HttpMethod.GET, HttpMethod.POST],
    include_in_schema=False,
    opt={"needs": ANY_CALLER},
)
async def trace_setting() -> None:
    """Refuse to read or change the trace settings."""
    raise no_trace_settings()


@route("/v2/logging", http_method=[HttpMethod.GET, HttpMethod.POST], include_in_schema=False, opt={"needs": ANY_CALLER})
async def log_settings() -> None:
    """Refuse to read or change the log settings."""
    raise no_log_settings()


def media_of(content_type: str) -> str:
    """Return the media type of a Content-Type header, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def check_task(manifest: ModelManifest, media: str) -> str:
    """Return the name of the output with results.

    Raises RequestError INVALID for a model without a task, and for a content that the model does not take.
    """
    if not manifest.answered:
        problem = f"model '{manifest.name}' has no task, so that its outputs are tensors only; send it to /infer"
        raise RequestError(Fault.INVALID, f"{problem}, or declare [task] in its manifest")
    if media in ENCODED and [spec.takes_encoded for spec in manifest.inputs] != [True]:
        problem = f"model '{manifest.name}' takes no {media} as its only input; send an inference request in JSON"
        raise RequestError(Fault.INVALID, problem)
    return manifest.answered[0]


def encoded_request(manifest: ModelManifest, encoded: bytes, names: tuple[str, str], caller: str) -> InferRequest:
    """Return the request for one encoded image or recording; `names` are model and version of the request."""
    content = np.empty(1, object)
    content[0] = encoded
    model, version = names
    return InferRequest(model, {manifest.inputs[0].name: Tensor(Datatype.BYTES, content)}, version, caller=caller)


def result_body(results: Tensor) -> bytes:
    """Return the result of the only row, or `{"results": […]}` with one for each of several rows."""
    rows = list(results.array.ravel())
    return bytes(rows[0]) if len(rows) == 1 else b'{"results": [' + b", ".join(rows) + b"]}"


HANDLERS = (
    server_metadata,
    live,
    ready,
    model_ready,
    models,
    model_metadata,
    model_config,
    model_statistics,
    pipeline_steps,
    repository_index,
    load,
    unload,
    infer,
    result,
    metrics,
    generate,
    generate_stream,
)
REFUSING_HANDLERS = (trace_setting, log_settings)
"""Endpoints of Triton's extensions that this gateway does not offer."""
