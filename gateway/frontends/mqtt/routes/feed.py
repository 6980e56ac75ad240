"""Processing of one route: a message becomes a model input, at once or when a sensor's window is full.

The model is looked up for every message: it may be loaded later, replaced, or unavailable for a while.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import numpy as np

from gateway.domain.errors import Fault, RequestError
from gateway.domain.infer import RequestedOutput
from gateway.domain.manifest import ModelManifest
from gateway.domain.tensor import Steps, Tensor
from gateway.frontends.mqtt.messages import Message, OutgoingPublish
from gateway.frontends.mqtt.payloads.channels import Values
from gateway.frontends.mqtt.payloads.content_type import ContentType, read_content_type
from gateway.frontends.mqtt.payloads.errors import invalid
from gateway.frontends.mqtt.payloads.results import ResultPlan, plan_results
from gateway.frontends.mqtt.payloads.sparkplug import SparkplugMessage
from gateway.frontends.mqtt.payloads.tensors import row_tensor, window_tensor
from gateway.frontends.mqtt.payloads.windows import Rows, Windows, WindowShape
from gateway.frontends.mqtt.route_settings import MqttRoute
from gateway.frontends.mqtt.routes.last_values import LastValues
from gateway.frontends.mqtt.routes.reading import PayloadReader, SensorSample

_LOG = logging.getLogger(__name__)
Describe = Callable[[str, str], ModelManifest]
Publish = Callable[[OutgoingPublish], object]
"""Function that publishes a command to a sensor: Sparkplug's rebirth."""


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
    content: ContentType
    windows: Windows | None


class RouteDecoder:
    """Decoder of one route's messages, with the windows of its sensors."""

    def __init__(
        self, route: MqttRoute, describe: Describe, counters: Counter[str], publish: Publish | None = None
    ) -> None:
        """Set up the decoder. Raises ConfigurationError for descriptors of the route that cannot be used."""
        self.route = route
        self._reader = PayloadReader(route)
        self._last = LastValues(route.channel, route.max_sensors)
        self._publish = publish
        self._keeps_last = any(channel.missing == "last" for channel in route.channel)
        self._order: list[int] | None = None
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

    @property
    def inline_bytes(self) -> int:
        """Return the largest payload that is decoded on the event loop at once."""
        return self._reader.inline_bytes

    def begin(self, message: Message) -> MessageDecoding:
        """Return what decoding `message` needs. Raises RequestError: INVALID, and what `describe` raises."""
        manifest = self._current()
        content = read_content_type(message.content_type or self.route.content_type)
        return MessageDecoding(manifest, content, self._windows)

    def steps(self, message: Message, reading: MessageDecoding) -> Steps[SensorSample]:
        """Decode a message, on any thread: it changes nothing. Raises RequestError INVALID."""
        count = None if reading.windows is None else reading.windows.shape.channels
        return self._reader.steps(message, reading.content, reading.manifest, count)

    def complete(self, message: Message, reading: MessageDecoding, sample: SensorSample) -> Iterator[Ready]:
        """Yield the model inputs of a decoded message: one input, or the windows that it completes (often none).

        The samples are in their windows once all inputs were taken. Raises RequestError INVALID for values that do not
        fit the model, and for a Sparkplug message with an unknown alias.
        """
        if sample.sparkplug is not None:
            self._follow_births(message, sample)
        if self._reader.channels is not None:
            sample = self._with_last(message, sample)
            if not len(cast("Values", sample.content)):
                return iter(())
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
        manifest, plan = reading.manifest, self._plan
        rows = cast("Rows", sample.content)
        if self._reader.channels is not None:
            rows = self._ordered(cast("Values", sample.content))
        self._counters["samples"] += len(rows)
        for window in windows.append(sample.sensor, rows, now_ns=message.arrived_ns, wall_ns=message.wall_ns):
            tensor = window_tensor(window.rows, manifest.inputs[0])
            yield Ready(sample.sensor, manifest, plan, tensor, window.started_ns, window.ended_ns)

    def _whole(self, message: Message, manifest: ModelManifest, sample: SensorSample) -> Ready:
        content = sample.content
        tensor = content if isinstance(content, Tensor) else row_tensor(content, manifest.inputs[0])
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
            return ResultPlan(named=self.route.outputs)
        if manifest is not self._other:
            self._other, self._other_plan = manifest, plan_results(manifest, self.route.outputs)
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
        self._order = channel_order(self.route, manifest, shape)
        if shape is None:
            self._windows = None
        elif self._windows is None or self._windows.shape != shape:
            self._counters["windows_discarded"] += self.sensors
            idle_ns = int(self.route.idle_expiry_s * 1e9)
            self._windows = Windows(shape, self.route.max_sensors, idle_ns, self._counters)
        self._manifest = manifest
        self._plan = plan_results(manifest, self.route.outputs)
        carried = f"{manifest.name} version {manifest.version} carry {self._plan}"
        _LOG.info("MQTT route %s: results of model %s", self.route.name, carried)

    def _follow_births(self, message: Message, sample: SensorSample) -> None:
        """Apply a birth or death. Raises RequestError INVALID for refused rows, and for an unknown alias.

        If an alias is unknown, the node is asked for a rebirth.
        """
        read = cast("SparkplugMessage", sample.sparkplug)
        command = self._reader.births.apply(read, message)
        if command is not None and self._publish is not None:
            self._counters["rebirths_requested"] += 1
            self._publish(command)
        if read.unknown is not None:
            raise invalid(f"no birth explains metric alias {read.unknown}; the gateway asks the node for a rebirth")
        if sample.refused is not None:
            raise sample.refused

    def _with_last(self, message: Message, sample: SensorSample) -> SensorSample:
        """Replace missing values by the sensor's last ones."""
        rows = cast("Values", sample.content)
        if self._keeps_last:
            rows = self._last.complete(sample.sensor, rows, message.arrived_ns)
        if not len(rows):
            self._counters["samples_skipped"] += 1
        return SensorSample(sample.sensor, rows, sample.sparkplug)

    def _ordered(self, rows: Values) -> Rows:
        """Return rows in the order of the model's channels."""
        return (rows if self._order is None else rows[:, self._order]).astype(np.float32)


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


def channel_order(route: MqttRoute, manifest: ModelManifest, shape: WindowShape | None) -> list[int] | None:
    """Return the places of the route's channels in the order of the model's [window]; None: the same order.

    Raises RequestError UNAVAILABLE if number or names of the channels do not fit the model.
    """
    if not route.channel or shape is None:
        return None
    if len(route.channel) != shape.channels:
        raise _unfit(route, f"takes {shape.channels} channels, but the route has {len(route.channel)}")
    names = [channel.name for channel in route.channel]
    if not any(names) or manifest.window is None:
        return None
    if sorted(names) != sorted(manifest.window.channels):
        known = ", ".join(manifest.window.channels)
        raise _unfit(route, f"has channels {known:.200}; name each of them once in the route's channels")
    return [names.index(name) for name in manifest.window.channels]


def check_outputs(route: MqttRoute, manifest: ModelManifest) -> None:
    """Raise RequestError UNAVAILABLE if the route names an output that the model does not have."""
    missing = [name for name in route.outputs if manifest.output(name) is None]
    if missing:
        known = ", ".join(spec.name for spec in manifest.outputs)
        raise _unfit(route, f"has no output '{missing[0]}'; its outputs are {known}: correct the route's outputs")


def _unfit(route: MqttRoute, problem: str) -> RequestError:
    return RequestError(Fault.UNAVAILABLE, f"route '{route.name}': model '{route.model}' {problem}")
