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

from fleet.controller.api import headers
from fleet.controller.api.identity import ACTION
from fleet.controller.api.parameters import without_null
from fleet.problem_types import TYPES

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
        schemas |= _bodies(self._handlers)
        schemas["ProblemDocument"]["properties"]["type"]["enum"] = [kind.uri for kind in TYPES]
        for handler in self._handlers:
            for operation in _operations(openapi_schema, handler):
                _complete(operation, handler, schemas)
        return super().render(request, openapi_schema)


def allowed_methods(handlers: Iterable[HTTPRouteHandler]) -> Mapping[str, list[str]]:
    """Return the methods of each path, by path as it is declared."""
    found: dict[str, set[str]] = {}
    for handler in handlers:
        for path in handler.paths:
            found.setdefault(path, {"OPTIONS"}).update(map(str, handler.http_methods))
    return {path: sorted(methods) for path, methods in found.items()}


def _bodies(handlers: Iterable[HTTPRouteHandler]) -> dict[str, Any]:
    """Return the schemas of request bodies, by msgspec, which reads them."""
    said = [_body(handler) for handler in handlers]
    kinds = {kind for hint in said for kind in (hint, *typing.get_args(hint)) if _is_struct(kind)}
    return dict(msgspec.json.schema_components(sorted(kinds, key=str), ref_template=REFERENCE)[1])


def _complete(operation: dict[str, Any], handler: HTTPRouteHandler, schemas: dict[str, Any]) -> None:
    """Add what litestar does not know of a route."""
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
    headers.complete(operation, handler)


def _body(handler: HTTPRouteHandler) -> Any:
    return typing.get_type_hints(handler.fn).get("data")


def _operations(document: dict[str, Any], handler: HTTPRouteHandler) -> Iterator[dict[str, Any]]:
    for path in handler.paths:
        item = document["paths"].get(_plain(path), {})
        yield from (item[method.lower()] for method in map(str, handler.http_methods) if method.lower() in item)


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _plain(path: str) -> str:
    """Return `/v1/devices/{device:str}` as the document names it."""
    return "/".join(part.partition(":")[0] + "}" if part.startswith("{") else part for part in path.split("/"))
