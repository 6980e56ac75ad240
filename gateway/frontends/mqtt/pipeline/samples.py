"""Path of a sensor's message: decode, then the windows (`windows`) or an inference of its own.

Each message ends in `delivery`, once.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import cast

from gateway.domain.errors import Fault, RequestError
from gateway.domain.infer import InferRequest, InferResponse
from gateway.domain.ports import InferenceEngine
from gateway.frontends.mqtt.inbound.decoder import MessageDecoding, RouteDecoder
from gateway.frontends.mqtt.inbound.limits import MessageLimits
from gateway.frontends.mqtt.inbound.reading import SensorSample
from gateway.frontends.mqtt.journal.journal import SampleJournal
from gateway.frontends.mqtt.messages import Message
from gateway.frontends.mqtt.outbound.dedup import SeenMessage, key_of
from gateway.frontends.mqtt.outbound.delivery import Debt, Delivery, Outlet
from gateway.frontends.mqtt.outbound.inputs import Ready, message_id, window_id
from gateway.frontends.mqtt.outbound.publish_topics import PublishTopics
from gateway.frontends.mqtt.outbound.results import RouteResults, Seen
from gateway.frontends.mqtt.outbound.runs import AWAY, InferenceJob, Runs, defect, expired, passed
from gateway.frontends.mqtt.pipeline.fast_path import FastPath, is_suited
from gateway.frontends.mqtt.pipeline.windows import WindowFlow, result_qos
from gateway.frontends.mqtt.pipeline.work import Later, MessageWork, begun
from gateway.frontends.mqtt.settings.broker import MqttSettings
from gateway.frontends.mqtt.settings.route import MqttRoute


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
        self._outlet, self._counters, self._journal = outlet, counters, journal
        self._held_before = [] if journal is None else list(journal.recovered.held.values())
        """Messages that waited for their model when an earlier process ended."""
        self._readied = asyncio.Event()
        """Set at the next change of readiness, and then replaced."""
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

    def recover(self) -> None:
        """Continue with the windows and held messages of the journal. Call it once, before messages come."""
        self.windows.recover()
        found, self._held_before = self._held_before, []
        for record in found:
            message, name = record.message(time.time_ns(), time.monotonic_ns()), record.route
            cast("SampleJournal", self._journal).claim(message, record)
            if (feed := self._feeds.get(name)) is None:
                self._delivery.finish(message, None)
                continue
            if not self._work.is_busy(name):
                self._follow(feed, asyncio.sleep(0))
            self._work.hold(name)
            self._work.wait(name, message)

    def readiness_changed(self) -> None:
        """Continue with the windows and messages of models that became available, or failed to load."""
        self.windows.readiness_changed()
        self._readied.set()
        self._readied = asyncio.Event()

    def receive(self, route: MqttRoute, message: Message) -> None:
        """Process one message of a route. With `at_most_once` it is acknowledged now, and counts as QoS 0.

        So does a message of a route at QoS 0 that comes at QoS 1 because of another route.
        """
        if message.qos and (route.at_most_once or not route.qos):
            self._outlet.acknowledge(message)
            message.qos = 0
        fast = self._fast.get(route.name)
        if fast is None or self._runs.queued or self._work.is_busy(route.name) or not fast.take(message):
            self._receive(self._feeds[route.name], message)

    def lose(self, route: MqttRoute, message: Message) -> None:
        """Note that a message of a route was refused before it came here."""
        self._feeds[route.name].lose(message)

    def close(self) -> None:
        """Publish no more messages of rules, and let no more samples expire."""
        self.windows.close()
        for results in self._results.values():
            results.close()

    # ---- decoding --------------------------------------------------------------------------------------------------
    def _receive(self, feed: RouteDecoder, message: Message) -> None:
        """Begin with a sample unless another one of its route is still being worked on: samples keep their order."""
        name = feed.route.name
        if self._work.is_held(name) and not self._keeps_behind(feed, message):
            return
        if not self._work.wait(name, message):
            self._follow(feed, self._begin(feed, message))

    def _follow(self, feed: RouteDecoder, later: Later | None) -> None:
        self._work.follow(later, feed.route.name, partial(self._begin, feed))

    def _take_again(self, feed: RouteDecoder, debt: Debt) -> None:
        """Process a message that the fast path gave back: before those that wait."""
        self._follow(feed, self._begin(feed, debt.message) if debt.seen is None else self._continue(feed, debt))

    def _wait_behind(self, feed: RouteDecoder, debt: Debt) -> None:
        """Process a message after those in the engine's batch. Later messages of the route wait behind it."""
        self._follow(feed, self._after_batch(feed, debt, self._fast[feed.route.name]))

    async def _after_batch(self, feed: RouteDecoder, debt: Debt, fast: FastPath) -> None:
        while fast.pending:  # noqa: ASYNC110  it takes a pass or two of the event loop
            await asyncio.sleep(0)
        if (later := self._continue(feed, debt)) is not None:
            await later

    def _begin(self, feed: RouteDecoder, message: Message) -> Later | None:
        """Begin with a message. Return the work that is left."""
        try:
            self._limits.check(message, None if feed.route.channel else feed.route.model)
        except RequestError as refused:
            self._refuse(feed, message, refused, None)
            return None
        seen = self._delivery.begin(key_of(message), message)
        return None if seen is None else self._continue(feed, Debt(message, message.qos, "", seen))

    def _continue(self, feed: RouteDecoder, debt: Debt) -> Later | None:
        """Decode a new message, and what follows. Return the work that is left."""
        try:
            return self._read(feed, debt)
        except RequestError as refused:
            self._refuse(feed, debt.message, refused, debt.seen)
        except Exception:  # noqa: BLE001  a message that causes a defect must not stop the others
            self._delivery.refuse(debt.message, defect(debt.message), debt.seen)
        return None

    def _read(self, feed: RouteDecoder, debt: Debt) -> Later | None:
        if self.windows.repeats(debt.message, debt.seen):
            return None
        try:
            reading = feed.begin(debt.message)
        except RequestError as refused:
            if self._holds(feed, debt.message, refused) and (debt.make_sure() or refused.is_loading):
                return self._hold(feed, debt)
            raise
        if (recovering := self.windows.recover_route(feed)) is not None:
            return self._after(recovering, feed, debt)
        end = partial(self._end, feed, debt, reading)
        steps = feed.steps(debt.message, reading)
        is_short = len(debt.message.payload) <= feed.inline_bytes(reading.content)
        if is_short and (decoded := begun(steps)) is not None:
            return end(decoded)
        return self._work.decode_apart(debt, f"mqtt:{feed.route.name}", steps, end)

    def _begin_recovery(self, feed: RouteDecoder) -> None:
        """Recover the windows of a route. Later messages wait; a message that is worked on recovers them first."""
        if not self._work.is_busy(feed.route.name):
            self._follow(feed, self.windows.recover_route(feed))

    async def _after(self, recovering: Later, feed: RouteDecoder, debt: Debt) -> None:
        await recovering
        if (later := self._continue(feed, debt)) is not None:
            await later

    # ---- messages that wait for their model ------------------------------------------------------------------------
    def _holds(self, feed: RouteDecoder, message: Message, refused: RequestError) -> bool:
        """Return True if a message waits for a model that is unavailable."""
        loads = refused.is_loading and not self._runs.is_held_long(message)
        return refused.fault in AWAY and (feed.holds or loads)

    async def _hold(self, feed: RouteDecoder, debt: Debt) -> None:
        """Wait until the model is available, or the time of the message is over. Later messages wait behind it.

        The journal keeps QoS 1 messages, which are acknowledged: a broker sends no more to any route while too many are
        not. Without a journal they stay unacknowledged.
        """
        name, message = feed.route.name, debt.message
        self._counters["held_model_away"] += 1
        for each in (message, *self._work.hold(name)):
            self._keep(name, each)
        while (away := feed.away) is not None and self._holds(feed, message, away):
            if passed(message.deadline_ns()):
                away = expired()
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.retry_max_s):
                    await self._readied.wait()
        if away is not None:
            self._refuse(feed, message, away, debt.seen)
        elif (later := self._continue(feed, debt)) is not None:
            await later

    def _keeps_behind(self, feed: RouteDecoder, message: Message) -> bool:
        """Keep a message that waits behind others for its model. Return False if it is a repetition or refused."""
        if self.windows.repeats(message):
            return False
        try:
            self._limits.check_held(message, self._work.held_bytes)
        except RequestError as refused:
            self._refuse(feed, message, refused, None)
            return False
        self._keep(feed.route.name, message)
        return True

    def _keep(self, route: str, message: Message) -> None:
        if self._journal is not None and message.qos and message.kept is None:
            self._journal.keep(route, message, partial(self._outlet.acknowledge, message))

    # ---- windows and inferences ------------------------------------------------------------------------------------
    def _end(
        self, feed: RouteDecoder, debt: Debt, reading: MessageDecoding, decoded: Callable[[], SensorSample]
    ) -> Later | None:
        try:
            sample = decoded()
            if not feed.fits(reading):
                return self._read(feed, debt)
            if sample.name and not self._is_first(debt, sample.name):
                return None
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
                feed.lose(debt.message)
                self._delivery.refuse_debt(debt, refused)
            else:
                self._refuse(feed, debt.message, refused, debt.seen)
        except Exception:  # noqa: BLE001  as above
            self._delivery.refuse(debt.message, defect(debt.message), debt.seen)
        return None

    def _is_first(self, debt: Debt, name: str) -> bool:
        """Return True unless the name that was decoded is that of an earlier message, whose repetition ends here."""
        debt.message.name = name
        self._delivery.forget(debt.seen)
        debt.seen = self._delivery.begin(key_of(debt.message), debt.message)
        return debt.seen is not None

    def _job(self, feed: RouteDecoder, message: Message, ready: Ready, seen: SeenMessage | None = None) -> InferenceJob:
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
        qos = result_qos(route) if feed.windowed else message.qos
        debt = Debt(message, qos, "", seen, identity=identity)
        self.windows.begin(route.name, ready, debt)
        return InferenceJob(request, partial(self._result, feed, debt, ready), debt, holds=feed.holds)

    def _identity(self, route: MqttRoute, message: Message, ready: Ready) -> str:
        """Return the id of the result of an input."""
        if ready.window is None:
            return message_id(message, self._delivery.session, timed=route.time.is_set)
        return window_id(route.name, ready, ready.window, timed=bool(route.time.path))

    def _result(self, feed: RouteDecoder, debt: Debt, ready: Ready, response: InferResponse) -> bytes | None:
        plan = feed.plan(ready, response.version)
        return self._results[feed.route.name].encode(debt, ready, plan, response)

    def _refuse(self, feed: RouteDecoder, message: Message, refused: RequestError, seen: SeenMessage | None) -> None:
        """Refuse a sample.

        If only the model of its window is unavailable, the error is published once per `error_repeat_s`.
        """
        feed.lose(message)
        if refused.fault not in AWAY or not feed.windowed:
            self._delivery.refuse(message, refused, seen)
            return
        self._counters["dropped_model_away"] += 1
        last_ns = self._complained_ns.get(feed.route.name)
        if last_ns is None or message.arrived_ns - last_ns >= self._settings.error_repeat_s * 1e9:
            self._complained_ns[feed.route.name] = message.arrived_ns
            self._delivery.complain(message, refused, message.user_property("id"), message.qos)
        self._delivery.finish(message, seen)
