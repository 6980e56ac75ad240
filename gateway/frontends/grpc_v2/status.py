"""Status of gRPC, by name, for each fault."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.domain.errors import Fault

GRPC_STATUS: Mapping[Fault, str] = {
    Fault.INVALID: "INVALID_ARGUMENT",
    Fault.UNAUTHENTICATED: "UNAUTHENTICATED",
    Fault.DENIED: "PERMISSION_DENIED",
    Fault.NOT_FOUND: "NOT_FOUND",
    Fault.TOO_LARGE: "RESOURCE_EXHAUSTED",
    Fault.THROTTLED: "RESOURCE_EXHAUSTED",
    Fault.OVERLOADED: "UNAVAILABLE",
    Fault.EXPIRED: "DEADLINE_EXCEEDED",
    Fault.UNAVAILABLE: "UNAVAILABLE",
    Fault.UNSUPPORTED: "UNIMPLEMENTED",
    Fault.INTERNAL: "INTERNAL",
}
