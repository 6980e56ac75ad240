"""Common parts of all ASGI applications here: refusals and the OpenAPI document. It loads litestar."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from http import HTTPStatus
from typing import Any, cast

from litestar import Litestar, Request, Response, Router
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, OpenAPIType, Operation, Schema
from litestar.types import Method
from litestar.types.internal_types import PathParameterDefinition

from gateway import __version__
from gateway.common.domain.errors import RequestError
from gateway.common.domain.rights import ANY_CALLER
from gateway.common.wire.asgi import Application, AsgiRefusal
from gateway.serving.frontends.http.body import ClientGone
from gateway.serving.frontends.http.bounds import DEFECT, Refuse, SlowBody

CLIENT_CLOSED_REQUEST = 499
"""Code of nginx for a client that closed the connection; it is never sent."""

Call = Request[Any, Any, Any]
_log = logging.getLogger(__name__)


def application(
    handlers: Sequence[Any],
    ports: object,
    refuse: Refuse,
    *,
    title: str,
    description: str,
    more: Mapping[type[Exception], Callable[[Any], AsgiRefusal]] | None = None,
    guard: Callable[[Any, Any], None] | None = None,
) -> Application:
    """Return an ASGI application of litestar's `handlers`, which find `ports` in `request.app.state.ports`.

    `more`: errors that only this frontend's handlers raise, and their answers. `guard` is called with the connection
    and its handler before each one. The `opt` of a handler holds the scopes that it needs.

    The document is at /schema/openapi.json only: litestar's pages would load their scripts from other hosts.
    """
    words = _Words(refuse)
    documented = [copy(handler) for handler in handlers]
    for handler in documented:
        handler.operation_class = partial(_operation, handler.operation_class, refuse.plain(500, DEFECT).media_type)
    app = Litestar(
        route_handlers=documented,
        state=State({"ports": ports}),
        openapi_config=OpenAPIConfig(
            title=title,
            version=__version__,
            description=description,
            path="/schema",
            render_plugins=[JsonRenderPlugin()],
            openapi_router=Router(
                "/schema",
                route_handlers=[],
                include_in_schema=False,
                after_request=words.document,
                opt={"needs": ANY_CALLER},
            ),
            operation_id_creator=_operation_id,
        ),
        exception_handlers={
            RequestError: words.refused,
            SlowBody: words.refused,
            ClientGone: lambda _, __: Response(b"", status_code=CLIENT_CLOSED_REQUEST),
            HTTPException: words.http_error,
            Exception: words.defect,
            **{kind: _answering(answer) for kind, answer in (more or {}).items()},
        },
        guards=[guard] if guard else [],
        logging_config=None,
        request_max_body_size=None,
        debug=False,
    )
    return cast("Application", app)


class _Words:
    """Error responses in the form of the frontend."""

    def __init__(self, refuse: Refuse) -> None:
        self._refuse = refuse

    def refused(self, request: Call, error: RequestError | SlowBody) -> Response[bytes]:
        return _response(self._refuse.at(request.scope["path"]).error(error))

    def http_error(self, request: Call, error: HTTPException) -> Response[bytes]:
        """Return the response to an error of litestar, such as an unknown path or a wrong method."""
        path = request.scope["path"]  # not request.url: an invalid Host breaks it
        detail = {404: f"there is no {path}", 405: f"{request.method} is not possible on {path}"}
        headers = tuple((error.headers or {}).items())
        message = detail.get(error.status_code, error.detail)
        return _response(self._refuse.at(path).plain(error.status_code, message, headers))

    def defect(self, request: Call, error: Exception) -> Response[bytes]:
        """Log a defect in full, and return a response that attributes it to the server."""
        _log.error("a request to %s failed", request.scope["path"], exc_info=error)
        return _response(self._refuse.at(request.scope["path"]).plain(500, DEFECT))

    def document(self, response: Response[bytes]) -> Response[bytes]:
        """Replace litestar's HTML page for an unknown path below /schema: every other error here is JSON."""
        if response.status_code != HTTPStatus.NOT_FOUND:
            return response
        return _response(self._refuse.plain(404, "there is no such document; see /schema/openapi.json"))


def _answering(answer: Callable[[Any], AsgiRefusal]) -> Callable[[Call, Any], Response[bytes]]:
    return lambda _, error: _response(answer(error))


def _response(answer: AsgiRefusal) -> Response[bytes]:
    headers = dict(answer.headers)
    return Response(answer.body, status_code=answer.status, media_type=answer.media_type, headers=headers)


def _operation(kind: type[Operation], media_type: str, **fields: Any) -> Operation:
    """Return an operation with the form of its refusals, whatever their status, instead of litestar's own."""
    made, schema = kind(**fields), Schema(type=OpenAPIType.OBJECT)
    refusal = OpenAPIResponse("refused", content={media_type: OpenAPIMediaType(schema=schema)})
    succeeded = {status: each for status, each in (made.responses or {}).items() if status.startswith("2")}
    made.responses = {**succeeded, "default": refusal}
    return made


def _operation_id(_: HTTPRouteHandler, method: Method, path: list[str | PathParameterDefinition]) -> str:
    """Return an id such as "get_v2_models_model_ready", unique also for handlers with two paths; litestar's are not."""
    parts = [part if isinstance(part, str) else part.name for part in path]
    return "_".join([str(getattr(method, "value", method)).lower(), *parts]).replace(".", "_")
