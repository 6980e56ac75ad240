"""Fast path of a route whose messages are one row of numbers for a model with short runs (decision 0052).

Such a message becomes bytes in the engine's batch, without a request of its own. Every other message, and every problem
with one, takes the path of `samples`, which has the same results.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from gateway.common.domain.errors import RequestError
from gateway.common.domain.tensor import Datatype, Raw, Tensor
from gateway.serving.domain.infer import InferRequest, InferResponse, ResponseForm
from gateway.serving.domain.ports import RawBatch
from gateway.serving.frontends.mqtt.inbound.decoder import RouteDecoder
from gateway.serving.frontends.mqtt.inbound.payloads.content import read_content_type
from gateway.serving.frontends.mqtt.inbound.payloads.rows import RowSource
from gateway.serving.frontends.mqtt.inbound.payloads.tensors import whole_shape
from gateway.serving.frontends.mqtt.inbound.routing import TOPICS_REMEMBERED, sensor_of
from gateway.serving.frontends.mqtt.messages import JSON, Message
from gateway.serving.frontends.mqtt.outbound.context import RouteContext
from gateway.serving.frontends.mqtt.outbound.dedup import key_of
from gateway.serving.frontends.mqtt.outbound.delivery import Debt, Delivery
from gateway.serving.frontends.mqtt.outbound.inputs import Ready, message_id
from gateway.serving.frontends.mqtt.outbound.results import RouteResults
from gateway.serving.frontends.mqtt.outbound.runs import defect
from gateway.serving.frontends.mqtt.settings.route import MqttRoute

ROW_BYTES = 4_096
"""Largest payload: about 400 numbers, 20 µs."""
_PACKED = {
    Datatype.FP32: ("f", float),
    Datatype.FP64: ("d", float),
    Datatype.INT8: ("b", int),
    Datatype.UINT8: ("B", int),
    Datatype.INT16: ("h", int),
    Datatype.UINT16: ("H", int),
    Datatype.INT32: ("i", int),
    Datatype.INT64: ("q", int),
}
"""Letters of `struct` and types in JSON by datatype."""


class RowFormat:
    """Reader of payloads with the numbers of one request: a JSON array, or one number."""

    def __init__(self, tensor: Tensor) -> None:
        """Set up a reader for tensors like `tensor`. Raises KeyError for datatypes that have none."""
        letter, kind = _PACKED[tensor.datatype]
        self._pack = struct.Struct(f"<{tensor.array.size}{letter}").pack
        self._read = msgspec.json.Decoder(list[kind] | kind).decode  # type: ignore[valid-type]

    def read(self, payload: bytes) -> bytes | None:
        """Return the packed numbers, or None if the payload is not as expected."""
        try:
            values = self._read(payload)
            return self._pack(*values) if type(values) is list else self._pack(values)
        except (ValueError, struct.error, OverflowError):  # msgspec's errors are ValueErrors
            return None


class FastPath:
    """Fast path of one route. It opens after a message that took the usual path (`learn`).

    Implements `domain.ports.RawSink`; the token is debt, sensor, and what `learn` was called with. `again` gives a
    message to the usual path, `behind` does once no message is pending: the engine may give those back, and they come
    first.
    """

    def __init__(
        self,
        context: RouteContext,
        delivery: Delivery,
        decoder: RouteDecoder,
        results: RouteResults,
        *,
        again: Callable[[Debt], None],
        behind: Callable[[Debt], None],
    ) -> None:
        self._engine, self._outlet, settings = context.engine, context.outlet, context.settings
        self._delivery, self._decoder, self._results = delivery, decoder, results
        self._again, self._behind, self._longest_topic = again, behind, settings.max_topic_bytes
        self._largest_payload = min(ROW_BYTES, settings.max_payload_bytes)
        self._batch: RawBatch | None = None
        self._format: RowFormat | None = None
        self._like: Ready | None = None
        self._sensors: dict[str, str] = {}
        self.pending = 0
        """Messages that are not answered yet."""

    def learn(self, request: InferRequest, like: Ready) -> None:
        """Open the path for messages like the one that became `request`, if the engine takes them as bytes."""
        spec = like.manifest.inputs[0]
        if spec.datatype not in _PACKED or like.tensor.array.shape != whole_shape(spec):
            return
        if self._like is None or self._like.manifest is not like.manifest:
            self._like, self._format = like, RowFormat(like.tensor)
        self._batch = self._engine.raw_batch(replace(request, stream="", arrived_ns=0))  # it has rows of all sensors

    def take(self, message: Message) -> bool:
        """Process a message. Return False if it must take the usual path."""
        batch, reader = self._batch, self._format
        if batch is None or reader is None or len(message.payload) > self._largest_payload:
            return False
        has_own = message.user or message.correlation is not None or message.expiry_s is not None
        if has_own or message.content_type not in {"", JSON}:  # an id, an expiry, a trace, or another content type
            return False
        sensor = self._sensors.get(message.topic) or self._sensor(message)
        content = reader.read(message.payload)
        if content is None or not sensor or self._outlet.full:
            return False
        seen = None
        if message.qos and (seen := self._delivery.begin(key_of(message), message)) is None:
            return True
        debt = Debt(message, message.qos, "", seen)
        if batch.add(self, (debt, sensor, self._like), (content,), message.arrived_ns, None):
            self.pending += 1
        else:
            self._batch = None
            self._behind(debt) if self.pending else self._again(debt)
        return True

    def _sensor(self, message: Message) -> str:
        """Return the sensor of a topic, and remember it; "" if the topic names none, or is too long."""
        try:
            sensor = sensor_of(self._decoder.route.sensor, message, None)
        except RequestError:
            return ""
        if len(message.topic) > self._longest_topic:
            return ""
        if len(self._sensors) >= TOPICS_REMEMBERED:
            self._sensors.clear()
        self._sensors[message.topic] = sensor
        return sensor

    # ---- RawSink ---------------------------------------------------------------------------------------------------
    def answer_raw(self, token: Any, form: ResponseForm, contents: Sequence[Raw]) -> None:
        """Implement `RawSink.answer_raw`: publish the result."""
        debt, sensor, like = token
        self.pending -= 1
        try:
            payload = self._encoded(debt, sensor, like, form, contents)
        except RequestError as refused:
            self._delivery.refuse_debt(debt, refused)
        except Exception:  # noqa: BLE001  a sink must not raise
            self._delivery.refuse_debt(debt, defect(debt.message))
        else:
            self._delivery.suppress(debt) if payload is None else self._delivery.answer(debt, payload)

    def submit_again(self, token: Any) -> None:
        """Implement `RawSink.submit_again`: the message takes the usual path."""
        self.pending -= 1
        self._again(token[0])

    def flush(self) -> None:
        """Implement `RawSink.flush`: publications are written at the end of the pass."""

    def _encoded(
        self, debt: Debt, sensor: str, like: Ready, form: ResponseForm, contents: Sequence[Raw]
    ) -> bytes | None:
        message = debt.message
        debt.identity = message_id(message, self._delivery.session, timed=False)
        message.payload = b""
        outputs = {
            name: Tensor(datatype, np.frombuffer(content, datatype.dtype).reshape(shape))
            for (name, datatype, shape), content in zip(form.outputs, contents, strict=True)
        }
        if self._results.is_plain:
            return self._results.encode_plain(
                debt, sensor, like, self._decoder.plan(like, form.version), (form, outputs)
            )
        response = InferResponse(form.model, form.version, debt.identity, outputs, form.variant)
        ready = Ready(sensor, like.manifest, like.plan, like.tensor, message.wall_ns, message.wall_ns)
        return self._results.encode(debt, ready, self._decoder.plan, response)


def is_suited(route: MqttRoute) -> bool:
    """Return True if messages of a route may be single rows of numbers that need nothing but themselves."""
    has_windows = route.size_rows or route.hop_rows or route.window.has_sessions
    reads_rows = RowSource(route).is_identity and not (route.channel or has_windows)
    by_topic = route.sensor.startswith("topic") and not (route.time.is_set or route.message_id)
    return reads_rows and by_topic and read_content_type(route.content_type).media == JSON
