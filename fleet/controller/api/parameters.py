"""Optional query parameters: litestar also takes the text "null" as absent, unlike the schema."""

from __future__ import annotations

import types
import typing
from typing import Any

from litestar.handlers import HTTPRouteHandler
from litestar.handlers.base import BaseRouteHandler
from litestar.params import QueryParameter

from fleet.controller.api.identity import Guarded
from gateway.common.domain.errors import Fault, RequestError

OPTIONAL = "optional"
"""Key in a route's `opt`: the names of such parameters."""
NULL = "null"


def note_optional(handler: HTTPRouteHandler) -> None:
    """Note the optional parameters of a route that have a single value."""
    hints = typing.get_type_hints(handler.fn, include_extras=True)
    handler.opt[OPTIONAL] = frozenset(filter(None, (_optional(name, hint) for name, hint in hints.items())))


def refuse_null(connection: Guarded, handler: BaseRouteHandler) -> None:
    """Refuse the text "null" as a value; a guard of litestar. Raise RequestError INVALID."""
    for name in handler.opt.get(OPTIONAL, ()):
        if NULL in connection.query_params.getall(name, []):
            raise RequestError(Fault.INVALID, f"{name} has no value {NULL!r}; leave the parameter out")


def without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter without null, which the text of a query cannot express."""
    kinds = [kind for kind in schema.get("oneOf", ()) if kind != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name != "oneOf"}
    return {**kinds[0], **rest} if len(kinds) == 1 else schema


def _optional(name: str, hint: Any) -> str:
    """Return the name of an optional parameter in the query, or "" if it is none, a list, or always has a value."""
    kinds = typing.get_args(getattr(hint, "__origin__", None))
    found = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, QueryParameter)]
    lists = any(typing.get_origin(kind) is list for kind in kinds)
    return (found[0].name or name) if found and types.NoneType in kinds and not lists else ""
