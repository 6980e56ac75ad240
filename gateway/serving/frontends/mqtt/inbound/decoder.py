"""Processing of one route: a message becomes a model input, at once or when a sensor's window is full.

The model is looked up for every message: it may be loaded later, replaced, or unavailable for a while.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import msgspec
import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import Steps, Tensor
from gateway.serving.domain.infer import RequestedOutput
from gateway.serving.frontends.mqtt.inbound.fitting import (
    channel_order,
    check_outputs,
    new_windows,
    padding,
    window_shape,
)
from gateway.serving.frontends.mqtt.inbound.payloads.channels import Values
from gateway.serving.frontends.mqtt.inbound.payloads.content import ContentType, invalid, read_content_type
from gateway.serving.frontends.mqtt.inbound.payloads.sparkplug import SparkplugMessage
from gateway.serving.frontends.mqtt.inbound.payloads.tensors import row_tensor, window_tensor
from gateway.serving.frontends.mqtt.inbound.reading import PayloadReader, SensorSample
from gateway.serving.frontends.mqtt.inbound.routing import sensor_of
from gateway.serving.frontends.mqtt.inbound.timed import StampedRows, gap_limit_ns, sequences_of, times_of, waiting_ns
from gateway.serving.frontends.mqtt.journal.records import SampleRecord
from gateway.serving.frontends.mqtt.messages import Message, OutgoingPublish
from gateway.serving.frontends.mqtt.outbound.contents import ResultPlan, plan_results
from gateway.serving.frontends.mqtt.outbound.inputs import Ready
from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from gateway.serving.frontends.mqtt.windows.rings import Complete, Padding, Ring
from gateway.serving.frontends.mqtt.windows.samples import Rows, SensorState
from gateway.serving.frontends.mqtt.windows.sensors import Windows


class LastValues:
    """Last values of the sensors of one route; beyond `max_sensors` the least recently seen one is forgotten."""

    def __init__(self, channels: Sequence[MqttChannel], max_sensors: int) -> None:
        self._max_age_ns = np.array([channel.max_age_s * 1e9 for channel in channels])
        self._max_sensors = max_sensors
        self._sensors: OrderedDict[str, tuple[Values, Values]] = OrderedDict()
        """Values of each sensor (NaN: none yet), and their times."""

    def __len__(self) -> int:
        return len(self._sensors)

    def complete(self, sensor: str, rows: Values, now_ns: int) -> Values:
        """Replace NaN by the sensor's last values. Rows whose last value is unknown or too old are left out."""
        if not len(rows):
            return rows
        held = self._sensors.get(sensor)
        if held is not None:
            self._sensors.move_to_end(sensor)
        else:
            if len(self._sensors) >= self._max_sensors:
                self._sensors.popitem(last=False)
            count = len(self._max_age_ns)
            held = self._sensors[sensor] = (np.full(count, np.nan), np.zeros(count))
        last, seen_ns = held
        above = np.vstack((np.where(now_ns - seen_ns <= self._max_age_ns, last, np.nan), rows))
        places = np.where(np.isnan(above), 0, np.arange(len(above))[:, np.newaxis])
        np.maximum.accumulate(places, axis=0, out=places)  # each NaN takes the value above it
        filled: Values = above[places, np.arange(above.shape[1])][1:]
        present = ~np.isnan(rows).all(axis=0)
        last[present], seen_ns[present] = filled[-1][present], now_ns
        return filled[~np.isnan(filled).any(axis=1)]


_LOG = logging.getLogger(__name__)
Describe = Callable[[str, str], ModelManifest]
Publish = Callable[[OutgoingPublish], object]
"""Function that publishes a command to a sensor: Sparkplug's rebirth."""


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


