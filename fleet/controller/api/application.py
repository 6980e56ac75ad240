"""All routes as one ASGI application, its error responses, and its OpenAPI document at /schema/openapi.json."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, cast

from litestar import Litestar, Request, Response, Router, route
from litestar.datastructures import State
from litestar.exceptions import HTTPException, ValidationException
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import Method
from litestar.types.internal_types import PathParameterDefinition

from fleet import events
from fleet.controller.api import (
    alerts,
    audit,
    blobs,
    changes,
    devices,
    devices_labels,
    diagnostics,
    drafts,
    enrol,
    enrolments,
    health,
    problems,
    publication,
    releases,
    rollouts,
    rollouts_archive,
    selves,
    telemetry,
    tokens,
)
from fleet.controller.api import events as event_routes
from fleet.controller.api.conditions import STATE, is_operators, is_tagged, refuse_stateless, tag_answers
from fleet.controller.api.document import BODY, CHECKED, SchemaRenderer, allowed_methods
from fleet.controller.api.idempotency import take_keys, takes_key
from fleet.controller.api.identity import named
from fleet.controller.api.parameters import note_optional, refuse_null
from fleet.controller.control.control import Control
from fleet.controller.control.ingestion_lines import UNSUPPORTED_MEDIA
from fleet.controller.database.errors import ConflictError
from fleet.controller.monitoring.page import MetricsPage
from fleet.controller.problems import ProblemError, plain_problem, problem_of
from fleet.controller.serving.asgi import Application, logged_path, request_id
from gateway import __version__
from gateway.common.domain.errors import RequestError
from gateway.common.domain.problem import Problem

Call = Request[Any, Any, Any]
HANDLERS = (
    *health.HANDLERS,
    *alerts.HANDLERS,
    *audit.HANDLERS,
    *changes.HANDLERS,
    *blobs.HANDLERS,
    *devices.HANDLERS,
    *devices_labels.HANDLERS,
    *diagnostics.HANDLERS,
    *drafts.HANDLERS,
    *enrol.HANDLERS,
    *enrolments.HANDLERS,
    *event_routes.HANDLERS,
    *problems.HANDLERS,
    *publication.HANDLERS,
    *releases.HANDLERS,
    *rollouts.HANDLERS,
    *rollouts_archive.HANDLERS,
    *selves.HANDLERS,
    *telemetry.HANDLERS,
    *tokens.HANDLERS,
)
for _handler in HANDLERS:
    note_optional(_handler)
    take_keys(_handler)
    tag_answers(_handler)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProblemDocument:
    """Problem document (RFC 9457).

    `type`: see /problems. `detail`: what happened and what to do. `fault`: group of the error. `instance`: number of
    the request in the log.
    """

    type: str
    title: str
    status: int
    detail: str
    fault: str
    instance: str = ""


PROBLEMS = {
    status: ResponseSpec(
        ProblemDocument,
        generate_examples=False,
        description=HTTPStatus(status).phrase,
        media_type=cast("Any", Problem.media_type),
    )
    for status in (400, 401, 403, 404, 405, 408, 409, 412, 413, 415, 422, 428, 429, 500, 503)
}
"""Refusals of routes, by status."""
UNCHANGED = {304: ResponseSpec(None, generate_examples=False, description="The caller has the current state")}


def application(control: Control, page: MetricsPage) -> Application:
    """Return the application. Its state holds `control` and the `page` of metrics for the routes."""
    app = Litestar(
        route_handlers=[*_options(), *map(_telling, HANDLERS)],
        guards=[named, refuse_stateless, refuse_null],
        state=State({"control": control, "page": page}),
        openapi_config=OpenAPIConfig(
            title="edge-fleet",
            version=__version__,
            description="The fleet controller: devices, releases, rollouts.",
            path="/schema",
            render_plugins=[SchemaRenderer(HANDLERS)],
            openapi_router=Router("/schema", route_handlers=[], include_in_schema=False, after_request=_document),
            operation_id_creator=_operation_id,
            components=Components(
                security_schemes={
                    "token": SecurityScheme(type="http", scheme="bearer", description="edge-fleet tokens create"),
                    "device": SecurityScheme(type="mutualTLS", description="the certificate of an enrolled device"),
                }
            ),
            security=[{"token": []}, {"device": []}],
        ),
        exception_handlers={
            RequestError: _refused,
            ProblemError: _refused,
            HTTPException: _http_error,
            Exception: _defect,
        },
        logging_config=None,
        request_max_body_size=None,  # fleet.controller.serving bounds bodies, by route
        debug=False,
    )
    return cast("Application", app)


def _telling(handler: HTTPRouteHandler) -> HTTPRouteHandler:
    """Add the refusals to a route's OpenAPI document; litestar has no place for what all routes share."""
    applies = {
        412: STATE in handler.opt,
        UNSUPPORTED_MEDIA: BODY in handler.opt and not is_operators(handler),  # devices may send gzip
        422: takes_key(handler) or CHECKED in handler.opt,
        428: STATE in handler.opt,
    }
    documented = {status: text for status, text in PROBLEMS.items() if applies.get(status, True)}
    handler.responses = {**documented, **(UNCHANGED if is_tagged(handler) else {}), **(handler.responses or {})}
    return handler


