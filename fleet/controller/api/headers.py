"""Headers of conditional and repeated requests in the OpenAPI document (`conditions`, `idempotency`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litestar.handlers import HTTPRouteHandler

from fleet.controller.api import conditions, idempotency
from fleet.controller.api.conditions import STATE

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


def complete(operation: dict[str, Any], handler: HTTPRouteHandler) -> None:
    """Add the headers that a route takes and sends."""
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
