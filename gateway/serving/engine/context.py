"""Objects that all servables of a device share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from gateway.common.domain.events import Publish
from gateway.serving.engine.batch_pass import BatchPass
from gateway.serving.engine.comparing import Comparing
from gateway.serving.engine.settings import EngineSettings
from gateway.serving.engine.streams import Streams
from gateway.serving.engine.threads import Threads
from gateway.serving.engine.worker import WorkerSettings


@dataclass(frozen=True, slots=True)
class EngineContext:
    """Objects that all servables of a device share."""

    settings: EngineSettings
    batch_pass: BatchPass
    worker_settings: WorkerSettings
    decoders: Threads
    comparing: Comparing
    publish: Publish
    replace: Callable[[Any], None]
    """Callback for a `Servable` whose run does not end."""
    preparing: Threads
    """Threads for the images, galleries and boxes of pipelines, so that requests for models do not wait for these."""
    sequences: WeakValueDictionary[object, Streams] = field(default_factory=WeakValueDictionary)
    """States of models with sequences, by what may go on with them."""