def _options() -> list[HTTPRouteHandler]:
    """Return routes for OPTIONS, placed before the others.

    Litestar's own answer names only the methods of the handler that it found first.
    """

    def answering(path: str, methods: list[str]) -> HTTPRouteHandler:
        @route(path, http_method=["OPTIONS"], include_in_schema=False, status_code=204, sync_to_thread=False)
        def options() -> Response[None]:
            return Response(None, headers={"allow": ", ".join(methods)})

        return options

    return [answering(path, methods) for path, methods in allowed_methods(HANDLERS).items()]


def _refused(request: Call, error: RequestError | ProblemError) -> Response[bytes]:
    return _response(request, problem_of(error, HTTPStatus.CONFLICT if isinstance(error, ConflictError) else None))


def _http_error(request: Call, error: HTTPException) -> Response[bytes]:
    """Refuse an unknown path, a wrong method, or a body or parameter that does not fit."""
    path = request.scope["path"]  # not request.url: an invalid Host breaks it
    detail = {404: f"there is no {path:.200}", 405: f"{request.method} is not possible on {path:.200}"}
    words = detail.get(error.status_code, error.detail)
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        words = "; ".join(_found(entry) for entry in error.extra) or words
    return _response(request, plain_problem(error.status_code, words, tuple((error.headers or {}).items())))


def _found(entry: Any) -> str:
    """Return a validation error of litestar, with the body called "the body"."""
    if not isinstance(entry, dict):
        return str(entry)
    where = "the body" if entry.get("key") == "data" else entry.get("key")
    return ": ".join(str(part) for part in (where, entry.get("message")) if part)


def _defect(request: Call, error: Exception) -> Response[bytes]:
    """Log a defect in full, and answer 500."""
    scope = cast("Any", request.scope)
    _log.error(events.REQUEST_CRASHED, request_id(scope), logged_path(scope), exc_info=error)
    return _response(request, plain_problem(500, "internal error; the controller's log says more"))


def _document(response: Response[bytes]) -> Response[bytes]:
    """Replace litestar's HTML page for unknown paths below /schema: every other error here is JSON."""
    if response.status_code != HTTPStatus.NOT_FOUND:
        return response
    return _answer(plain_problem(404, "there is no such document; see /schema/openapi.json"))


def _response(request: Call, problem: Problem) -> Response[bytes]:
    number = request_id(cast("Any", request.scope))
    return _answer(replace(problem, instance=f"urn:uuid:{number}" if number else ""))


def _answer(problem: Problem) -> Response[bytes]:
    return Response(
        problem.body,
        status_code=problem.status,
        media_type=problem.media_type,
        headers=dict(problem.headers),
    )


def _operation_id(_: HTTPRouteHandler, method: Method, path: list[str | PathParameterDefinition]) -> str:
    """Return the id of an operation, such as "get_v1_devices_device"."""
    parts = [part if isinstance(part, str) else part.name for part in path]
    return "_".join([str(getattr(method, "value", method)).lower(), *parts]).replace(".", "_")
