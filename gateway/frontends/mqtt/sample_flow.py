"""Path of a sensor's message: decode, then the windows (`window_flow`) or an inference of its own.

Each message ends in `delivery`, once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial

from gateway.domain.errors import Fault, RequestError
from gateway.domain.infer import InferRequest, InferResponse
from gateway.domain.ports import InferenceEngine
from gateway.frontends.mqtt.delivery.dedup import SeenMessage, key_of
from gateway.frontends.mqtt.delivery.delivery import Debt, Delivery, Outlet
from gateway.frontends.mqtt.delivery.identity import message_id, window_id
from gateway.frontends.mqtt.delivery.jobs import InferenceJob, expired, passed
from gateway.frontends.mqtt.delivery.runs import AWAY, Runs, defect
from gateway.frontends.mqtt.fast_path import FastPath, is_suited
from gateway.frontends.mqtt.journal.journal import SampleJournal
from gateway.frontends.mqtt.message_work import Later, MessageWork
from gateway.frontends.mqtt.messages import Message
from gateway.frontends.mqtt.route_results import RouteResults, Seen
from gateway.frontends.mqtt.route_settings import MqttRoute
from gateway.frontends.mqtt.routes.feed import RouteDecoder
from gateway.frontends.mqtt.routes.inputs import MessageDecoding, Ready
from gateway.frontends.mqtt.routes.large_messages import begun
from gateway.frontends.mqtt.routes.limits import MessageLimits
from gateway.frontends.mqtt.routes.publish_topics import PublishTopics
from gateway.frontends.mqtt.routes.reading import SensorSample
from gateway.frontends.mqtt.settings import MqttSettings
from gateway.frontends.mqtt.window_flow import WindowFlow, result_qos


class SampleFlow:
    """Receiver of the messages of all routes."""

    def __init__(
        self,
        engine: InferenceEngine,
        settings: MqttSettings,
        gateway_id: str,
        *,
        limits: MessageLimits,
        delivery: Delivery,
        runs: Runs,
        work: MessageWork,
        outlet: Outlet,
        counters: Counter[str],
        journal: SampleJournal | None,
        seen: Seen | None,
        topics: PublishTopics,
    ) -> None:
        self._settings, self._limits, self._delivery, self._runs, self._work = settings, limits, delivery, runs, work
        self._outlet, self._counters = outlet, counters
        decoder = partial(RouteDecoder, journaled=journal is not None)
        self._feeds = {
            route.name: decoder(route, engine.describe, counters, outlet.publish) for route in settings.route
        }
        for feed in self._feeds.values():
            feed.prepare()
        limit_bytes = settings.max_result_bytes
        make = partial(
            RouteResults, outlet=outlet, counters=counters, limit_bytes=limit_bytes, seen=seen, topics=topics
        )
        self._results = {route.name: make(route, gateway_id) for route in settings.route}
        self.windows = WindowFlow(
            self._feeds,
            self._job,
            delivery=delivery,
            runs=runs,
            counters=counters,
            journal=journal,
            outlet=outlet,
            begin_recovery=self._begin_recovery,
        )
        path = partial(FastPath, engine, delivery=delivery, settings=settings)
        self._fast = {
            route.name: path(
                feed,
                self._results[route.name],
                again=partial(self._take_again, feed),
                behind=partial(self._wait_behind, feed),
            )
            for route in settings.route
            if is_suited(route) and not (feed := self._feeds[route.name]).windowed
        }
        self._complained_ns: dict[str, int] = {}

    @property
    def pending(self) -> int:
        """Return the number of messages in the engine's batches."""
        return sum([fast.pending for fast in self._fast.values()])

    @property
    def sensors(self) -> int:
        """Return the number of sensors with a window."""
        return sum(feed.sensors for feed in self._feeds.values())

    def receive(self, route: MqttRoute, message: Message) -> None:
        """Process one message of a route. With `at_most_once` it is acknowledged now, and counts as QoS 0."""
        if route.at_most_once and message.qos:
            self._outlet.acknowledge(message)
            message.qos = 0
        fast = self._fast.get(route.name)
        if fast is None or self._runs.queued or self._work.is_busy(route.name) or not fast.take(message):
            self._receive(self._feeds[route.name], message)

    def close(self) -> None:
        """Publish no more messages of rules, and let no more samples expire."""
        self.windows.close()
        for results in self._results.values():
            results.close()

    # ---- decoding --------------------------------------------------------------------------------------------------
    def _receive(self, feed: RouteDecoder, message: Message) -> None:
        """Begin with a sample unless another one of its route is still being worked on: samples keep their order."""
        if not self._work.wait(feed.route.name, message):
            self._begin(feed, message)

    def _take_again(self, feed: RouteDecoder, debt: Debt) -> None:
        """Process a message that the fast path gave back: before those that wait."""
        if debt.seen is None:
            self._begin(feed, debt.message)
        else:
            self._continue(feed, debt)

    def _wait_behind(self, feed: RouteDecoder, debt: Debt) -> None:
        """Process a message after those in the engine's batch. Later messages of the route wait behind it."""
        name = feed.route.name
        self._work.follow(self._follow(feed, debt, self._fast[name]), name, partial(self._receive, feed))

    async def _follow(self, feed: RouteDecoder, debt: Debt, fast: FastPath) -> None:
        while fast.pending:  # noqa: ASYNC110  it takes a pass or two of the event loop
            await asyncio.sleep(0)
        await self._resume(feed, debt)

    def _begin(self, feed: RouteDecoder, message: Message) -> None:
        try:
            self._limits.check(message, None if feed.route.channel else feed.route.model)
        except RequestError as refused:
            self._refuse(feed, message, refused, None)
            return
        seen = self._delivery.begin(key_of(message) if message.qos else None, message)
        if seen is not None:
            self._continue(feed, Debt(message, message.qos, "", seen))

    def _continue(self, feed: RouteDecoder, debt: Debt) -> None:
        """Decode a new message, and what follows."""
        try:
            self._work.follow(self._read(feed, debt), feed.route.name, partial(self._receive, feed))
        except RequestError as refused:
            self._refuse(feed, debt.message, refused, debt.seen)
        except Exception:  # noqa: BLE001  a message that causes a defect must not stop the others
            self._delivery.refuse(debt.message, defect(debt.message), debt.seen)

    def _read(self, feed: RouteDecoder, debt: Debt) -> Later | None:
        try:
            reading = feed.begin(debt.message)
        except RequestError as refused:
            if feed.holds and refused.fault in AWAY and debt.make_sure():
                return self._hold(feed, debt)
            raise
        if (recovering := self.windows.recover_route(feed)) is not None:
            return self._after(recovering, feed, debt)
        if self.windows.repeats(reading, debt):
            return None
        end = partial(self._end, feed, debt, reading)
        steps = feed.steps(debt.message, reading)
        is_short = len(debt.message.payload) <= feed.inline_bytes(reading.content)
        if is_short and (decoded := begun(steps)) is not None:
            return end(decoded)
        return self._work.decode_apart(debt, f"mqtt:{feed.route.name}", steps, end)

    def _begin_recovery(self, feed: RouteDecoder) -> None:
        """Recover the windows of a route. Later messages wait; a message that is worked on recovers them first."""
        name = feed.route.name
        if not self._work.is_busy(name):
            self._work.follow(self.windows.recover_route(feed), name, partial(self._receive, feed))

    async def _after(self, recovering: Later, feed: RouteDecoder, debt: Debt) -> None:
        await recovering
        await self._resume(feed, debt)

    async def _hold(self, feed: RouteDecoder, debt: Debt) -> None:
        """Wait until the model is available or the message expires. Later messages of the route wait behind it."""
        self._counters["held_model_away"] += 1
        while True:
            await asyncio.sleep(self._settings.retry_max_s)
            if passed(debt.message.deadline_ns()):
                self._refuse(feed, debt.message, expired(), debt.seen)
                return
            if not feed.is_away:
                break
        await self._resume(feed, debt)

    async def _resume(self, feed: RouteDecoder, debt: Debt) -> None:
        """Decode a message that has waited, and what follows."""
        try:
            later = self._read(feed, debt)
        except RequestError as refused:
            self._refuse(feed, debt.message, refused, debt.seen)
        except Exception:  # noqa: BLE001  as above
            self._delivery.refuse(debt.message, defect(debt.message), debt.seen)
        else:
            await (later or asyncio.sleep(0))

    def _end(
        self, feed: RouteDecoder, debt: Debt, reading: MessageDecoding, decoded: Callable[[], SensorSample]
    ) -> Later | None:
        try:
            sample = decoded()
            if not feed.fits(reading):
                return self._read(feed, debt)
            inputs = feed.complete(debt.message, reading, sample)
            if reading.windows is None and (single := next(inputs.ready, None)) is not None:
                job = self._job(feed, debt.message, single, debt.seen)
                self._runs.add(job)
                if (fast := self._fast.get(feed.route.name)) is not None:
                    fast.learn(job.request, single)
                return None
            return self.windows.add(feed, debt, inputs)
        except RequestError as refused:
            if refused.fault is Fault.OVERLOADED:
                self._delivery.refuse_debt(debt, refused)
            else:
                self._refuse(feed, debt.message, refused, debt.seen)
        except Exception:  # noqa: BLE001  as above
            self._delivery.refuse(debt.message, defect(debt.message), debt.seen)
        return None

    # ---- inferences ------------------------------------------------------------------------------------------------
    def _job(self, feed: RouteDecoder, message: Message, ready: Ready, seen: SeenMessage | None = None) -> InferenceJob:
        route, tensor = feed.route, ready.manifest.inputs[0].name
        identity = message.user_property("id") or _identity(route, message, ready)
        request = InferRequest(
            route.model,
            {tensor: ready.tensor},
            version=route.version,
            id=identity,
            outputs=feed.requested,
            deadline_ns=message.deadline_ns(),
            caller=f"mqtt:{route.name}",
        )
        qos = result_qos(route) if feed.windowed else message.qos
        debt = Debt(message, qos, "", seen, identity=identity)
        self.windows.begin(route.name, ready, debt)
        return InferenceJob(request, partial(self._result, feed, debt, ready), debt, holds=feed.holds)

    def _result(self, feed: RouteDecoder, debt: Debt, ready: Ready, response: InferResponse) -> bytes | None:
        plan = feed.plan(ready, response.version)
        return self._results[feed.route.name].encode(debt, ready, plan, response)

    def _refuse(self, feed: RouteDecoder, message: Message, refused: RequestError, seen: SeenMessage | None) -> None:
        """Refuse a sample.

        If only the model of its window is unavailable, the error is published once per `error_repeat_s`.
        """
        if refused.fault not in AWAY or not feed.windowed:
            self._delivery.refuse(message, refused, seen)
            return
        self._counters["dropped_model_away"] += 1
        last_ns = self._complained_ns.get(feed.route.name)
        if last_ns is None or message.arrived_ns - last_ns >= self._settings.error_repeat_s * 1e9:
            self._complained_ns[feed.route.name] = message.arrived_ns
            self._delivery.complain(message, refused, message.user_property("id"), message.qos)
        self._delivery.finish(message, seen)


def _identity(route: MqttRoute, message: Message, ready: Ready) -> str:
    """Return the id of the result of an input."""
    if ready.window is None:
        return message_id(message, timed=route.time.is_set)
    return window_id(route.name, ready, ready.window, timed=bool(route.time.path))
