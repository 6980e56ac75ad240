"""Objects that all servables of a device share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.common.domain.events import Publish
from gateway.serving.engine.batch_pass import BatchPass
from gateway.serving.engine.comparing import Comparing
from gateway.serving.engine.settings import EngineSettings
from gateway.serving.engine.stream_store import StreamStore
from gateway.serving.engine.threads import Threads
from gateway.serving.engine.ticket import Ticket
from gateway.serving.engine.worker import WorkerSettings


class FailureHandler(Protocol):
    """Handler of what fails in a `Servable`. Called on the event loop."""

    def take(self, servable: Any, failure: str, tickets: Sequence[Ticket]) -> bool:
        """Count a run that failed by the model's or the device's fault. Return True if its tickets run again."""

    def gives_up(self, servable: Any) -> bool:
        """Return True if a servable is replaced as soon as a run exceeds its limit."""

    def hung(self, servable: Any, reason: str, *, ends: bool = False) -> None:
        """Replace a servable whose run does not end; `ends`: its engine ends it."""

    def waits(self, servable: Any) -> bool:
        """Return True if the servable's requests wait for another one."""

    def show(self, target: Any) -> None:
        """Show in the placement of a version which of its variants are out."""

    def hold(self, servable: Any, ticket: Ticket) -> bool:
        """Let a ticket wait for the servable that replaces its own. Return False if too many wait."""


@dataclass(frozen=True, slots=True)
class EngineContext:
    """Objects that all servables of a device share."""

    settings: EngineSettings
    batch_pass: BatchPass
    worker_settings: WorkerSettings
    decoders: Threads
    comparing: Comparing
    publish: Publish
    failures: FailureHandler
    preparing: Threads
    """Threads for the images, galleries and boxes of pipelines, so that requests for models do not wait for these."""
    streams: StreamStore
