"""Changes of the fleet for verbs that follow them, over restarts of the controller."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from fleet.client.client import Client, Query, ServerSentMessage
from gateway.common.domain.errors import UnreachableError
from gateway.common.terminal.tables import plain

POSITION, GAP = "position", "gap"
AWAY_LIMIT_S = 600.0
"""Longest time for which a controller may be away, for example for an update or a restart."""


def follow(
    asked: Client, query: Query, until_s: float | None = None, *, answered_s: float = -AWAY_LIMIT_S
) -> Iterator[ServerSentMessage]:
    """Yield changes and heartbeats until the monotonic time `until_s` (None: forever).

    A controller that never answered is an error at once; one that answered at `answered_s` or later is waited for.
    Raise UnreachableError, and what the controller refuses.
    """
    after = ""
    while True:
        try:
            for message in asked.changes(query, after, until_s):
                answered_s, after = time.monotonic(), message.id or after
                if message.event == GAP:
                    print(f"lost: {plain(str(message.data.get('detail', '')))}", file=sys.stderr)
                yield message
        except UnreachableError as error:
            wait_or_raise(error, answered_s)
        if until_s is not None and time.monotonic() >= until_s:
            return
        time.sleep(asked.reconnect_s)


def wait_or_raise(error: UnreachableError, answered_s: float) -> None:
    """Raise `error`, unless the controller answered at `answered_s` and may still come back."""
    if time.monotonic() - answered_s >= AWAY_LIMIT_S:
        raise error
    say_waiting(error)


def say_waiting(error: UnreachableError) -> None:
    """Print why nothing is shown."""
    print(f"waiting: {plain(str(error))}", file=sys.stderr)
