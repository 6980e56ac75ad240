"""Limits of messages, checked before they are decoded: their size, and the number that a sensor may send.

A flood costs as little as possible. Messages beyond a quota are counted, reported now and then, and acknowledged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.retry import TokenBuckets
from gateway.serving.domain.sizes import RequestSizes
from gateway.serving.frontends.mqtt.inbound.payloads.rows import topic_part, topic_range
from gateway.serving.frontends.mqtt.inbound.routing import SENSOR_LIMIT_CHARS
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.outbound.delivery import Delivery
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings
from gateway.serving.frontends.mqtt.settings.route import MqttRoute


class MessageLimits:
    """Limits by the settings, and by what models accept (`sizes`, as `domain.ports.Inference.sizes`)."""

    def __init__(self, settings: MqttSettings, sizes: Callable[[str], RequestSizes]) -> None:
        self._settings, self._sizes = settings, sizes

    def check(self, message: Message, model: str | None) -> None:
        """Refuse a message that is too large, for `model` if its shapes bound the payload. Raises RequestError."""
        limit, size = self._settings.max_payload_bytes, len(message.payload)
        try:
            most = None if model is None else self._sizes(model).json_bytes
        except RequestError:
            most = None  # the model is unavailable: the message is refused with this error later
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


class SensorQuota:
    """Quota of the sensors of `route`, whose table `quota` must set one. `repeat_s`: time between two errors."""

    def __init__(self, route: MqttRoute, repeat_s: float) -> None:
        quota = route.quota
        self._route, self._by, self._limit = route, quota.by or route.sensor, quota.max_sensors
        self._buckets = TokenBuckets(quota.messages_per_s, quota.allowance, quota.max_sensors)
        self._repeat_ns = int(repeat_s * 1e9)
        self._reported_ns: OrderedDict[str, int] = OrderedDict()

    def name_of(self, message: Message) -> str:
        """Return the name that the message counts for. Messages without the user property share one quota, ""."""
        if self._by == "topic":
            name = message.topic
        elif self._by.startswith("topic["):
            name = topic_part(message.topic, topic_range(self._by))
        else:
            name = message.user_property(self._by.removeprefix("property."))
        return name[:SENSOR_LIMIT_CHARS]

    def take(self, name: str, now_ns: int) -> bool:
        """Count a message. Return False if it exceeds the quota of its sensor."""
        return not self._buckets.take(name, now_ns)

    def is_error_due(self, name: str, now_ns: int) -> bool:
        """Return True if a message that exceeds the quota is to be reported: none was within `repeat_s`."""
        last_ns = self._reported_ns.get(name)
        if last_ns is not None and now_ns - last_ns < self._repeat_ns:
            return False
        self._reported_ns[name] = now_ns
        self._reported_ns.move_to_end(name)
        if len(self._reported_ns) > self._limit:
            self._reported_ns.popitem(last=False)
        return True

    def refusal(self, name: str) -> RequestError:
        """Return the error for a message that exceeds the quota."""
        rate, repeat_s = self._route.quota.messages_per_s, self._repeat_ns / 1e9
        problem = f"'{name:.100}' sends more than {rate:g} messages per second (quota of route '{self._route.name}')"
        return RequestError(
            Fault.OVERLOADED, f"{problem}; those beyond are dropped, which is repeated in {repeat_s:g} s"
        )


class RouteQuotas:
    """Quotas of the routes that have one."""

    def __init__(self, quotas: dict[str, SensorQuota], delivery: Delivery) -> None:
        self._quotas, self._delivery = quotas, delivery

    @classmethod
    def of(cls, settings: MqttSettings, delivery: Delivery) -> RouteQuotas | None:
        """Return the quotas of the routes of a broker; None if there are none, so that they cost nothing."""
        limited = [route for route in settings.route if route.quota.messages_per_s]
        quotas = {route.name: SensorQuota(route, settings.error_repeat_s) for route in limited}
        return cls(quotas, delivery) if quotas else None

    def admits(self, route: MqttRoute, message: Message) -> bool:
        """Return True if a message is within its sensor's quota. One that is not ends here."""
        quota = self._quotas.get(route.name)
        if quota is None:
            return True
        name, now_ns = quota.name_of(message), message.arrived_ns
        if quota.take(name, now_ns):
            return True
        if quota.is_error_due(name, now_ns):
            self._delivery.complain(message, quota.refusal(name), message.user_property("id"), message.qos)
        self._delivery.discard(message, "dropped_quota")
        return False
