"""Limits of one message: the bytes of its payload and of its topic. Pure."""

from __future__ import annotations

from collections.abc import Callable

from gateway.domain.errors import Fault, RequestError
from gateway.domain.sizes import RequestSizes
from gateway.frontends.mqtt.messages import Message
from gateway.frontends.mqtt.settings.broker import MqttSettings


class MessageLimits:
    """Limits by the settings, and by what models accept (`sizes`, as `domain.ports.Inference.sizes`)."""

    def __init__(self, settings: MqttSettings, sizes: Callable[[str], RequestSizes]) -> None:
        self._settings, self._sizes = settings, sizes

    def check(self, message: Message, model: str | None) -> None:
        """Refuse a message that is too large, for `model` if its shapes bound the payload. Raises RequestError."""
        limit, size = self._settings.max_payload_bytes, len(message.payload)
        most = None if model is None else self._most_bytes(model)
        if most is not None and most < min(size, limit):
            problem = f"the payload has {size} bytes; the shapes and rows of model '{model:.200}' take at most {most}"
            raise RequestError(Fault.TOO_LARGE, problem)
        if size > limit:
            problem = f"the payload has {size} bytes; at most {limit} are taken (mqtt.max_payload_bytes)"
            raise RequestError(Fault.TOO_LARGE, problem)
        if len(message.topic) > self._settings.max_topic_bytes:
            raise RequestError(Fault.TOO_LARGE, f"the topic has {len(message.topic)} characters; shorten it")

    def check_held(self, message: Message, held_bytes: int) -> None:
        """Refuse a message that is too large to wait for its model behind `held_bytes`. Raises RequestError."""
        self.check(message, None)
        if held_bytes + len(message.payload) > self._settings.max_held_bytes:
            problem = f"messages of {held_bytes} bytes wait for their models already (mqtt.max_held_bytes)"
            raise RequestError(Fault.UNAVAILABLE, f"the model is not available, and {problem}")

    def _most_bytes(self, model: str) -> int | None:
        """Return the largest payload that a model accepts; None if there is no limit or the model is unavailable."""
        try:
            return self._sizes(model).json_bytes
        except RequestError:
            return None  # the message is refused with this error later
