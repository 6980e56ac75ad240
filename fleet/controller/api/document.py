"""Corrections of the OpenAPI document where litestar's is incomplete.

It lacks bounds within bodies, fields that are refused, bodies that are read raw, and routes without authentication.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from litestar import Request
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.plugins import JsonRenderPlugin

from fleet.controller.api import conditions, idempotency
from fleet.controller.api.conditions import STATE
from fleet.controller.api.identity import ACTION
from fleet.controller.api.parameters import without_null
from fleet.problem_types import TYPES

TAG = {"schema": {"type": "string", "pattern": conditions.TAG_PATTERN}, "description": "the state that is shown"}
REPEATED = {"schema": {"type": "string", "enum": ["true"]}, "description": "this answer was given before"}
KEY = {
    "type": "string",
    "minLength": 1,
    "maxLength": idempotency.KEY_CHARACTERS + len('""'),
    "pattern": idempotency.PATTERN,
}
ANY = {"type": "string", "enum": ["*"]}
LIST = {"type": "string", "minLength": 2, "maxLength": conditions.HEADER_CHARACTERS, "pattern": conditions.LIST_PATTERN}
TAGS = {"anyOf": [ANY, LIST]}


def _add_headers(operation: dict[str, Any], handler: HTTPRouteHandler) -> None:
    """Add the headers of conditional and repeated requests that a route takes and sends."""
    taken = operation.setdefault("parameters", [])
    if conditions.is_tagged(handler):
        taken.append(_header("If-None-Match", TAGS, "ETags that the caller has: 304 if one of them is current"))
        for status in ("200", "304"):
            operation["responses"][status]["headers"] = {"ETag": TAG}
    if STATE in handler.opt:
        about = f"the ETag of GET {handler.opt[STATE]}: 412 if it has changed"
        taken.append(_header("If-Match", TAGS, about))
    elif conditions.is_change(handler):
        taken.append(_header("If-Match", ANY, "this route has no state"))
    if idempotency.takes_key(handler):
        taken.append(_header("Idempotency-Key", KEY, "the request is carried out once; a repeat gets the first answer"))
        operation["responses"][str(handler.status_code)]["headers"] = {"Idempotency-Replayed": REPEATED}
    if not taken:
        del operation["parameters"]


def _header(name: str, schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": dict(schema), "description": description}


REFERENCE = "#/components/schemas/{name}"
BODY = "body"
"""Key in a route's `opt`: the raw body that it reads, as OpenAPI's requestBody."""

CHECKED = "checked"
"""Key of a route's `opt`: it checks its input against rules beyond the schema (422)."""
BODY_SCHEMA = "body_schema"
"""Key in a route's `opt`: further keywords of JSON Schema for its body."""


class SchemaRenderer(JsonRenderPlugin):
    """Renderer of /schema/openapi.json alone: litestar's pages would load their scripts from other hosts."""

    def __init__(self, handlers: Iterable[HTTPRouteHandler]) -> None:
        super().__init__()
        self._handlers = tuple(handlers)
        self._rendered = b""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """Return the document, which is rendered once: litestar asks for it with every request."""
        self._rendered = self._rendered or self._made(request, openapi_schema)
        return self._rendered

    def _made(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        schemas = openapi_schema["components"]["schemas"]
        bodies = [_body(handler) for handler in self._handlers]
        kinds = {
            kind
            for hint in bodies
            for kind in (hint, *typing.get_args(hint))
            if (isinstance(kind, type) and issubclass(kind, msgspec.Struct))
        }
        schemas |= dict(msgspec.json.schema_components(sorted(kinds, key=str), ref_template=REFERENCE)[1])
        schemas["ProblemDocument"]["properties"]["type"]["enum"] = [kind.uri for kind in TYPES]
        for handler in self._handlers:
            for operation in _operations(openapi_schema, handler):
                if ACTION not in handler.opt:
                    operation["security"] = []
                if BODY in handler.opt:
                    operation["requestBody"] = handler.opt[BODY]
                if types.NoneType in typing.get_args(_body(handler)):
                    operation["requestBody"]["required"] = False
                if BODY_SCHEMA in handler.opt:
                    schemas[_body(handler).__name__] |= handler.opt[BODY_SCHEMA]
                for parameter in operation.get("parameters", ()):
                    parameter["schema"] = without_null(parameter["schema"])
                _add_headers(operation, handler)
        return super().render(request, openapi_schema)


def allowed_methods(handlers: Iterable[HTTPRouteHandler]) -> Mapping[str, list[str]]:
    """Return the methods of each path, by path as it is declared."""
    found: dict[str, set[str]] = {}
    for handler in handlers:
        for path in handler.paths:
            found.setdefault(path, {"OPTIONS"}).update(map(str, handler.http_methods))
    return {path: sorted(methods) for path, methods in found.items()}


def _body(handler: HTTPRouteHandler) -> Any:
    return typing.get_type_hints(handler.fn).get("data")


def _operations(document: dict[str, Any], handler: HTTPRouteHandler) -> Iterator[dict[str, Any]]:
    for path in handler.paths:
        item = document["paths"].get(
            "/".join(part.partition(":")[0] + "}" if part.startswith("{") else part for part in path.split("/")), {}
        )
        yield from (item[method.lower()] for method in map(str, handler.http_methods) if method.lower() in item)
