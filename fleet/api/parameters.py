"""Query parameters that may be left out: litestar takes the text "null" for that as well, and the schema does not."""

from __future__ import annotations

import types
import typing
from typing import Any

from litestar.handlers import HTTPRouteHandler
from litestar.handlers.base import BaseRouteHandler
from litestar.params import QueryParameter

from fleet.api.identity import Guarded
from gateway.domain.errors import Fault, RequestError

OPTIONAL = "optional"
"""Names of such parameters, under this key of a route's `opt`."""
NULL = "null"


def note_optional(handler: HTTPRouteHandler) -> None:
    """Note the single values that a route takes or not."""
    hints = typing.get_type_hints(handler.fn, include_extras=True)
    handler.opt[OPTIONAL] = frozenset(filter(None, (_optional(name, hint) for name, hint in hints.items())))


def refuse_null(connection: Guarded, handler: BaseRouteHandler) -> None:
    """Litestar's guard. Raises RequestError INVALID."""
    for name in handler.opt.get(OPTIONAL, ()):
        if NULL in connection.query_params.getall(name, []):
            raise RequestError(Fault.INVALID, f"{name} has no value {NULL!r}; leave the parameter out")


def without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter as the text of a query can fit it."""
    kinds = [kind for kind in schema.get("oneOf", ()) if kind != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name != "oneOf"}
    return {**kinds[0], **rest} if len(kinds) == 1 else schema


def _optional(name: str, hint: Any) -> str:
    """The name of a parameter in the query, "" where it is none, is a list, or has a value always."""
    kinds = typing.get_args(getattr(hint, "__origin__", None))
    found = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, QueryParameter)]
    lists = any(typing.get_origin(kind) is list for kind in kinds)
    return (found[0].name or name) if found and types.NoneType in kinds and not lists else ""
