"""Fault → wire status, for every protocol, in one table (contracts.md, "Faults")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.domain.errors import Fault


@dataclass(frozen=True, slots=True)
class WireStatus:
    """gRPC status name and number, and HTTP status code."""

    grpc: str
    grpc_code: int
    http: int


STATUS: Mapping[Fault, WireStatus] = {
    Fault.INVALID: WireStatus("INVALID_ARGUMENT", 3, 400),
    Fault.UNAUTHENTICATED: WireStatus("UNAUTHENTICATED", 16, 401),
    Fault.DENIED: WireStatus("PERMISSION_DENIED", 7, 403),
    Fault.NOT_FOUND: WireStatus("NOT_FOUND", 5, 404),
    Fault.TOO_LARGE: WireStatus("RESOURCE_EXHAUSTED", 8, 413),
    Fault.OVERLOADED: WireStatus("UNAVAILABLE", 14, 503),
    Fault.EXPIRED: WireStatus("DEADLINE_EXCEEDED", 4, 504),
    Fault.UNAVAILABLE: WireStatus("UNAVAILABLE", 14, 503),
    Fault.UNSUPPORTED: WireStatus("UNIMPLEMENTED", 12, 501),
    Fault.INTERNAL: WireStatus("INTERNAL", 13, 500),
}
