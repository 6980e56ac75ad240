"""Refusal of a payload."""

from __future__ import annotations

from gateway.domain.errors import Fault, RequestError


def invalid(message: str) -> RequestError:
    """Return a refusal: the sender must change the payload, or the operator the route."""
    return RequestError(Fault.INVALID, message)
