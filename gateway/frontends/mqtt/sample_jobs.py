"""Inferences of samples, and what becomes of their results."""

from __future__ import annotations

from collections import Counter
from functools import partial

from gateway.domain.infer import InferRequest, InferResponse
from gateway.frontends.mqtt.delivery.dedup import SeenMessage
from gateway.frontends.mqtt.delivery.delivery import Debt, Outlet
from gateway.frontends.mqtt.delivery.identity import message_id, window_id
from gateway.frontends.mqtt.delivery.jobs import InferenceJob
from gateway.frontends.mqtt.journal.journal import SampleJournal
from gateway.frontends.mqtt.messages import Message
from gateway.frontends.mqtt.route_results import RouteResults, Seen
from gateway.frontends.mqtt.route_settings import MqttRoute
from gateway.frontends.mqtt.routes.feed import RouteDecoder
from gateway.frontends.mqtt.routes.inputs import Ready
from gateway.frontends.mqtt.settings import MqttSettings


class SampleJobs:
    """Maker of the jobs of all routes, with their results."""

    def __init__(
        self,
        settings: MqttSettings,
        gateway_id: str,
        *,
        outlet: Outlet,
        counters: Counter[str],
        journal: SampleJournal | None,
        seen: Seen | None,
    ) -> None:
        self._journal = journal
        make = partial(RouteResults, outlet=outlet, counters=counters, limit_bytes=settings.max_result_bytes, seen=seen)
        self._results = {route.name: make(route, gateway_id) for route in settings.route}

    def close(self) -> None:
        """Publish no more messages of rules."""
        for results in self._results.values():
            results.close()

    # ---- inferences ------------------------------------------------------------------------------------------------
    def make(self, feed: RouteDecoder, message: Message, ready: Ready, seen: SeenMessage | None) -> InferenceJob:
        """Return the job of an input; `seen`: record of its message, None for a window."""
        route, tensor = feed.route, ready.manifest.inputs[0].name
        identity = message.user_property("id") or self._identity(route, message, ready)
        request = InferRequest(
            route.model,
            {tensor: ready.tensor},
            version=route.version,
            id=identity,
            outputs=feed.requested,
            deadline_ns=message.deadline_ns(),
            caller=f"mqtt:{route.name}",
        )
        qos = _result_qos(route) if feed.windowed else message.qos
        debt = Debt(message, qos, "", seen, identity=identity)
        if self._journal is not None and ready.window is not None and qos:
            debt.settled = partial(self._journal.done, self._journal.begin(route.name, ready.sensor, ready.window))
        return InferenceJob(request, partial(self._result, feed, debt, ready), debt, holds=feed.holds)

    @staticmethod
    def _identity(route: MqttRoute, message: Message, ready: Ready) -> str:
        if ready.window is None:
            return message_id(message, timed=route.time.is_set)
        return window_id(route.name, ready, ready.window, timed=bool(route.time.path))

    def _result(self, feed: RouteDecoder, debt: Debt, ready: Ready, response: InferResponse) -> bytes | None:
        plan = feed.plan(ready, response.version)
        return self._results[feed.route.name].encode(debt, ready, plan, response)


def _result_qos(route: MqttRoute) -> int:
    """Return the quality of service of the results of windows."""
    return 0 if route.at_most_once else route.qos
