"""Quotas of all routes: messages that exceed them are counted, reported now and then, and acknowledged."""

from __future__ import annotations

from gateway.frontends.mqtt.delivery.delivery import Delivery
from gateway.frontends.mqtt.messages import Message
from gateway.frontends.mqtt.route_settings import MqttRoute
from gateway.frontends.mqtt.routes.quota import SensorQuota
from gateway.frontends.mqtt.settings import MqttSettings


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
