"""Processing of one route: a message becomes a model input, at once or when a sensor's window is full.

The model is looked up for every message: it may be loaded later, replaced, or unavailable for a while.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from gateway.domain.errors import Fault, RequestError
from gateway.domain.infer import RequestedOutput
from gateway.domain.manifest import ModelManifest, TensorSpec
from gateway.domain.tensor import Steps, Tensor
from gateway.frontends.mqtt.messages import Message
from gateway.frontends.mqtt.payloads import decode
from gateway.frontends.mqtt.results.contents import ResultPlan, plan_results
from gateway.frontends.mqtt.routes.routing import sensor_of
from gateway.frontends.mqtt.settings import MqttRoute
from gateway.frontends.mqtt.windows.rings import WindowShape
from gateway.frontends.mqtt.windows.samples import Rows
from gateway.frontends.mqtt.windows.sensors import Windows

_LOG = logging.getLogger(__name__)
Describe = Callable[[str, str], ModelManifest]


@dataclass(frozen=True, slots=True)
class Ready:
    """Input for the model, complete.

    `sensor` measured it, its first and last sample came at `started_ns` and `ended_ns` (since the epoch). `plan` is the
    content of results of the version that `manifest` describes.
    """

    sensor: str
    manifest: ModelManifest
    plan: ResultPlan
    tensor: Tensor
    started_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class MessageDecoding:
    """Message that is being decoded: for which manifest, of which content type, into which windows (None: none)."""

    manifest: ModelManifest
    content: decode.ContentType
    windows: Windows | None


@dataclass(frozen=True, slots=True)
class SensorSample:
    """Decoded message of a sensor: a whole input, or rows of a window."""

    sensor: str
    content: Tensor | Rows


class RouteDecoder:
    """Decoder of one route's messages, with the windows of its sensors."""

    def __init__(self, route: MqttRoute, describe: Describe, counters: Counter[str]) -> None:
        self.route = route
        self._describe = describe
        self._counters = counters
        self.requested = tuple(RequestedOutput(name) for name in route.outputs)
        self._manifest: ModelManifest | None = None
        self._plan = ResultPlan()
        self._other: ModelManifest | None = None
        self._other_plan = self._plan
        self._windows: Windows | None = None

    def prepare(self) -> None:
        """Look up the model before the first message: the log then says at once if it is missing or unfit."""
        try:
            self._current()
        except RequestError as refused:
            _LOG.warning("MQTT route %s is waiting for its model: %s", self.route.name, refused.message)

    @property
    def windowed(self) -> bool:
        """Return True if a message is a part of an input: samples for a window. Known once the model is."""
        return self._windows is not None or bool(self.route.size_rows or self.route.hop_rows)

    @property
    def sensors(self) -> int:
        """Return the number of sensors that have a window."""
        return 0 if self._windows is None else len(self._windows)

    def begin(self, message: Message) -> MessageDecoding:
        """Return what decoding `message` needs. Raises RequestError: INVALID, and what `describe` raises."""
        manifest = self._current()
        content = decode.read_content_type(message.content_type or self.route.content_type)
        return MessageDecoding(manifest, content, self._windows)

    def steps(self, message: Message, reading: MessageDecoding) -> Steps[SensorSample]:
        """Decode a message, on any thread: it changes nothing. Raises RequestError INVALID."""
        yield
        content, payload = reading.content, message.payload
        document = decode.read_document(content.media, payload) if content.media in decode.DOCUMENTS else None
        yield
        sensor = sensor_of(self.route.sensor, message, document)
        if reading.windows is None:
            return SensorSample(sensor, self._tensor(content, payload, document, reading.manifest.inputs[0]))
        return SensorSample(
            sensor, self._rows(content, payload, document, reading.manifest, reading.windows.shape.channels)
        )

    def complete(self, message: Message, reading: MessageDecoding, sample: SensorSample) -> Iterator[Ready]:
        """Yield the model inputs of a decoded message: one input, or the windows that it completes (often none).

        The samples are in their windows once all inputs were taken.
        """
        if reading.windows is None:
            return iter((self._whole(message, reading.manifest, sample),))
        return self._complete(message, reading, reading.windows, sample)

    def fits(self, reading: MessageDecoding) -> bool:
        """Return True if the model takes what was decoded; otherwise it changed, and the message must be read again."""
        with suppress(RequestError):  # it is unavailable: the existing windows are filled
            self._current()
        return reading.windows is self._windows

    def _complete(
        self, message: Message, reading: MessageDecoding, windows: Windows, sample: SensorSample
    ) -> Iterator[Ready]:
        rows, manifest, plan = cast("Rows", sample.content), reading.manifest, self._plan
        self._counters["samples"] += len(rows)
        for window in windows.append(sample.sensor, rows, now_ns=message.arrived_ns, wall_ns=message.wall_ns):
            tensor = decode.window_tensor(window.rows, manifest.inputs[0])
            yield Ready(sample.sensor, manifest, plan, tensor, window.started_ns, window.ended_ns)

    def _whole(self, message: Message, manifest: ModelManifest, sample: SensorSample) -> Ready:
        tensor = cast("Tensor", sample.content)
        return Ready(sample.sensor, manifest, self._plan, tensor, message.wall_ns, message.wall_ns)

    def plan(self, ready: Ready, version: str) -> ResultPlan:
        """Return the plan for an answer that `version` gave.

        While versions share the requests, it may differ from the version that `ready` expected. If it is no longer
        known, outputs are published by name: labels of another version could be wrong.
        """
        if version == ready.manifest.version:
            return ready.plan
        try:
            manifest = self._describe(self.route.model, version)
        except RequestError:
            return ResultPlan(named=self.route.outputs, content=self.route.result.content)
        if manifest is not self._other:
            self._other, self._other_plan = manifest, plan_results(manifest, self.route.outputs, self.route.result)
        return self._other_plan

    def _current(self) -> ModelManifest:
        """Return the model's current manifest. While it is unavailable, samples fill the existing windows."""
        try:
            manifest = self._describe(self.route.model, self.route.version)
        except RequestError as error:
            if error.fault is Fault.UNAVAILABLE and self._manifest is not None and self._windows is not None:
                return self._manifest
            raise
        if manifest is not self._manifest:
            self._adopt(manifest)
        return manifest

    def _adopt(self, manifest: ModelManifest) -> None:
        """Use another manifest: plan the results. Windows of another shape are discarded."""
        check_outputs(self.route, manifest)
        shape = window_shape(self.route, manifest)
        if shape is None:
            self._windows = None
        elif self._windows is None or self._windows.shape != shape:
            self._counters["windows_discarded"] += self.sensors
            idle_ns = int(self.route.idle_expiry_s * 1e9)
            self._windows = Windows(shape, self.route.max_sensors, idle_ns, self._counters)
        self._manifest = manifest
        self._plan = plan_results(manifest, self.route.outputs, self.route.result)
        carried = f"{manifest.name} version {manifest.version} carry {self._plan}"
        _LOG.info("MQTT route %s: results of model %s", self.route.name, carried)

    def _tensor(self, content: decode.ContentType, payload: bytes, document: Any, spec: TensorSpec) -> Tensor:
        if content.media in decode.DOCUMENTS:
            return decode.document_tensor(document, spec)
        if content.media == decode.RAW:
            layout = decode.read_layout(content, self.route.dtype, self.route.shape, spec)
            return decode.raw_tensor(payload, layout, spec)
        if content.media in decode.IMAGES:
            return decode.image_tensor(payload, content.media, spec)
        raise _unreadable(content)

    def _rows(
        self, content: decode.ContentType, payload: bytes, document: Any, manifest: ModelManifest, count: int
    ) -> Rows:
        if content.media in decode.DOCUMENTS:
            return decode.samples(document, manifest.window.channels if manifest.window else (), count)
        if content.media == decode.RAW:
            layout = decode.read_layout(content, self.route.dtype, self.route.shape, manifest.inputs[0])
            return decode.raw_samples(payload, layout, count)
        raise _unreadable(content)