class RouteDecoder:
    """Decoder of one route's messages, with the windows of its sensors."""

    def __init__(
        self,
        route: MqttRoute,
        describe: Describe,
        counters: Counter[str],
        publish: Publish | None = None,
        *,
        journaled: bool = False,
    ) -> None:
        """Set up the decoder. Raises ConfigurationError for descriptors of the route that cannot be used.

        `journaled`: samples of QoS 1 messages have records.
        """
        self.route = route
        self._reader = PayloadReader(route)
        self.inline_bytes = self._reader.inline_bytes
        channels = self._reader.channels.channels if self._reader.channels else ()
        self._last = LastValues([channel.settings for channel in channels], route.max_sensors)
        self._publish, self._journaled, self._content = publish, journaled, read_content_type(route.content_type)
        self._keeps_last = not route.time.joins and any(channel.missing == "last" for channel in route.channel)
        self._order: list[int] | None = None
        self._describe = describe
        self._counters = counters
        self.requested: tuple[RequestedOutput, ...] = ()
        self._manifest: ModelManifest | None = None
        self._plan = ResultPlan()
        self._other: ModelManifest | None = None
        self._other_plan = self._plan
        self.windows: Windows | None = None
        """Windows of the sensors; None if the model takes none, or is not known."""
        self._always_windowed = bool(route.size_rows or route.hop_rows or route.window.has_sessions)
        self.windowed = self._always_windowed
        """True if a message is a part of an input: samples for a window. Known once the model is."""
        self.holds = route.model_away == "hold"
        """True if messages wait while the model is unavailable; while it loads they always do."""
        self._padding: Padding | None = None
        self._gap_limit_ns = 0
        self.waiting_ns = waiting_ns(route)

    def prepare(self) -> None:
        """Look up the model before the first message: the log then says at once if it is missing or unfit."""
        try:
            self._current()
        except RequestError as refused:
            _LOG.warning("MQTT route %s is waiting for its model: %s", self.route.name, refused.message)

    @property
    def away(self) -> RequestError | None:
        """Return why the model is unavailable, or does not fit the route; None if it is available."""
        try:
            self._current()
        except RequestError as refused:
            return refused
        return None

    @property
    def sensors(self) -> int:
        """Return the number of sensors that have a window."""
        return 0 if self.windows is None else len(self.windows)

    def begin(self, message: Message) -> MessageDecoding:
        """Return what decoding `message` needs. Raises RequestError: INVALID, and what `describe` raises."""
        manifest = self._current()
        content = read_content_type(message.content_type) if message.content_type else self._content
        return MessageDecoding(manifest, content, self.windows)

    def steps(self, message: Message, reading: MessageDecoding) -> Steps[SensorSample]:
        """Decode a message, on any thread: it changes nothing. Raises RequestError INVALID."""
        count = None if reading.windows is None else reading.windows.shape.channels
        return self._reader.steps(message, reading.content, reading.manifest, count)

    def complete(self, message: Message, reading: MessageDecoding, sample: SensorSample) -> ModelInputs:
        """Return the model inputs of a decoded message: one input, or the windows that it completes (often none).

        The samples are in their windows once all inputs were taken. Raises RequestError INVALID for values that do not
        fit the model, and for a Sparkplug message that the state of its node does not permit.
        """
        if sample.sparkplug is not None:
            self._follow_births(message, sample)
        if self._reader.channels is not None:
            sample = self._with_last(message, sample)
            if not len(cast("Values", sample.content)):
                return ModelInputs(iter(()))
        if reading.windows is not None:
            return self._complete(message, reading.windows, sample)
        manifest, content, times = reading.manifest, sample.content, [message.wall_ns]
        if self._reader.channels is not None:
            values, count = cast("Values", content), self._reader.channels.count
            times = times_of(self.route.time, values[:, count:], message)
            content = row_tensor(values[:, :count], manifest.inputs[0])
        tensor = cast("Tensor", content)
        return ModelInputs(iter((Ready(sample.sensor, manifest, self._plan, tensor, min(times), max(times)),)))

    def lose(self, message: Message) -> None:
        """Note that a message was refused: the window of its sensor has a gap there, if it names its sensor."""
        if self.windows is not None:
            with suppress(RequestError, ValueError):
                document = msgspec.json.decode(message.payload) if self.route.sensor.startswith("payload") else None
                self.windows.lose(sensor_of(self.route.sensor, message, document))

    def fits(self, reading: MessageDecoding) -> bool:
        """Return True if the model takes what was decoded; otherwise it changed, and the message must be read again."""
        with suppress(RequestError):  # it is unavailable: the existing windows are filled
            self._current()
        return reading.windows is self.windows

    def _complete(self, message: Message, windows: Windows, sample: SensorSample) -> ModelInputs:
        sensor, now_ns, wall_ns = sample.sensor, message.arrived_ns, message.wall_ns
        time, channels, content = self.route.time, self._reader.channels, sample.content
        timed = StampedRows(cast("Rows", content))
        if channels is not None:  # in the order of the model's channels; stamps follow them
            values = cast("Values", content)
            rows = values[:, : channels.count] if self._order is None else values[:, self._order]
            stamps = values[:, channels.count :]
            times = times_of(time, stamps, message) if time.is_set else []
            timed = StampedRows(rows.astype(np.float32), times, sequences_of(time, stamps))
        keeps = self._journaled and message.qos
        record = timed.record(self.route.name, sensor, message, windows.lost.get(sensor, 0)) if keeps else None
        self._counters["samples"] += len(timed.rows)
        if windows.is_timed:
            found = windows.put(sensor, timed.samples(message), now_ns=now_ns, wall_ns=wall_ns)
        else:
            found = windows.append(sensor, timed.rows, now_ns=now_ns, wall_ns=wall_ns)
        return ModelInputs((self.ready(sensor, window) for window in found), record)

    def due_ns(self) -> int | None:
        """Return the monotonic time of the next `expire`; None if no sample waits for earlier ones."""
        return None if self.windows is None else self.windows.due_ns()

    def expire(self, now_ns: int | None = None) -> Iterator[Ready]:
        """Yield the windows that are complete without samples that did not come in time (None: at the stop)."""
        for sensor, window in self.windows.expire(now_ns) if self.windows else ():
            yield self.ready(sensor, window)

    def states(self) -> Iterator[tuple[str, Ring, SensorState]]:
        """Yield the content of the windows that are not complete (`Windows.states`)."""
        return iter(()) if self.windows is None else self.windows.states()

    def ready(self, sensor: str, window: Complete) -> Ready:
        """Return the input of a complete window."""
        manifest = cast("ModelManifest", self._manifest)  # windows exist only after it
        rows = window.rows if self._padding is None else self._padding.apply(window.rows)
        padded = len(rows) - len(window.rows) if self.route.window.has_sessions else None
        tensor = window_tensor(rows, manifest.inputs[0])
        times = window.started_ns, window.ended_ns
        return Ready(sensor, manifest, self._plan, tensor, *times, window, self._gap_limit_ns, padded)

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
            if error.fault is Fault.UNAVAILABLE and self._manifest is not None and self.windows is not None:
                return self._manifest
            raise
        if manifest is not self._manifest:
            self._adopt(manifest)
        return manifest

    def _adopt(self, manifest: ModelManifest) -> None:
        """Use another manifest: plan the results. Windows of another shape or order are discarded."""
        check_outputs(self.route, manifest)
        shape = window_shape(self.route, manifest)
        order = channel_order(self.route, manifest, shape)
        self.windowed = self._always_windowed or shape is not None
        if shape is None:
            self.windows = None
        elif self.windows is None or self.windows.shape != shape or self._order != order:
            windows = new_windows(self.route, manifest, shape, order, self._counters)
            self._counters["windows_discarded"] += self.sensors
            self._gap_limit_ns = gap_limit_ns(self.route, manifest)
            self.windows = windows
        self._order = order
        self._padding = None if shape is None else padding(self.route, manifest, shape)
        self._manifest = manifest
        self._plan = plan_results(manifest, self.route.outputs, self.route.result)
        document = (self._plan.document,) if self._plan.document else ()
        self.requested = tuple(RequestedOutput(name) for name in dict.fromkeys((*document, *self.route.outputs)))
        carried = f"{manifest.name} version {manifest.version} carry {self._plan}"
        _LOG.info("MQTT route %s: results of model %s", self.route.name, carried)

    def _follow_births(self, message: Message, sample: SensorSample) -> None:
        """Apply a message to the state of its Sparkplug node, and publish the rebirth command that it leads to.

        Raises RequestError INVALID for refused rows, and for a message that the state of its node does not permit.
        """
        problem, command = self._reader.births.apply(cast("SparkplugMessage", sample.sparkplug), message)
        if command is not None and self._publish is not None:
            self._counters["rebirths_requested"] += 1
            self._publish(command)
        if problem:
            raise invalid(f"{problem}; the gateway asks the node for a rebirth")
        if sample.refused is not None:
            raise sample.refused

    def _with_last(self, message: Message, sample: SensorSample) -> SensorSample:
        """Replace missing values by the sensor's last ones. Stored rows need all their values: the last are newer."""
        rows = cast("Values", sample.content)
        if self._keeps_last:
            old, new = rows[: sample.historical], rows[sample.historical :]
            new = self._last.complete(sample.sensor, new, message.arrived_ns)
            rows = np.concatenate((old[~np.isnan(old).any(axis=1)], new)) if len(old) else new
        if not len(rows):
            self._counters["samples_skipped"] += 1
        return SensorSample(sample.sensor, rows, sample.sparkplug)
