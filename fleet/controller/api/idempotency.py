"""Header Idempotency-Key, on every POST for operators."""

from __future__ import annotations

import functools
import hashlib
import re
from typing import Any

from litestar import MediaType, Response
from litestar.concurrency import sync_to_thread
from litestar.handlers import HTTPRouteHandler
from litestar.serialization import encode_json

from fleet.controller.api.conditions import is_operators
from fleet.controller.api.identity import Call, bearer_of, control_of, known_token
from fleet.controller.control.idempotency import KeyedAnswer, KeyedRequest
from fleet.controller.database.idempotency import Key
from gateway.common.domain.errors import Fault, RequestError

HEADER = "idempotency-key"
REPEATED = "idempotency-replayed"
"""Header of an answer that was given before."""
KEY_CHARACTERS = 255
_TEXT = r"[!#-+\--\[\]-~]"
PATTERN = rf'^("{_TEXT}{{1,{KEY_CHARACTERS}}}"|{_TEXT}{{1,{KEY_CHARACTERS}}})$'
"""Pattern of a String of RFC 9651, or its text alone, as many clients send it.

ASCII without space, comma, quote or backslash.
"""


def takes_key(handler: HTTPRouteHandler) -> bool:
    """Return whether a route is an operators' POST."""
    return "POST" in handler.http_methods and is_operators(handler)


def take_keys(handler: HTTPRouteHandler) -> None:
    """Make an operators' POST carry out a request with a key once. Other routes stay as they are."""
    work = handler.fn

    @functools.wraps(work)
    async def once(**given: Any) -> Any:
        request: Call = given["request"]
        key = key_of(request)
        if key is None or not bearer_of(request):
            return await sync_to_thread(work, **given)
        head = f"{request.method} {request.scope['path']}?".encode(errors="surrogatepass")
        head += bytes(request.scope["query_string"])
        digest = hashlib.sha256(
            hashlib.sha256(head).digest() + hashlib.sha256(await request.body()).digest()
        ).hexdigest()

        def answered() -> KeyedAnswer:
            return KeyedAnswer(handler.status_code, encode_json(work(**given)))

        answer = await sync_to_thread(_once, request, key, digest, answered)
        headers = {REPEATED: "true"} if answer.repeated else {}
        return Response(answer.body, status_code=answer.status, media_type=MediaType.JSON, headers=headers)

    if takes_key(handler):
        handler._fn = once


def key_of(request: Call) -> str | None:
    """Return the key without its quotes, or None. Raise RequestError INVALID."""
    values = request.headers.getall(HEADER, [])
    if not values:
        return None
    if len(values) > 1 or not re.fullmatch(PATTERN, values[0]):
        form = f"1 to {KEY_CHARACTERS} ASCII characters without space, comma, quote and backslash"
        problem = f"Idempotency-Key is one text of {form}, such as a UUID; not {', '.join(values)!r:.80}"
        raise RequestError(Fault.INVALID, problem)
    return values[0].strip('"')


def _once(request: Call, key: str, digest: str, work: Any) -> KeyedAnswer:
    control = control_of(request)
    token = known_token(request)
    asked = KeyedRequest(Key(token.id, hashlib.sha256(key.encode()).hexdigest()), digest, bearer_of(request))
    return control.answers.once(asked, work, control.clock())
