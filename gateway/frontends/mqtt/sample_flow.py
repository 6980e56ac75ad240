"""Path of a sensor's message: decode, window, journal, submit. Each message ends in `delivery`, once.

A message of a window is acknowledged once its samples are in the journal; without a journal, once they are in the
window. Any other message is acknowledged by the delivery of its result.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import cast

from gateway.domain.errors import Fault, RequestError
from gateway.domain.ports import InferenceEngine
from gateway.frontends.mqtt.delivery.dedup import SeenMessage, key_of
from gateway.frontends.mqtt.delivery.delivery import Debt, Delivery, Outlet
from gateway.frontends.mqtt.delivery.jobs import RemainingWindows, expired, passed
from gateway.frontends.mqtt.delivery.runs import AWAY, Runs, defect
from gateway.frontends.mqtt.journal.journal import SampleJournal, message_key
from gateway.frontends.mqtt.message_work import Later, MessageWork
from gateway.frontends.mqtt.messages import Message
from gateway.frontends.mqtt.recovery import RouteRecovery, window_states
from gateway.frontends.mqtt.route_results import Seen
from gateway.frontends.mqtt.route_settings import MqttRoute
from gateway.frontends.mqtt.routes.feed import RouteDecoder
from gateway.frontends.mqtt.routes.inputs import MessageDecoding, ModelInputs, Ready
from gateway.frontends.mqtt.routes.large_messages import begun
from gateway.frontends.mqtt.routes.limits import MessageLimits
from gateway.frontends.mqtt.routes.reading import SensorSample
from gateway.frontends.mqtt.sample_jobs import SampleJobs
from gateway.frontends.mqtt.settings import MqttSettings

WINDOWS_LIMIT = 64
"""Windows that are submitted at once: about 0.5 ms."""


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
    ) -> None:
        self._settings, self._limits, self._delivery, self._runs, self._work = settings, limits, delivery, runs, work
        self._outlet, self._counters, self._journal = outlet, counters, journal
        decoder = partial(RouteDecoder, journaled=journal is not None)
        self._feeds = {
            route.name: decoder(route, engine.describe, counters, outlet.publish) for route in settings.route
        }
        for feed in self._feeds.values():
            feed.prepare()
        self._recoveries = {}
        if journal is not None:
            self._recoveries = {
                name: RouteRecovery(feed, journal.recovered, counters) for name, feed in self._feeds.items()
            }
        self._jobs = SampleJobs(settings, gateway_id, outlet=outlet, counters=counters, journal=journal, seen=seen)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """Timer of each route whose samples wait for earlier ones."""
        self._room = asyncio.Event()
        """Set while backlog and outbox have room."""
        self._complained_ns: dict[str, int] = {}

    @property
    def sensors(self) -> int:
        """Return the number of sensors with a window."""
        return sum(feed.sensors for feed in self._feeds.values())

    def has_room(self, *, yes: bool) -> None:
        """Note whether backlog and outbox have room."""
        self._room.set() if yes else self._room.clear()

    def recover(self) -> None:
        """Continue with the windows of the journal, and replace it by what is still needed."""
        if self._journal is not None:
            for feed in self._feeds.values():
                self._recover(feed)
                feed.renew(time.monotonic_ns())  # nothing could come while this process was not there
            self._journal.states = lambda: window_states(self._feeds.values(), self._recoveries.values())
            self._journal.compact()

    def receive(self, route: MqttRoute, message: Message) -> None:
        """Process one message of a route. With `at_most_once` it is acknowledged now, and counts as QoS 0."""
        if route.at_most_once and message.qos:
            self._outlet.acknowledge(message)
            message.qos = 0
        self._receive(self._feeds[route.name], message)

    def flush(self) -> None:
        """Submit the windows that are complete without samples that did not come, unless a journal keeps them."""
        for feed in self._feeds.values() if self._journal is None else ():
            self._expire(feed, None)

    def close(self) -> None:
        """Publish no more messages of rules, and expire no more windows."""
        self._jobs.close()
        for timer in self._timers.values():
            timer.cancel()

    # ---- decoding --------------------------------------------------------------------------------------------------
    def _receive(self, feed: RouteDecoder, message: Message) -> None:
        """Begin with a sample unless another one of its route is still being worked on: samples keep their order."""
        if not self._work.wait(feed.route.name, message):
            self._begin(feed, message)

    def _begin(self, feed: RouteDecoder, message: Message) -> None:
        seen = None
        try:
            self._limits.check(message, None if feed.route.channel else feed.route.model)
            seen = self._delivery.begin(key_of(message) if message.qos else None, message)
            if seen is not None:
                debt = Debt(message, message.qos, "", seen)
                self._work.follow(self._read(feed, debt), feed.route.name, partial(self._receive, feed))
        except RequestError as refused:
            self._refuse(feed, message, refused, seen)
        except Exception:  # noqa: BLE001  a message that causes a defect must not stop the others
            self._delivery.refuse(message, defect(message), seen)

    def _read(self, feed: RouteDecoder, debt: Debt) -> Later | None:
        try:
            reading = feed.begin(debt.message)
        except RequestError as refused:
            if feed.holds and refused.fault in AWAY and debt.make_sure():
                return self._hold(feed, debt)
            raise
        self._recover(feed)
        if self._is_repetition(reading, debt.message):
            self._counters["duplicates"] += 1
            self._delivery.finish(debt.message, debt.seen)
            return None
        end = partial(self._end, feed, debt, reading)
        steps = feed.steps(debt.message, reading)
        if len(debt.message.payload) <= feed.inline_bytes and (decoded := begun(steps)) is not None:
            return end(decoded)
        return self._work.decode_apart(debt, f"mqtt:{feed.route.name}", steps, end)

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
        try:
            later = self._read(feed, debt)
        except RequestError as refused:
            self._refuse(feed, debt.message, refused, debt.seen)
        except Exception:  # noqa: BLE001  as above
            self._delivery.refuse(debt.message, defect(debt.message), debt.seen)
        else:
            await (later or asyncio.sleep(0))

    def _is_repetition(self, reading: MessageDecoding, message: Message) -> bool:
        """Return True if the samples of a message are in the journal: a broker repeats what was not acknowledged."""
        if self._journal is None or reading.windows is None or not message.dup:
            return False
        return self._journal.repeats(message_key(message))

    def _end(
        self, feed: RouteDecoder, debt: Debt, reading: MessageDecoding, decoded: Callable[[], SensorSample]
    ) -> Later | None:
        try:
            sample = decoded()
            if not feed.fits(reading):
                return self._read(feed, debt)
            return self._complete(feed, debt, reading, feed.complete(debt.message, reading, sample))
        except RequestError as refused:
            if refused.fault is Fault.OVERLOADED:
                self._delivery.refuse_debt(debt, refused)
            else:
                self._refuse(feed, debt.message, refused, debt.seen)
        except Exception:  # noqa: BLE001  as above
            self._delivery.refuse(debt.message, defect(debt.message), debt.seen)
        return None

    # ---- windows ---------------------------------------------------------------------------------------------------
    def _complete(self, feed: RouteDecoder, debt: Debt, reading: MessageDecoding, inputs: ModelInputs) -> Later | None:
        left = RemainingWindows(inputs.ready, next(inputs.ready, None))
        if reading.windows is None and left.following is not None:
            self._runs.add(self._jobs.make(feed, debt.message, left.following, debt.seen))
        elif not self._submit_windows(feed, debt.message, left):
            return self._submit_rest(feed, debt, left, inputs)
        else:
            self._finish(feed, debt, inputs)
        return None

    def _submit_windows(self, feed: RouteDecoder, message: Message, left: RemainingWindows) -> bool:
        """Submit windows, but not more than the backlog has room for, or WINDOWS_LIMIT. Return True if none is left."""
        for count in range(WINDOWS_LIMIT):
            if left.following is None or (count and feed.route.qos and self._runs.full):
                break
            self._submit(feed, message, cast("Ready", left.take()))
        return left.following is None

    async def _submit_rest(self, feed: RouteDecoder, debt: Debt, left: RemainingWindows, inputs: ModelInputs) -> None:
        """Submit the other windows of a message as the backlog has room. At QoS 0 it drops the oldest instead."""
        try:
            while left.following is not None:
                await asyncio.sleep(0)
                if feed.route.qos:
                    await self._room.wait()
                self._submit_windows(feed, debt.message, left)
        except Exception:  # noqa: BLE001  as above
            self._delivery.refuse(debt.message, defect(debt.message), debt.seen)
        else:
            self._finish(feed, debt, inputs)

    def _finish(self, feed: RouteDecoder, debt: Debt, inputs: ModelInputs) -> None:
        """Acknowledge the message of samples, which are in their window, once they are in the journal."""
        finish = partial(self._delivery.finish, debt.message, debt.seen)
        if self._journal is not None and inputs.samples is not None and debt.message.qos:
            self._journal.add(inputs.samples, finish)
        else:
            finish()
        self._set_timer(feed)

    def _submit(self, feed: RouteDecoder, message: Message, ready: Ready) -> None:
        self._counters["windows"] += 1
        self._runs.add(self._jobs.make(feed, message, ready, None))

    def _set_timer(self, feed: RouteDecoder) -> None:
        """Set the timer of a route whose samples wait for earlier ones."""
        name = feed.route.name
        if name in self._timers or (due_ns := feed.due_ns()) is None:
            return
        wait_s = max(0.0, (due_ns - time.monotonic_ns()) / 1e9)
        self._timers[name] = asyncio.get_running_loop().call_later(wait_s, self._expire_due, feed)

    def _expire_due(self, feed: RouteDecoder) -> None:
        """Submit what waited long enough. Samples that cannot come, because the broker is away, are waited for."""
        del self._timers[feed.route.name]
        since_ns = self._outlet.receives_since_ns
        feed.renew(time.monotonic_ns() if since_ns is None else since_ns)
        self._expire(feed, time.monotonic_ns())
        self._set_timer(feed)

    def _expire(self, feed: RouteDecoder, now_ns: int | None) -> None:
        for ready in feed.expire(now_ns):
            self._submit(feed, Message("", b"", qos=feed.route.qos), ready)

    def _recover(self, feed: RouteDecoder) -> None:
        """Submit the windows of the journal that have no result, once the model of the route is known."""
        recovery = self._recoveries.get(feed.route.name)
        if recovery is not None and recovery.is_pending and feed.windows is not None:
            for ready in recovery.replay(feed.windows):
                self._submit(feed, Message("", b"", qos=feed.route.qos), ready)
            self._set_timer(feed)

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
