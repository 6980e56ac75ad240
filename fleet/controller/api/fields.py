"""Types of values in bodies, paths, queries and answers, with their bounds, also for the OpenAPI document.

A bound that is only in the document (`extra_json_schema`, `schema_extra`) is checked by the code that reads the value,
with a better error message.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

from litestar.params import PathParameter, QueryParameter
from msgspec import Meta

from fleet.controller.database.devices import TAGS_LIMIT
from fleet.controller.database.tables import PATH_BYTES
from fleet.controller.rollouts.query_parser import QUERY_LIMIT_CHARS
from fleet.times import moment
from gateway.common.domain.manifest_toml import NAME_PATTERN

LARGEST = 2**53 - 1
"""Largest number that JSON keeps exact (RFC 8259, 6)."""
NAME_CHARACTERS, ACTOR_CHARACTERS, REASON_CHARACTERS = 128, 140, 1024
PATH_CHARACTERS = PATH_BYTES
"""Characters of `PATH`, which is ASCII."""
KEPT = r"^[^\x00]*$"
"""Pattern of text without NUL, which databases cannot store."""
DeviceQuery = Annotated[
    str,
    QueryParameter(
        name="query",
        max_length=QUERY_LIMIT_CHARS,
        pattern=KEPT,
        description="devices that match this query, such as: tag = pilot and version.meter-reader < 2",
    ),
]
"""Parameter `query=` of lists."""
PATH = "^[ -~]*$"
ID = f"^({NAME_PATTERN.pattern})?$"
"""Pattern of a device's id, or nothing."""
DIGEST_CHARACTERS = 64
DIGEST = f"^[0-9a-f]{{{DIGEST_CHARACTERS}}}$"

Words = Annotated[str, Meta(max_length=NAME_CHARACTERS, pattern=KEPT)]
Id = Annotated[str, Meta(max_length=NAME_CHARACTERS, extra_json_schema={"pattern": ID})]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS, pattern=KEPT)]
Digest = Annotated[str, Meta(min_length=DIGEST_CHARACTERS, max_length=DIGEST_CHARACTERS, pattern=DIGEST)]
Tags = Annotated[list[Name], Meta(max_length=TAGS_LIMIT)]
Reason = Annotated[str, Meta(max_length=REASON_CHARACTERS, pattern=KEPT)]

NumberInPath = Annotated[int, PathParameter(ge=1, le=LARGEST)]
NameInPath = Annotated[str, PathParameter(min_length=1, max_length=NAME_CHARACTERS, pattern=KEPT)]

NameInQuery = Annotated[str, QueryParameter(max_length=NAME_CHARACTERS, pattern=KEPT)]
ActorInQuery = Annotated[str, QueryParameter(max_length=ACTOR_CHARACTERS, pattern=KEPT)]
ReasonInQuery = Annotated[str, QueryParameter(max_length=REASON_CHARACTERS, pattern=KEPT)]
PathInQuery = Annotated[str, QueryParameter(max_length=PATH_CHARACTERS, pattern=PATH)]
TagsInQuery = Annotated[
    list[Name] | None,
    QueryParameter(
        max_items=TAGS_LIMIT,
        schema_extra={"items": {"type": "string", "minLength": 1, "maxLength": NAME_CHARACTERS, "pattern": KEPT}},
    ),
]


def documented(**schema: object) -> Meta:
    """Return bounds for the document alone: the code that reads the value has better error messages."""
    return Meta(extra_json_schema=schema)


def between(low: float, high: float) -> Meta:
    """Return the bounds of a number, for the document alone."""
    return documented(minimum=low, maximum=high)


def plain_fields(one: object, names: Iterable[str]) -> dict[str, Any]:
    """Return fields of a record as an answer shows them: times as text, sets sorted."""
    return {name: _plain(getattr(one, name)) for name in names}


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return moment(value)
    return sorted(value) if isinstance(value, frozenset) else value
