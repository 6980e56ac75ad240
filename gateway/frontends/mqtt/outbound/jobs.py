"""Inference jobs of messages, and their time limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.domain.errors import Fault, RequestError
from gateway.domain.infer import InferRequest, InferResponse
from gateway.frontends.mqtt.outbound.delivery import Debt
from gateway.frontends.mqtt.outbound.inputs import Ready


@dataclass(slots=True, eq=False)
class InferenceJob:
    """An inference: its request, the function that encodes its answer, the answer's debt, and failed attempts.

    `encode` returns None for an answer that is not published. `holds`: at QoS 1 it waits while its model is away.
    """

    request: InferRequest
    encode: Callable[[InferResponse], bytes | None]
    debt: Debt
    failures: int = 0
    holds: bool = False


@dataclass(slots=True)
class RemainingWindows:
    """Windows of one message that were not submitted yet. `following` is the next one, or None."""

    ready: Iterator[Ready]
    following: Ready | None

    def take(self) -> Ready | None:
        """Remove and return the next window."""
        taken, self.following = self.following, next(self.ready, None)
        return taken


def passed(deadline_ns: int | None) -> bool:
    """Return True if a deadline on the monotonic clock has passed."""
    return deadline_ns is not None and time.monotonic_ns() >= deadline_ns


def expired() -> RequestError:
    """Return the refusal of a message that expired while the device was overloaded."""
    return RequestError(Fault.EXPIRED, "the message expired while the device was overloaded or the model unavailable")