def window_shape(route: MqttRoute, manifest: ModelManifest) -> WindowShape | None:
    """Return the shape of the route's windows; its own sizes have precedence over the manifest's.

    Return None if each message is an input of its own. Raises RequestError UNAVAILABLE if route and model do not fit.
    """
    window, spec = manifest.window, manifest.inputs[0]
    size_rows = route.size_rows or (window.size_rows if window else 0)
    if not size_rows:
        if route.hop_rows:
            raise _unfit(route, "has no [window]; set size_rows together with hop_rows, or remove hop_rows")
        return None
    channels = len(window.channels) if window else spec.shape[-2 if spec.layout == "NCL" else -1]
    if channels < 1:
        raise _unfit(route, "does not say how many channels a sample has; give its manifest a [window]")
    return WindowShape(size_rows, channels, route.hop_rows or (window.hop_rows if window else size_rows))


def check_outputs(route: MqttRoute, manifest: ModelManifest) -> None:
    """Raise RequestError UNAVAILABLE if the route names an output that the model does not have."""
    missing = [name for name in route.outputs if manifest.output(name) is None]
    if missing:
        known = ", ".join(spec.name for spec in manifest.outputs)
        raise _unfit(route, f"has no output '{missing[0]}'; its outputs are {known}: correct the route's outputs")


def _unfit(route: MqttRoute, problem: str) -> RequestError:
    return RequestError(Fault.UNAVAILABLE, f"route '{route.name}': model '{route.model}' {problem}")


def _unreadable(content: decode.ContentType) -> RequestError:
    return RequestError(
        Fault.INVALID,
        f"content type '{content.media:.80}' is not taken here; send application/json, application/cbor, "
        "application/x-msgpack, application/octet-stream or, for models that take images, image/jpeg or image/png",
    )
