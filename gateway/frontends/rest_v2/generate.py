"""Endpoints of Triton's generate extension. Litestar reads the annotations: import only to build an application."""

import time

from litestar import Response, post

from gateway.domain.rights import INFER
from gateway.frontends.rest_v2.openapi import GenerateOperation
from gateway.frontends.rest_v2.requests import hold_answer, most_of
from gateway.frontends.rest_v2.routes import MODEL, VERSION, Call, lease_of, names_of, ports_of, unless_gone
from gateway.frontends.rest_v2.texts import text_answer, text_model, text_request


@post(
    [MODEL + "/generate", VERSION + "/generate"],
    status_code=200,
    summary="Text for a text",
    operation_class=GenerateOperation,
    opt={"needs": INFER},
)
async def generate(request: Call) -> Response[bytes]:
    """Answer one text with one text, of a model that has one text input and one text output."""
    return Response(await _generated(request), media_type="application/json")


@post(
    [MODEL + "/generate_stream", VERSION + "/generate_stream"],
    status_code=200,
    summary="Text for a text, as Server-Sent Events",
    operation_class=GenerateOperation,
    media_type="text/event-stream",
    opt={"needs": INFER},
)
async def generate_stream(request: Call) -> Response[bytes]:
    """Answer as `generate` does, in one Server-Sent Event: every request has one answer."""
    content = b"data: " + await _generated(request) + b"\n\n"
    return Response(content, media_type="text/event-stream")  # litestar adds the charset


async def _generated(request: Call) -> bytes:
    ports, (name, version), lease = ports_of(request), names_of(request), lease_of(request)
    model = text_model(ports.inference.describe(name, version))
    body = await ports.bodies.read(request.receive, dict(request.headers), lease, most_of(ports, name, None))
    now_ns = time.monotonic_ns()
    asked, key = text_request(bytes(body), model, version, caller=lease.caller, now_ns=now_ns)
    response = await unless_gone(ports.inference.infer(asked), request.receive)
    content = text_answer(response, key)
    hold_answer(lease, len(content))
    return content


GENERATE_HANDLERS = (generate, generate_stream)
