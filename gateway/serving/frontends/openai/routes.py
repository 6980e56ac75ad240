"""Endpoints of OpenAI's API. Litestar reads the annotations: import this only to build an application.

The body names the model, so each handler checks the caller's right to it.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from litestar import Request, Response, get, post
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema
from litestar.response import Stream

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.rights import INFER, READ, check_model
from gateway.common.domain.tensor import Array
from gateway.common.domain.text_model import is_generative
from gateway.common.wire.events import HEADERS, MEDIA_TYPE, event
from gateway.serving.domain.infer import InferRequest, InferResponse
from gateway.serving.frontends import documents
from gateway.serving.frontends.http.body import Lease, Most
from gateway.serving.frontends.http.bounds import DEFECT
from gateway.serving.frontends.openai import answers, bodies, responses
from gateway.serving.frontends.openai.errors import FieldError, OpenAIRefusals
from gateway.serving.frontends.rest_v2.authorisation import rights_of
from gateway.serving.frontends.rest_v2.requests import RestPorts, hold_answer
from gateway.serving.frontends.rest_v2.routes import lease_of, ports_of, unless_gone
from gateway.serving.frontends.settings import SERVER_NAME

PING_S = 15.0
"""Time without a part after which a comment is sent: proxies close streams that are silent for 30 to 60 s."""
PING = b": ping\n\n"
TEXTS_A_RUN = 16
"""Texts in a run of a model whose texts an engine joins by itself: between two runs others have their turn."""
_MOST = Most(bodies.BODY_BYTES)
_STARTED_S = int(time.time())

Call = Request[Any, Any, Any]
Document = dict[str, Any]
_Asked = bodies.Chat | bodies.Completion | responses.Body
_Answer = answers.Completions | responses.ResponseItems
_Body = TypeVar("_Body", bodies.Chat, bodies.Completion, bodies.Embeddings, responses.Body)
_log = logging.getLogger(__name__)


class _BodyOperation(Operation):
    """Body that the handler reads from the stream itself."""

    def __post_init__(self) -> None:
        """Add the body."""
        media = {"application/json": OpenAPIMediaType(schema=Schema(type=OpenAPIType.OBJECT, required=["model"]))}
        self.request_body = RequestBody(required=True, content=media)


def _post(path: str, summary: str) -> post:
    return post(path, status_code=200, summary=summary, operation_class=_BodyOperation, opt={"needs": INFER})


@get("/v1/models", summary="Models of OpenAI's API", opt={"needs": READ})
async def models(request: Call) -> Document:
    """Return the language models and those that give embeddings which are ready and which the caller may see."""
    ports, rights = ports_of(request), rights_of(request.scope["state"])
    ready = documents.repository_index(ports.repository.index(), rights, only_ready=True)
    names = {line["name"] for line in ready} | {f"{line['name']}@{line['version']}" for line in ready}
    found = list[str]()
    for name in sorted(names):
        with suppress(RequestError):  # it was unloaded since
            manifest = ports.inference.describe(*_parted(name)[:2])
            found += [name, *(f"{name}:{each}" for each in manifest.adapters)] if answers.serves(manifest) else []
    return {"object": "list", "data": [_model(name) for name in found]}


@get("/v1/models/{named:str}", summary="Model of OpenAI's API", opt={"needs": READ})
async def model(request: Call) -> Document:
    """Return one of these models: `name`, or `name@version`, either with `:adapter`."""
    name = request.path_params["named"]
    if not answers.serves(_described(request, name)):
        raise _unsuited(name, "is no language model and gives no embeddings")
    return _model(name)


@_post("/v1/chat/completions", "Chat")
async def chat(request: Call) -> Response[bytes] | Stream:
    """Answer a chat, whole or in parts (`stream`)."""
    return await _completed(request, *await _asked(request, bodies.Chat))


@_post("/v1/completions", "Text completion")
async def completions(request: Call) -> Response[bytes] | Stream:
    """Continue a text, whole or in parts (`stream`)."""
    return await _completed(request, *await _asked(request, bodies.Completion))


@_post("/v1/embeddings", "Embeddings")
async def embeddings(request: Call) -> Response[bytes]:
    """Answer with a vector for each text, of any model with one text input and one vector output."""
    ports = ports_of(request)
    asked, lease = await _asked(request, bodies.Embeddings)
    manifest, texts = _described(request, asked.model), [asked.input] if isinstance(asked.input, str) else asked.input
    how = answers.embedder(manifest)
    if how is None:
        raise _unsuited(asked.model, "gives no embeddings: it has not one text input and one vector output")
    vectors = await unless_gone(_embeddings(ports, manifest, how, asked, texts, lease), request.receive)
    lease.become(sum(vector.nbytes for vector in vectors))
    steps = answers.embedding_steps(vectors, asked.model, asked.encoding_format, asked.dimensions)
    content = await ports.inference.decoding.run(lease.caller, steps)
    hold_answer(lease, len(content))
    return Response(content, media_type="application/json")


@_post("/v1/responses", "Response")
async def respond(request: Call) -> Response[bytes] | Stream:
    """Answer an input, whole or in parts (`stream`). Nothing is stored."""
    return await _completed(request, *await _asked(request, responses.Body))


HANDLERS = (models, model, chat, completions, embeddings, respond)


async def _asked(request: Call, kind: type[_Body]) -> tuple[_Body, Lease]:
    """Read the body. Raises RequestError."""
    ports, lease = ports_of(request), lease_of(request)
    body = bytes(await ports.bodies.read(request.receive, dict(request.headers), lease, _MOST))
    lease.take(len(body))  # of its decoded form
    return bodies.read(body, kind), lease


async def _completed(request: Call, asked: _Asked, lease: Lease) -> Response[bytes] | Stream:
    if not is_generative(_described(request, asked.model)):
        raise _unsuited(asked.model, "is no language model")
    ports, (model, version, adapter), created_s = ports_of(request), _parted(asked.model), int(time.time())
    answer: _Answer
    if isinstance(asked, responses.Body):
        documents = asked.documents(adapter)
        answer = responses.ResponseItems("resp_" + secrets.token_hex(12), created_s, asked)
    else:
        documents, is_chat = bodies.documents(asked, adapter), isinstance(asked, bodies.Chat)
        ident = ("chatcmpl-" if is_chat else "cmpl-") + secrets.token_hex(12)
        usage = asked.stream_options is not None and asked.stream_options.include_usage
        answer = answers.Completions(ident, created_s, asked.model, is_chat, asked.n or 1, usage)
    wanted = [answers.language_request(each, model, version, lease.caller) for each in documents]
    if asked.stream:
        events = _events(answer, [ports.inference.infer_in_parts(each) for each in wanted])
        first = await unless_gone(anext(events), request.receive)  # a refusal before it has a status of its own
        refusals = OpenAIRefusals(ports.settings.retry_after_s)
        return Stream(_with_errors(first, events, refusals), media_type=MEDIA_TYPE, headers=HEADERS)
    content = answer.whole(await unless_gone(_all(ports, wanted), request.receive))
    hold_answer(lease, len(content))
    return Response(content, media_type="application/json")


async def _all(ports: RestPorts, wanted: Sequence[InferRequest]) -> list[InferResponse]:
    """Return the answers to all requests. If one fails, the others are abandoned."""
    tasks = [asyncio.ensure_future(ports.inference.infer(each)) for each in wanted]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _events(
    answer: _Answer, choices: Sequence[AsyncGenerator[tuple[InferResponse, bool], None]]
) -> AsyncGenerator[bytes, None]:
    """Yield the events of each part of the choices, as they come, then the last; PING if nothing came for PING_S."""
    waiting = {asyncio.ensure_future(anext(each)): place for place, each in enumerate(choices)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, timeout=PING_S, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                yield PING
            for task in sorted(done, key=waiting.__getitem__):
                response, is_last = task.result()
                place = waiting.pop(task)
                if not is_last:
                    waiting[asyncio.ensure_future(anext(choices[place]))] = place
                if content := answer.part(place, response, is_last=is_last):
                    yield content
        yield answer.end(response)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for each in choices:
            await each.aclose()


async def _with_errors(
    first: bytes, events: AsyncGenerator[bytes, None], refusals: OpenAIRefusals
) -> AsyncIterator[bytes]:
    """Yield the events. What fails after the first one is an event with `error`, and the last one."""
    async with aclosing(events):
        try:
            yield first
            async for each in events:
                yield each
        except RequestError as error:
            yield event(refusals.error(error).body)
        except Exception:  # noqa: BLE001  the status was sent
            _log.exception("an answer in parts failed")
            yield event(refusals.plain(500, DEFECT).body)


async def _embeddings(  # noqa: PLR0917  what a request is made of
    ports: RestPorts,
    manifest: ModelManifest,
    how: answers.Embedder,
    asked: bodies.Embeddings,
    texts: list[str],
    lease: Lease,
) -> list[Array]:
    """Return the vector of each text. One run at a time: queues are short."""
    _, version, _ = _parted(asked.model)
    rows = TEXTS_A_RUN if how.rows else 1
    if manifest.batched:
        rows = max(1, ports.inference.placement(manifest.name, version).max_batch_rows)
    found: list[Array] = []
    for begin in range(0, len(texts), rows):
        some = texts[begin : begin + rows]
        found += how.vectors(await ports.inference.infer(how.request(some, manifest, version, lease.caller)), len(some))
    return found


def _described(request: Call, name: str) -> ModelManifest:
    """Return the manifest of a model that the caller may use. Raises RequestError."""
    (model, version, adapter), state = _parted(name), request.scope["state"]
    check_model(state.get("caller", ""), rights_of(state), model)
    try:
        manifest = ports_of(request).inference.describe(model, version)
    except RequestError as error:
        if error.fault is not Fault.NOT_FOUND:
            raise
    else:
        if not adapter or adapter in manifest.adapters:
            return manifest
        known = f"it has {', '.join(manifest.adapters)}" if manifest.adapters else "it has none"
        raise RequestError(Fault.NOT_FOUND, f"model '{model}' has no adapter '{adapter:.200}'; {known}")
    words = f"no model is called '{name:.200}' here; GET /v1/models lists those that answer, and the page 'OpenAI'"
    raise RequestError(Fault.NOT_FOUND, f"{words} of the documentation says how to add one")


def _parted(name: str) -> tuple[str, str, str]:
    """Return model, version and adapter of `name`, `name@version`, or either with `:adapter`."""
    named, _, adapter = name.partition(":")
    model, _, version = named.partition("@")
    return model, version, adapter


def _unsuited(name: str, what: str) -> FieldError:
    return FieldError(f"model '{name:.200}' {what}; GET /v1/models lists those that answer here", "model")


def _model(name: str) -> Document:
    return {"id": name, "object": "model", "created": _STARTED_S, "owned_by": SERVER_NAME}
