"""Objects that all servables of a device share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.domain.events import Publish
from gateway.engine.comparing import Comparing
from gateway.engine.settings import EngineSettings
from gateway.engine.threads import Threads
from gateway.engine.turn import Turn
from gateway.engine.worker import Footing


@dataclass(frozen=True, slots=True)
class House:
    """Objects that all servables of a device share."""

    settings: EngineSettings
    turn: Turn
    footing: Footing
    decoders: Threads
    comparing: Comparing
    publish: Publish
    replace: Callable[[Any], None]
    """Callback for a `Servable` whose run does not end."""
