"""Inputs of a model that messages complete. Values only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.domain.manifest import ModelManifest
from gateway.domain.tensor import Tensor
from gateway.frontends.mqtt.journal.records import SampleRecord
from gateway.frontends.mqtt.payloads.content_type import ContentType
from gateway.frontends.mqtt.results.contents import ResultPlan
from gateway.frontends.mqtt.windows.rings import Complete
from gateway.frontends.mqtt.windows.sensors import Windows


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


@dataclass(frozen=True, slots=True)
class MessageDecoding:
    """Message that is being decoded: for which manifest, of which content type, into which windows (None: none)."""

    manifest: ModelManifest
    content: ContentType
    windows: Windows | None


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Inputs of the model that a message completes, and the record of its samples if they go into a window."""

    ready: Iterator[Ready]
    samples: SampleRecord | None = None
