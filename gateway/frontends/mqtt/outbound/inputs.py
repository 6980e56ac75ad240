"""Inputs of a model that messages complete. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.domain.manifest import ModelManifest
from gateway.domain.tensor import Tensor
from gateway.frontends.mqtt.outbound.contents import ResultPlan
from gateway.frontends.mqtt.windows.rings import Complete


@dataclass(slots=True)
class Ready:
    """Input for the model, complete.

    `sensor` measured it, its first and last sample have the times `started_ns` and `ended_ns` (since the epoch). `plan`
    is the content of results of the version that `manifest` describes. `window` is the sensor's window, if the input is
    one.
    """

    sensor: str
    manifest: ModelManifest
    plan: ResultPlan
    tensor: Tensor
    started_ns: int
    ended_ns: int
    window: Complete | None = None
    gap_limit_ns: int = 0
    """Time between two samples of the window above which results tell it."""
    padded_rows: int | None = None
    """Rows that were added to a session; None: the window has a fixed number of rows."""
