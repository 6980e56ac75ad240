"""Messages between the daemon and the process of one camera, and the states of a camera. Pure.

Messages are JSON objects over a SOCK_SEQPACKET socket, one each. A frame or a picture comes with a sealed memfd. The
daemon trusts nothing that a process sends: it decodes what others have made.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

REPORT_BYTES = 8_192
"""Longest message of a camera's process."""
ORDER_BYTES = 131_072
"""Longest message of the daemon: masks, or boxes of a picture."""
SIDE_LIMIT = 16_384
"""Most pixels of a side of a frame."""
COUNT_LIMIT = 2**53
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
KINDS = ("opened", "stalled", "lost", "connecting", "frame", "failed", "picture", "alive")


class CameraProtocolError(Exception):
    """Message that no process of ours sends. Such a process is ended."""


@dataclass(frozen=True, slots=True)
class CameraReport:
    """Message of a camera's process.

    `kind`: an event of TRANSITIONS; "frame", "picture" (with a memfd of `byte_size`) or "failed" in answer to the order
    `id`; or "alive". `width`, `height`: of the stream, or of the frame that was sent. `at_ns`: when the frame was
    decoded, on the monotonic clock. `read`, `left_out`, `skipped` and `broken` count since the process began.
    """

    kind: str
    id: int = 0
    reason: str = ""
    codec: str = ""
    width: int = 0
    height: int = 0
    at_ns: int = 0
    byte_size: int = 0
    read: int = 0
    left_out: int = 0
    skipped: int = 0
    broken: int = 0

    def encode(self) -> bytes:
        """Return the message."""
        document = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        given = {name: value for name, value in document.items() if value}
        return json.dumps({**given, "reason": self.reason[:500]}).encode()


def read_report(message: bytes) -> CameraReport:
    """Read a message of a camera's process. Raises CameraProtocolError."""
    try:
        document = json.loads(message)
    except (ValueError, RecursionError):
        raise CameraProtocolError("it is not JSON") from None
    if not isinstance(document, dict) or document.get("kind") not in KINDS:
        raise CameraProtocolError("it is no report")
    for name, value in document.items():
        if name not in _CHECKS or not _CHECKS[name](value):
            raise CameraProtocolError(f"{name!r:.40} is wrong")
    return CameraReport(**{**document, "reason": _plain(document.get("reason", ""))})


def encode_order(order: Mapping[str, Any]) -> bytes:
    """Return a message of the daemon."""
    return json.dumps(order).encode()


def next_state(state: str, event: str) -> str:
    """Return the state after an event. Raises CameraProtocolError for one that cannot be in this state."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise CameraProtocolError(f"{event} while {state}") from None


def _plain(text: str) -> str:
    """Return a text for logs and terminals on one line, without control characters."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 500


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < COUNT_LIMIT


def _is_side(value: object) -> bool:
    return type(value) is int and 0 <= value <= SIDE_LIMIT


_CHECKS = {
    "kind": _is_text,
    "reason": _is_text,
    "codec": lambda value: _is_text(value) and value.isascii() and value.replace("_", "").isalnum() and len(value) < 40,
    "width": _is_side,
    "height": _is_side,
    **dict.fromkeys(("id", "at_ns", "byte_size", "read", "left_out", "skipped", "broken"), _is_count),
}
