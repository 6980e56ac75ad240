"""Parameter `query=` of lists: selects devices, in the query language of rollouts."""

from __future__ import annotations

from typing import Annotated

from litestar.params import QueryParameter

from fleet.controller.api.fields import KEPT
from fleet.controller.rollouts.query_parser import QUERY_LIMIT_CHARS

DeviceQuery = Annotated[
    str,
    QueryParameter(
        name="query",
        max_length=QUERY_LIMIT_CHARS,
        pattern=KEPT,
        description="devices that match this query, such as: tag = pilot and version.meter-reader < 2",
    ),
]
