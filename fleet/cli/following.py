"""Changes of the fleet for verbs that follow them, over restarts of the controller."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from fleet.client.client import Client, Query
from fleet.client.messages import Message
from gateway.domain.errors import UnreachableError
from gateway.terminal.tables import plain

POSITION, GAP = "position", "gap"
AWAY_LIMIT_S = 600.0
"""So long a controller may be away: its replicas are updated, its machine starts again."""


def follow(
    asked: Client, query: Query, until_s: float | None = None, *, answered_s: float = -AWAY_LIMIT_S
) -> Iterator[Message]:
    """Yield changes until the monotonic time `until_s` (None: for good), signs of life among them. A controller that
    never answered is an error at once; one that did, `answered_s` or later, is waited for. Raises UnreachableError, and
    what the controller refuses."""
    after = ""
    while True:
        try:
            for message in asked.changes(query, after, until_s):
                answered_s, after = time.monotonic(), message.id or after
                if message.event == GAP:
                    print(f"lost: {plain(str(message.data.get('detail', '')))}", file=sys.stderr)
                yield message
        except UnreachableError as error:
            if time.monotonic() - answered_s >= AWAY_LIMIT_S:
                raise
            say_waiting(error)
        if until_s is not None and time.monotonic() >= until_s:
            return
        time.sleep(asked.reconnect_s)


def say_waiting(error: UnreachableError) -> None:
    """Say why nothing is shown."""
    print(f"waiting: {plain(str(error))}", file=sys.stderr)
