"""Messages between the daemon and the process of one camera, and the states of a camera. Pure.

Messages are JSON objects over a SOCK_SEQPACKET socket, one each. A frame or a picture comes with a sealed memfd. The
daemon trusts nothing that a process sends: it decodes what others have made.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec

REPORT_BYTES = 8_192
"""Longest message of a camera's process."""
ORDER_BYTES = 131_072
"""Longest message of the daemon: masks, or boxes of a picture."""
SIDE_LIMIT = 16_384
"""Most pixels of a side of a frame."""
COUNT_LIMIT = 2**53
REASON_CHARS = 500
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
"""Seals of memory that is passed: it neither shrinks nor changes (fcntl(2))."""

CONNECTING, STREAMING, STALLED, LOST, NO_MODEL = STATES = ("connecting", "streaming", "stalled", "lost", "no_model")
TRANSITIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        CONNECTING: {"opened": STREAMING, "stalled": STALLED, "lost": LOST},
        STREAMING: {"opened": STREAMING, "stalled": STALLED, "lost": LOST, "model_away": NO_MODEL},
        NO_MODEL: {"opened": NO_MODEL, "stalled": STALLED, "lost": LOST, "model_back": STREAMING},
        STALLED: {"connecting": CONNECTING, "stalled": STALLED, "lost": LOST},
        LOST: {"connecting": CONNECTING, "stalled": STALLED, "lost": LOST},
    }
)
"""State after an event, by the state before it. The events opened, stalled, lost and connecting are a process's."""
STREAMS = frozenset({STREAMING, NO_MODEL})
"""States in which frames arrive."""

Count = Annotated[int, msgspec.Meta(ge=0, lt=COUNT_LIMIT)]
Side = Annotated[int, msgspec.Meta(ge=0, le=SIDE_LIMIT)]
Text = Annotated[str, msgspec.Meta(max_length=REASON_CHARS)]


class CameraProtocolError(Exception):
    """Message that no process of ours sends. Such a process is ended."""


class CameraReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Message of a camera's process.

    `kind`: an event of TRANSITIONS; "frame", "picture" (with a memfd of `byte_size`) or "failed" in answer to the order
    `id`; or "alive". `width`, `height`: of the stream, or of the frame that was sent. `at_ns`: when the frame was
    decoded, on the monotonic clock. `read`, `left_out`, `skipped` and `broken` count since the process began.
    """

    kind: Literal["opened", "stalled", "lost", "connecting", "frame", "failed", "picture", "alive"]
    id: Count = 0
    reason: Text = ""
    codec: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_]{0,39}$")] = ""
    width: Side = 0
    height: Side = 0
    at_ns: Count = 0
    byte_size: Count = 0
    read: Count = 0
    left_out: Count = 0
    skipped: Count = 0
    broken: Count = 0

    def encode(self) -> bytes:
        """Return the message."""
        return msgspec.json.encode(self)


_READER = msgspec.json.Decoder(CameraReport)


def read_report(message: bytes) -> CameraReport:
    """Read a message of a camera's process. Raises CameraProtocolError."""
    try:
        return _READER.decode(message)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CameraProtocolError(f"{error}"[:REASON_CHARS]) from None


def plain_reason(text: str) -> str:
    """Return a reason for logs and terminals: on one line, without control characters, not too long."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())[:REASON_CHARS]


def encode_order(order: Mapping[str, Any]) -> bytes:
    """Return a message of the daemon."""
    return json.dumps(order).encode()


def next_state(state: str, event: str) -> str:
    """Return the state after an event. Raises CameraProtocolError for one that cannot be in this state."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise CameraProtocolError(f"{event} while {state}") from None
