"""Table from Fault to wire status, for every protocol, and the limits of a refusal's text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.domain.errors import Fault


@dataclass(frozen=True, slots=True)
class WireStatus:
    """Status of gRPC by name, and HTTP's status code."""

    grpc: str
    http: int


STATUS: Mapping[Fault, WireStatus] = {
    Fault.INVALID: WireStatus("INVALID_ARGUMENT", 400),
    Fault.UNAUTHENTICATED: WireStatus("UNAUTHENTICATED", 401),
    Fault.DENIED: WireStatus("PERMISSION_DENIED", 403),
    Fault.NOT_FOUND: WireStatus("NOT_FOUND", 404),
    Fault.TOO_LARGE: WireStatus("RESOURCE_EXHAUSTED", 413),
    Fault.THROTTLED: WireStatus("RESOURCE_EXHAUSTED", 429),
    Fault.OVERLOADED: WireStatus("UNAVAILABLE", 503),
    Fault.EXPIRED: WireStatus("DEADLINE_EXCEEDED", 504),
    Fault.UNAVAILABLE: WireStatus("UNAVAILABLE", 503),
    Fault.UNSUPPORTED: WireStatus("UNIMPLEMENTED", 501),
    Fault.INTERNAL: WireStatus("INTERNAL", 500),
}

WAITING_HELPS = frozenset({Fault.OVERLOADED, Fault.THROTTLED, Fault.UNAVAILABLE})
"""Faults whose refusals carry a hint when to try again."""

MESSAGE_LIMIT_CHARS = 1024
"""Most characters of an error text: gRPC's is sent in a trailer, of which clients accept 8 KiB.

Names in it come from peers.
"""
MESSAGE_LIMIT_BYTES = 2304
"""Most bytes of an error text in other scripts: each byte is sent as three."""


def error_text(text: str) -> str:
    """Return `text`, shortened to the limits; lone surrogates (a file name may hold some) become question marks."""
    text = text.encode(errors="replace").decode()
    if len(text) <= MESSAGE_LIMIT_CHARS and len(text.encode()) <= MESSAGE_LIMIT_BYTES:
        return text
    most = MESSAGE_LIMIT_BYTES - len("…".encode())
    return text[: MESSAGE_LIMIT_CHARS - 1].encode()[:most].decode(errors="ignore") + "…"
