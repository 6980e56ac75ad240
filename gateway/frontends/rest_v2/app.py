"""The ASGI application: endpoints behind the door. Import this only to build one (it loads litestar)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

from litestar import Litestar, Request, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException

from gateway.domain.access import Security
from gateway.domain.errors import RequestError
from gateway.domain.ports import Inference, Repository, Statistics
from gateway.frontends.regions import Regions
from gateway.frontends.rest_v2.body import BodyReader, ClientGone, SlowBody
from gateway.frontends.rest_v2.door import Application, Door
from gateway.frontends.rest_v2.errors import Refusal, refusal
from gateway.frontends.rest_v2.openapi import openapi_config
from gateway.frontends.rest_v2.regions import REGION_HANDLERS
from gateway.frontends.rest_v2.routes import HANDLERS, Ports
from gateway.frontends.rest_v2.settings import RestSettings

CLIENT_CLOSED_REQUEST = 499
"""nginx's code for "nobody is left to be answered"; it never reaches a wire."""

Call = Request[Any, Any, Any]
_log = logging.getLogger(__name__)


def create_app(  # noqa: PLR0917  as RestFrontend, which calls it
    inference: Inference,
    repository: Repository,
    statistics: Statistics,
    settings: RestSettings,
    security: Security,
    metrics_text: Callable[[], Awaitable[tuple[bytes, str]]],
    regions: Regions | None = None,
) -> Application:
    """The whole REST frontend as one ASGI application. `metrics_text` gives the metrics page and its content type."""
    ports = Ports(inference, repository, statistics, settings, metrics_text, BodyReader(settings), regions)
    app = Litestar(
        route_handlers=(*HANDLERS, *REGION_HANDLERS),
        state=State({"ports": ports}),
        openapi_config=openapi_config(),
        exception_handlers={
            RequestError: _refused,
            SlowBody: _refused,
            ClientGone: _gone,
            HTTPException: _http_error,
            Exception: _defect,
        },
        logging_config=None,
        request_max_body_size=None,
        debug=False,
    )
    return Door(cast("Application", app), settings, security.tokens)


def _refused(request: Call, error: RequestError | SlowBody) -> Response[bytes]:
    return _response(refusal(error, request.app.state.ports.settings.retry_after_s))


def _gone(_: Call, __: ClientGone) -> Response[bytes]:
    return Response(b"", status_code=CLIENT_CLOSED_REQUEST)


def _http_error(request: Call, error: HTTPException) -> Response[bytes]:
    """Unknown path, wrong method and the like, as litestar found them."""
    path = request.scope["path"]  # not request.url: a Host that is none breaks it
    detail = {404: f"there is no {path}", 405: f"{request.method} is not possible on {path}"}
    headers = tuple((error.headers or {}).items())
    return _response(Refusal(error.status_code, detail.get(error.status_code, error.detail), headers))


def _defect(request: Call, error: Exception) -> Response[bytes]:
    """A defect of ours: told in full to the log, and to the caller that it is not the caller's fault."""
    _log.error("a request to %s failed", request.scope["path"], exc_info=error)
    return _response(Refusal(500, "internal error; the gateway's log says more"))


def _response(answer: Refusal) -> Response[bytes]:
    return Response(answer.body, status_code=answer.status, media_type="application/json", headers=dict(answer.headers))
