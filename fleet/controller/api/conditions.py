"""Conditional requests (RFC 9110, 13).

Every GET for operators has a strong ETag, and changes may name the state that they are meant for.
"""

from __future__ import annotations

import functools
import hashlib
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from litestar import MediaType, Response
from litestar.concurrency import sync_to_thread
from litestar.handlers import HTTPRouteHandler
from litestar.handlers.base import BaseRouteHandler
from litestar.serialization import encode_json

from fleet.controller.access import RULES, Action, Reach
from fleet.controller.api.identity import ACTION, Call, Guarded, control_of
from fleet.controller.problems import ProblemError
from fleet.problem_types import PRECONDITION_FAILED, PRECONDITION_REQUIRED
from gateway.common.domain.errors import Fault, RequestError

Route = TypeVar("Route", bound=HTTPRouteHandler)
STATE = "state"
"""Key in a route's `opt`: the GET that shows the state that If-Match names. The route calls `check_state`."""
TAG_CHARACTERS, TAGS_LIMIT = 128, 16
_TAG = rf'(?:W/)?"[!#-~]{{0,{TAG_CHARACTERS}}}"'
LIST_PATTERN = rf"^{_TAG}( ?, ?{_TAG}){{0,{TAGS_LIMIT - 1}}}$"
HEADER_CHARACTERS = TAGS_LIMIT * (TAG_CHARACTERS + len('W/"" , '))
DIGEST_CHARACTERS = 32
"""Hexadecimal digits of an ETag: 128 bits of SHA-256."""
TAG_PATTERN = f'^"[0-9a-f]{{{DIGEST_CHARACTERS}}}"$'


def operation(
    method: Callable[..., Route],
    path: str,
    action: Action,
    summary: str,
    *,
    state: str = "",
    opt: Mapping[str, object] | None = None,
    **more: object,
) -> Route:
    """Return the decorator of a route that performs `action` on a thread. `method`: litestar's, such as `get`.

    `state`: see STATE. `opt`: further keys of the route's `opt`, `more`: further options of litestar.
    """
    keys = {ACTION: action, **({STATE: state} if state else {}), **(opt or {})}
    return method(path, opt=keys, sync_to_thread=True, summary=summary, **more)


def is_operators(handler: BaseRouteHandler) -> bool:
    """Return whether a route is for API tokens."""
    action = handler.opt.get(ACTION)
    return action is not None and RULES[action].reach is not Reach.SELF


def is_change(handler: BaseRouteHandler) -> bool:
    """Return whether an operators' route does more than show."""
    methods: frozenset[str] = getattr(handler, "http_methods", frozenset())
    return is_operators(handler) and "GET" not in methods


def is_tagged(handler: HTTPRouteHandler) -> bool:
    """Return whether a route shows JSON with an ETag."""
    kind = typing.get_type_hints(handler.fn)["return"]
    is_made_there = (isinstance(kind, type) and issubclass(kind, Response)) or typing.get_origin(kind) is Response
    return is_operators(handler) and "GET" in handler.http_methods and not is_made_there


def tag_answers(handler: HTTPRouteHandler) -> None:
    """Add ETags to the answers of an operators' GET, and answer 304 if the caller has the current state."""
    work = handler.fn

    @functools.wraps(work)
    async def tagged(**given: Any) -> Response[bytes]:
        known = _named(given["request"], "if-none-match")
        body, tag = await sync_to_thread(_tagged, work, given)
        if "*" in known or tag in {one.removeprefix("W/") for one in known}:
            return Response(b"", status_code=304, headers={"etag": tag})
        return Response(body, status_code=handler.status_code, media_type=MediaType.JSON, headers={"etag": tag})

    if is_tagged(handler):
        handler._fn = tagged


def _tagged(work: Callable[..., object], given: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return a body and its tag. It runs in a thread."""
    body = encode_json(work(**given))
    return body, _tag(body)


def check_state(request: Call, representation: Callable[[], object]) -> None:
    """Compare If-Match with the current state of the route's resource.

    Call it in the transaction of the change, after its locks. Other routes are left alone. Raise ProblemError 412, 428;
    RequestError INVALID.
    """
    if STATE not in request.route_handler.opt:
        return
    named = _named(request, "if-match")
    if not named and control_of(request).settings.requests.require_if_match:
        problem = f"send If-Match with the ETag of GET {request.route_handler.opt[STATE]}"
        raise ProblemError(PRECONDITION_REQUIRED.status, f"{problem} ([requests] require_if_match = true)")
    if named and "*" not in named and _tag(encode_json(representation())) not in named:
        problem = f"it has changed since it was read; read {request.route_handler.opt[STATE]} again, then decide again"
        raise ProblemError(PRECONDITION_FAILED.status, problem)


def refuse_stateless(connection: Guarded, handler: BaseRouteHandler) -> None:
    """Refuse If-Match other than `*` on a route without a state; a guard of litestar.

    Raise RequestError INVALID.
    """
    if is_change(handler) and STATE not in handler.opt and _named(connection, "if-match") - {"*"}:
        problem = "this route has no state that If-Match could name; send the request without it, or with *"
        raise RequestError(Fault.INVALID, problem)


def _named(request: Guarded, header: str) -> frozenset[str]:
    """Return the tags that a header names. Raise RequestError INVALID."""
    sent = request.headers.getall(header, [])
    if not sent:
        return frozenset()
    given = ", ".join(sent)
    if given == "*":
        return frozenset({given})
    if not re.fullmatch(LIST_PATTERN, given):
        problem = f'{header} is * or up to {TAGS_LIMIT} ETags such as "1f2e", not {given!r:.80}'
        raise RequestError(Fault.INVALID, problem)
    return frozenset(re.findall(_TAG, given))


def _tag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:DIGEST_CHARACTERS]}"'
