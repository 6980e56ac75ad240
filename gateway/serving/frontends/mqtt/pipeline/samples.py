"""Path of a sensor's message: decode, then the windows (`windows`) or an inference of its own.

Each message ends in `delivery`, once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import cast

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.timeouts import timeout
from gateway.serving.domain.infer import OPENS, InferRequest
from gateway.serving.frontends.mqtt.inbound.decoder import MessageDecoding, RouteDecoder
from gateway.serving.frontends.mqtt.inbound.limits import MessageLimits
from gateway.serving.frontends.mqtt.inbound.reading import SensorSample
from gateway.serving.frontends.mqtt.journal.journal import SampleJournal
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.outbound.context import RouteContext
from gateway.serving.frontends.mqtt.outbound.dedup import SeenMessage, key_of
from gateway.serving.frontends.mqtt.outbound.delivery import Debt, Delivery
from gateway.serving.frontends.mqtt.outbound.inputs import Ready, message_id, window_id
from gateway.serving.frontends.mqtt.outbound.results import RouteResults
from gateway.serving.frontends.mqtt.outbound.runs import AWAY, InferenceJob, Runs, defect, expired, passed
from gateway.serving.frontends.mqtt.pipeline.fast_path import FastPath, is_suited
from gateway.serving.frontends.mqtt.pipeline.windows import WindowFlow
from gateway.serving.frontends.mqtt.pipeline.work import Later, MessageWork, begun
from gateway.serving.frontends.mqtt.settings.route import MqttRoute


class SampleFlow:
    """Receiver of the messages of all routes."""

    def __init__(
        self, context: RouteContext, limits: MessageLimits, delivery: Delivery, runs: Runs, work: MessageWork
    ) -> None:
        self._settings, self._limits, self._delivery = context.settings, limits, delivery
        self._runs, self._work = runs, work
        self._outlet, self._counters, self._journal = context.outlet, context.counters, context.journal
        journal, engine, routes = context.journal, context.engine, context.settings.route
        self._held_before = [] if journal is None else list(journal.recovered.held.values())
        """Messages that waited for their model when an earlier process ended."""
        self._readied = asyncio.Event()
        """Set at the next change of readiness, and then replaced."""
        make = partial(RouteDecoder, journaled=journal is not None)
        self._decoders = {
            route.name: make(route, engine.describe, context.counters, context.outlet.publish) for route in routes
        }
        for decoder in self._decoders.values():
            decoder.prepare()
        self._results = {route.name: RouteResults(route, context) for route in routes}
        self.windows = WindowFlow(
            context, delivery, runs, self._decoders, new_job=self._job, begin_recovery=self._begin_recovery
        )
        self._fast = {
            route.name: FastPath(
                context,
                delivery,
                decoder,
                self._results[route.name],
                again=partial(self._take_again, decoder),
                behind=partial(self._wait_behind, decoder),
            )
            for route in routes
            if is_suited(route) and not (decoder := self._decoders[route.name]).windowed
        }
        self._complained_ns: dict[str, int] = {}

    @property
    def pending(self) -> int:
        """Return the number of messages in the engine's batches."""
        return sum([fast.pending for fast in self._fast.values()])

    @property
    def sensors(self) -> int:
        """Return the number of sensors with a window."""
        return sum(decoder.sensors for decoder in self._decoders.values())

    def recover(self) -> None:
        """Continue with the windows and held messages of the journal. Call it once, before messages come."""
        self.windows.recover()
        found, self._held_before = self._held_before, []
        for record in found:
            message, name = record.message(time.time_ns(), time.monotonic_ns()), record.route
            cast("SampleJournal", self._journal).claim(message, record)
            if (decoder := self._decoders.get(name)) is None:
                self._delivery.finish(message, None)
                continue
            if not self._work.queues.is_busy(name):
                self._follow(decoder, asyncio.sleep(0))
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
        name, decoder = route.name, self._decoders[route.name]
        if self._work.queues.is_busy(name):  # samples of a route keep their order
            if not self._work.queues.is_held(name) or self._keeps_behind(decoder, message):
                self._work.wait(name, message)
            return
        fast = self._fast.get(name)
        if fast is not None and not len(self._runs.backlog) and fast.take(message):
            return
        if (later := self._begin(decoder, message)) is not None:
            self._follow(decoder, later)

    def lose(self, route: MqttRoute, message: Message) -> None:
        """Note that a message of a route was refused before it came here."""
        self._decoders[route.name].lose(message)

    def close(self) -> None:
        """Publish no more messages of rules, and let no more samples expire."""
        self.windows.close()
        for results in self._results.values():
            results.close()

    # ---- decoding --------------------------------------------------------------------------------------------------
    def _follow(self, decoder: RouteDecoder, later: Later | None) -> None:
        self._work.follow(later, decoder.route.name, partial(self._begin, decoder))

    def _take_again(self, decoder: RouteDecoder, debt: Debt) -> None:
        """Process a message that the fast path gave back: before those that wait."""
        is_new = debt.seen is None
        self._follow(decoder, self._begin(decoder, debt.message) if is_new else self._continue(decoder, debt))

    def _wait_behind(self, decoder: RouteDecoder, debt: Debt) -> None:
        """Process a message after those in the engine's batch. Later messages of the route wait behind it."""
        self._follow(decoder, self._after_batch(decoder, debt, self._fast[decoder.route.name]))

    async def _after_batch(self, decoder: RouteDecoder, debt: Debt, fast: FastPath) -> None:
        while fast.pending:  # noqa: ASYNC110  it takes a pass or two of the event loop
            await asyncio.sleep(0)
        if (later := self._continue(decoder, debt)) is not None:
            await later

    def _begin(self, decoder: RouteDecoder, message: Message) -> Later | None:
        """Begin with a message. Return the work that is left."""
        try:
            self._limits.check(message, None if decoder.route.channel else decoder.route.model)
        except RequestError as refused:
            self._refuse(decoder, message, refused, None)
            return None
        seen = self._delivery.begin(key_of(message), message)
        return None if seen is None else self._continue(decoder, Debt(message, message.qos, "", seen))

    def _continue(self, decoder: RouteDecoder, debt: Debt) -> Later | None:
        """Decode a new message, and what follows. Return the work that is left."""
        message, name = debt.message, decoder.route.name
        try:
            if message.dup and self.windows.repeats(message, debt.seen):
                return None
            try:
                reading = decoder.begin(message)
            except RequestError as refused:
                if self._holds(decoder, message, refused) and (debt.make_sure() or refused.is_loading):
                    return self._hold(decoder, debt)
                raise
            if name in self.windows.recoveries and (recovering := self.windows.recover_route(decoder)) is not None:
                return self._after(recovering, decoder, debt)
            steps = decoder.steps(message, reading)
            is_short = len(message.payload) <= decoder.inline_bytes(reading.content)
            if is_short and (sample := begun(steps)) is not None:
                return self._complete(decoder, debt, reading, sample)
            return self._work.decode_apart(debt, f"mqtt:{name}", steps, partial(self._end, decoder, debt, reading))
        except RequestError as refused:
            self._refuse(decoder, message, refused, debt.seen)
        except Exception:  # noqa: BLE001  a message that causes a defect must not stop the others
            self._delivery.refuse(message, defect(message), debt.seen)
        return None

    def _begin_recovery(self, decoder: RouteDecoder) -> None:
        """Recover the windows of a route. Later messages wait; a message that is worked on recovers them first."""
        if not self._work.queues.is_busy(decoder.route.name):
            self._follow(decoder, self.windows.recover_route(decoder))

    async def _after(self, recovering: Later, decoder: RouteDecoder, debt: Debt) -> None:
        await recovering
        if (later := self._continue(decoder, debt)) is not None:
            await later

    # ---- messages that wait for their model ------------------------------------------------------------------------
    def _holds(self, decoder: RouteDecoder, message: Message, refused: RequestError) -> bool:
        """Return True if a message waits for a model that is unavailable."""
        loads = refused.is_loading and not self._runs.is_held_long(message)
        return refused.fault in AWAY and (decoder.holds or loads)

    async def _hold(self, decoder: RouteDecoder, debt: Debt) -> None:
        """Wait until the model is available, or the time of the message is over. Later messages wait behind it.

        The journal keeps QoS 1 messages, which are acknowledged: a broker sends no more to any route while too many are
        not. Without a journal they stay unacknowledged.
        """
        name, message = decoder.route.name, debt.message
        self._counters["held_model_away"] += 1
        for each in (message, *self._work.hold(name)):
            self._keep(name, each)
        while (away := decoder.away) is not None and self._holds(decoder, message, away):
            if passed(message.deadline_ns()):
                away = expired()
                break
            with suppress(TimeoutError):
                async with timeout(self._settings.retry_max_s):
                    await self._readied.wait()
        if away is not None:
            self._refuse(decoder, message, away, debt.seen)
        elif (later := self._continue(decoder, debt)) is not None:
            await later

    def _keeps_behind(self, decoder: RouteDecoder, message: Message) -> bool:
        """Keep a message that waits behind others for its model. Return False if it is a repetition or refused."""
        if self.windows.repeats(message):
            return False
        try:
            self._limits.check_held(message, self._work.queues.held_bytes)
        except RequestError as refused:
            self._refuse(decoder, message, refused, None)
            return False
        self._keep(decoder.route.name, message)
        return True

    def _keep(self, route: str, message: Message) -> None:
        if self._journal is not None and message.qos and message.kept is None:
            self._journal.keep(route, message, partial(self._outlet.acknowledge, message))

    # ---- windows and inferences ------------------------------------------------------------------------------------
    def _end(
        self, decoder: RouteDecoder, debt: Debt, reading: MessageDecoding, decoded: Callable[[], SensorSample]
    ) -> Later | None:
        """Continue with a message that a thread decoded."""
        try:
            sample = decoded()
            if decoder.fits(reading):
                return self._complete(decoder, debt, reading, sample)
            return self._continue(decoder, debt)
        except RequestError as refused:
            if refused.fault is Fault.OVERLOADED:
                decoder.lose(debt.message)
                self._delivery.refuse_debt(debt, refused)
            else:
                self._refuse(decoder, debt.message, refused, debt.seen)
        except Exception:  # noqa: BLE001  as above
            self._delivery.refuse(debt.message, defect(debt.message), debt.seen)
        return None

    def _complete(
        self, decoder: RouteDecoder, debt: Debt, reading: MessageDecoding, sample: SensorSample
    ) -> Later | None:
        """Submit the inference that a message completes, or add its samples to their window."""
        if sample.name:  # a repetition of an earlier message of this name ends here
            debt.message.name = sample.name
            self._delivery.forget(debt.seen)
            debt.seen = self._delivery.begin(key_of(debt.message), debt.message)
            if debt.seen is None:
                return None
        inputs = decoder.complete(debt.message, reading, sample)
        if reading.windows is not None or (single := next(inputs.ready, None)) is None:
            return self.windows.add(decoder, debt, inputs)
        job = self._job(decoder, debt.message, single, debt.seen)
        self._runs.add(job)
        if (fast := self._fast.get(decoder.route.name)) is not None:
            fast.learn(job.request, single)
        return None

    def _job(
        self, decoder: RouteDecoder, message: Message, ready: Ready, seen: SeenMessage | None = None
    ) -> InferenceJob:
        route, identity = decoder.route, message.user_property("id")
        if not identity and ready.window is None:
            identity = message_id(message, self._delivery.session, timed=route.time.is_set)
        elif not identity and ready.window is not None:
            identity = window_id(route.name, ready, ready.window, timed=bool(route.time.path))
        request = InferRequest(
            route.model,
            {ready.manifest.inputs[0].name: ready.tensor},
            version=route.version,
            id=identity,
            outputs=decoder.requested,
            deadline_ns=message.deadline_ns(),
            caller=f"mqtt:{route.name}",
            stream=ready.sensor,
            arrived_ns=message.arrived_ns,
            place=OPENS,
        )
        debt = Debt(message, route.result_qos if decoder.windowed else message.qos, "", seen, identity=identity)
        if ready.window is not None:
            self.windows.begin(route.name, ready.sensor, ready.window, debt)
        encode = partial(self._results[route.name].encode, debt, ready, decoder.plan)
        return InferenceJob(request, encode, debt, holds=decoder.holds)

    def _refuse(self, decoder: RouteDecoder, message: Message, refused: RequestError, seen: SeenMessage | None) -> None:
        """Refuse a sample.

        If only the model of its window is unavailable, the error is published once per `error_repeat_s`.
        """
        decoder.lose(message)
        if refused.fault not in AWAY or not decoder.windowed:
            self._delivery.refuse(message, refused, seen)
            return
        self._counters["dropped_model_away"] += 1
        last_ns = self._complained_ns.get(decoder.route.name)
        if last_ns is None or message.arrived_ns - last_ns >= self._settings.error_repeat_s * 1e9:
            self._complained_ns[decoder.route.name] = message.arrived_ns
            self._delivery.complain(message, refused, message.user_property("id"), message.qos)
        self._delivery.finish(message, seen)
