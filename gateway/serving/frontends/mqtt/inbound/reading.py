"""Reading of one route's payloads: bytes become a sensor's name and its rows, or a whole input.

Nothing here changes state, so that a thread may read large payloads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.common.domain.errors import RequestError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Steps, Tensor
from gateway.serving.frontends.mqtt.inbound.payloads import raw, tensors
from gateway.serving.frontends.mqtt.inbound.payloads.channels import ChannelReader, Values, stamps_of
from gateway.serving.frontends.mqtt.inbound.payloads.content import ContentType, check_rows, invalid
from gateway.serving.frontends.mqtt.inbound.payloads.formats import readers_of
from gateway.serving.frontends.mqtt.inbound.payloads.rows import RowSource
from gateway.serving.frontends.mqtt.inbound.payloads.sparkplug import TIMESTAMP, Births, SparkplugMessage, gets_all
from gateway.serving.frontends.mqtt.inbound.routing import name_of, sensor_of
from gateway.serving.frontends.mqtt.inbound.timed import read_channels
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.settings.presets import SPARKPLUG
from gateway.serving.frontends.mqtt.settings.route import CONTENT_TYPES, PROTOBUF, MqttRoute
from gateway.serving.frontends.mqtt.windows.samples import Rows

INLINE_BYTES = 32 * 1024
"""Largest payload that is decoded on the event loop at once: 1.3 ms of JSON numbers."""
SEARCHED_INLINE_BYTES = 1_024
"""Largest payload that is decoded on the event loop at once if a path has operators: about 1 ms for a path."""
COSTLY_INLINE_BYTES = 2_048
"""Largest payload of Sparkplug, SenML or CSV that is decoded on the event loop at once: up to 4 µs a byte."""
PROTOBUF_INLINE_BYTES = 1_024
"""Largest payload of protobuf that is decoded on the event loop at once: up to 13 µs a byte of empty submessages."""
SEARCHED_LIMIT_BYTES = 65_536
"""Largest payload for paths with operators: they visit each value, 3 µs each, in one step of a thread."""
_INLINE_BYTES: Mapping[str, int] = {
    **dict.fromkeys((SPARKPLUG, "application/senml+json", "application/senml+cbor", "text/csv"), COSTLY_INLINE_BYTES),
    **dict.fromkeys(PROTOBUF, PROTOBUF_INLINE_BYTES),
}
"""Limits of the media types that are read in one long step."""


@dataclass(frozen=True, slots=True)
class SensorSample:
    """Decoded message of a sensor: a whole input, rows of a window, or the values of a route's channels.

    `sparkplug` is the message's part in Sparkplug's protocol, which counts even if its rows are `refused`. The first
    `historical` rows are stored values, with times of their own. `name` is what `message_id`
    of the route finds.
    """

    sensor: str
    content: Tensor | Rows | Values
    sparkplug: SparkplugMessage | None = None
    refused: RequestError | None = None
    historical: int = 0
    name: str = ""


class PayloadReader:
    """Reader of one route's payloads."""

    def __init__(self, route: MqttRoute) -> None:
        """Compile the route's paths and layouts. Raises ConfigurationError for descriptors that cannot be used."""
        self._route = route
        self._readers = readers_of(route)
        self._source = RowSource(route)
        stamps = stamps_of(route.time)
        self.channels = ChannelReader(read_channels(route), stamps, lenient=route.lenient) if route.channel else None
        self.births = Births(gets_all=gets_all(route.topics))
        self._searches = self._source.searches or (self.channels is not None and self.channels.searches)

    def inline_bytes(self, content: ContentType) -> int:
        """Return the size of the largest payload of this type that is decoded on the event loop at once."""
        return SEARCHED_INLINE_BYTES if self._searches else _INLINE_BYTES.get(content.media, INLINE_BYTES)

    def steps(
        self, message: Message, content: ContentType, manifest: ModelManifest, count: int | None
    ) -> Steps[SensorSample]:
        """Decode a message to rows of `count` channels, or to a whole input (None). Raises RequestError INVALID."""
        yield
        if self._searches and len(message.payload) > SEARCHED_LIMIT_BYTES:
            problem = f"the payload has {len(message.payload)} bytes; paths with operators, such as [?…] and ||, take"
            remedy = "send less in a message, or write paths of keys and places only"
            raise invalid(f"{problem} {SEARCHED_LIMIT_BYTES}; {remedy}")
        if content.media == SPARKPLUG:
            return (yield from self._sparkplug(message))
        read = self._readers.get(content.media)
        if read is None:
            return (yield from self._plain(message, content, manifest, count))
        document = read(message.payload, content)
        yield
        sensor, rule = sensor_of(self._route.sensor, message, document), self._route.message_id
        name = name_of(rule, message, document) if rule else ""
        if self.channels is not None:
            rows = yield from self.channels.steps(self._source.rows(document, message.topic))
            return SensorSample(sensor, rows, name=name)
        found = document if self._source.is_identity else self._source.found(document, message.topic)
        if count is None:
            return SensorSample(sensor, tensors.document_tensor(found, manifest.inputs[0]), name=name)
        names = manifest.window.channels if manifest.window else ()
        return SensorSample(sensor, tensors.samples(found, names, count), name=name)

    def _plain(
        self, message: Message, content: ContentType, manifest: ModelManifest, count: int | None
    ) -> Steps[SensorSample]:
        """Read what is no document: raw numbers, packed bytes, images."""
        spec, payload = manifest.inputs[0], message.payload
        found: Tensor | Rows | Values
        if content.media == raw.RAW and self.channels is not None:
            found = yield from self.channels.steps(self._raw_rows(message, content, spec))
        elif content.media == raw.RAW:
            layout = raw.read_layout(content, self._route, spec)
            found = raw.raw_tensor(payload, layout, spec) if count is None else raw.raw_samples(payload, layout, count)
        elif content.media in raw.ENCODED and count is None and self.channels is None:
            found = raw.encoded_tensor(payload, content.media, spec)
        else:
            raise invalid(f"content type '{content.media:.80}' is not taken here; send {', '.join(CONTENT_TYPES)}")
        rule = self._route.message_id
        name = name_of(rule, message, None) if rule else ""
        return SensorSample(sensor_of(self._route.sensor, message, None), found, name=name)

    def _raw_rows(self, message: Message, content: ContentType, spec: TensorSpec) -> list[Any]:
        """Return rows of packed fields, or rows of numbers: the last side of the route's shape, or one per channel."""
        if self._source.struct is not None:
            return self._source.rows(message.payload, message.topic)
        layout = raw.read_layout(content, self._route, spec)
        count = layout.shape[-1] if layout.shape else len(self._route.channel)
        check_rows(len(message.payload) // (count * layout.datatype.wire_bytes))
        rows: list[Any] = raw.raw_samples(message.payload, layout, count).tolist()
        return rows

    def _sparkplug(self, message: Message) -> Steps[SensorSample]:
        read = self.births.read(message.topic, message.payload)
        sensor = sensor_of(self._route.sensor, message, read.document)
        if self.channels is None:
            raise invalid("Sparkplug B needs a [[mqtt.route.channel]] for each metric of a row")
        no_rows = yield from self.channels.steps(())
        if read.document is None or read.unknown is not None:
            return SensorSample(sensor, no_rows, read)
        stored = read.historical if self._route.time.path else ()
        current = () if read.historical and not read.document["metrics"].keys() - {TIMESTAMP} else (read.document,)
        try:
            old = yield from self.channels.steps(self._rows(stored, message.topic))
            new = yield from self.channels.steps(self._rows(current, message.topic))
        except RequestError as refused:
            return SensorSample(sensor, no_rows, read, refused)
        return SensorSample(sensor, np.concatenate((old, new)), read, historical=len(old))

    def _rows(self, documents: Sequence[Any], topic: str) -> list[Any]:
        return [row for document in documents for row in self._source.rows(document, topic)]
