"""Path of samples through their windows: journal, window, inference; expiry, and recovery after a restart.

The samples of a message go into the journal before they go into their window, so that a snapshot holds them once. The
message is acknowledged once they are in the journal; without a journal, once they are in the window.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import cast

from gateway.frontends.mqtt.inbound.decoder import ModelInputs, RouteDecoder
from gateway.frontends.mqtt.journal.journal import Recovered, SampleJournal
from gateway.frontends.mqtt.messages import Message
from gateway.frontends.mqtt.outbound.dedup import SeenMessage
from gateway.frontends.mqtt.outbound.delivery import Debt, Delivery, Outlet
from gateway.frontends.mqtt.outbound.inputs import Ready
from gateway.frontends.mqtt.outbound.runs import InferenceJob, RemainingWindows, Runs, defect
from gateway.frontends.mqtt.pipeline.recovery import RouteRecovery, discard_others, window_states
from gateway.frontends.mqtt.pipeline.work import Later
from gateway.frontends.mqtt.settings.route import MqttRoute

LEAST_S = 0.01
"""Least time between two expiries of a route, so that those of many sensors are handled together."""


class ExpiryTimers:
    """One timer for each route. `expire` is called with the route and the monotonic time when samples are due.

    A route that is held has no timer: its windows are in use. `since` returns the monotonic time since which messages
    can come, None if they cannot: samples wait for others only while a connection could bring them.
    """

    def __init__(self, expire: Callable[[RouteDecoder, int], None], since: Callable[[], int | None]) -> None:
        self._expire, self._since = expire, since
        self._timers: dict[str, tuple[int, asyncio.TimerHandle]] = {}
        """Timer of each route, with the monotonic time at which its samples are due."""
        self._held: set[str] = set()
        self._closed = False

    def is_held(self, feed: RouteDecoder) -> bool:
        """Return True if the route is held."""
        return feed.route.name in self._held

    def hold(self, feed: RouteDecoder) -> None:
        """Let nothing expire until `release`."""
        self._held.add(feed.route.name)

    def release(self, feed: RouteDecoder) -> None:
        """Take back a `hold`."""
        self._held.discard(feed.route.name)
        self.set(feed)

    def set(self, feed: RouteDecoder) -> None:
        """Set the timer of a route if its samples wait, unless it has one that is as early."""
        name = feed.route.name
        if self._closed or name in self._held or (due_ns := self._due_ns(feed)) is None:
            return
        if name in self._timers:
            known_ns, timer = self._timers[name]
            if known_ns <= due_ns:
                return
            timer.cancel()
        wait_s = max(LEAST_S, (due_ns - time.monotonic_ns()) / 1e9)
        self._timers[name] = due_ns, asyncio.get_running_loop().call_later(wait_s, self._due, feed)

    def close(self) -> None:
        """Cancel all timers, and set none any more."""
        self._closed = True
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _due(self, feed: RouteDecoder) -> None:
        del self._timers[feed.route.name]
        now_ns, due_ns = time.monotonic_ns(), self._due_ns(feed)
        if not self.is_held(feed) and due_ns is not None and due_ns <= now_ns:
            self._expire(feed, now_ns)
        self.set(feed)

    def _due_ns(self, feed: RouteDecoder) -> int | None:
        """Return when samples are due; without a connection as late as if one began now."""
        due_ns, since_ns = feed.due_ns(), self._since()
        if due_ns is None:
            return None
        began_ns = time.monotonic_ns() if since_ns is None else since_ns
        return max(due_ns, began_ns + feed.waiting_ns)


WINDOWS_LIMIT = 64
"""Windows that are submitted at once: about 0.5 ms."""
NewJob = Callable[[RouteDecoder, Message, Ready], InferenceJob]


class WindowFlow:
    """Windows of all routes. `new_job` makes the inference of a window.

    `begin_recovery` calls `recover_route`, and lets later messages of the route wait for the work that is left.
    """

    def __init__(
        self,
        feeds: Mapping[str, RouteDecoder],
        new_job: NewJob,
        *,
        delivery: Delivery,
        runs: Runs,
        counters: Counter[str],
        journal: SampleJournal | None,
        outlet: Outlet,
        begin_recovery: Callable[[RouteDecoder], None],
    ) -> None:
        self._feeds, self._new_job, self._begin_recovery = feeds, new_job, begin_recovery
        self._delivery, self._runs, self._counters, self._journal = delivery, runs, counters, journal
        found = Recovered() if journal is None else journal.take_recovered()
        discard_others(found, feeds, counters)
        self._recoveries = {name: RouteRecovery(feed, found, counters) for name, feed in feeds.items()}
        self._timers = ExpiryTimers(self._expire, lambda: outlet.receives_since_ns)
        self._room = asyncio.Event()
        """Set while backlog and outbox have room."""

    @property
    def full(self) -> bool:
        """Return True if no more samples should be read: too many wait for the disk."""
        return self._journal is not None and self._journal.full

    def has_room(self, *, yes: bool) -> None:
        """Note whether backlog and outbox have room."""
        self._room.set() if yes else self._room.clear()

    def recover(self) -> None:
        """Continue with the windows of the journal, and replace it by what is still needed."""
        if self._journal is not None:
            self._journal.states = lambda: window_states(self._feeds.values(), self._recoveries.values())
            for feed in self._feeds.values():
                self._begin_recovery(feed)
            self._journal.renew()
            self._journal.compact_if_due()

    def recover_route(self, feed: RouteDecoder) -> Later | None:
        """Submit the windows of the journal that have no result, once the model of the route is known.

        Return the work that is left if there are more windows than have room.
        """
        recovery = self._recoveries[feed.route.name]
        if self._journal is None or not recovery.is_pending or feed.windows is None:
            return None
        message = Message("", b"", qos=feed.route.qos, arrived_ns=time.monotonic_ns())
        debt = Debt(message, feed.route.qos, "")
        later = self._submit_ready(feed, debt, recovery.replay(feed.windows), is_kept=True)
        self._journal.renew()
        return later

    def readiness_changed(self) -> None:
        """Continue with the windows of routes whose model was not known at the start."""
        for name, recovery in self._recoveries.items():
            if recovery.is_pending and self._feeds[name].away is None:
                self._begin_recovery(self._feeds[name])

    def flush(self) -> None:
        """Submit the windows that are complete without samples that did not come, unless the journal keeps them."""
        for feed in self._feeds.values():
            kept = self._journal is not None and result_qos(feed.route)
            if not kept and not self._timers.is_held(feed):
                self._submit_all(feed, feed.expire(None))

    def close(self) -> None:
        """Let no more samples expire."""
        self._timers.close()

    def begin(self, route: str, window: Ready, debt: Debt) -> None:
        """Note in the journal that the result of a window follows."""
        if self._journal is not None and window.window is not None and debt.qos and debt.message.qos:
            name = self._journal.begin(route, window.sensor, window.window)
            debt.settled = partial(self._journal.done, name)

    def repeats(self, message: Message, seen: SeenMessage | None = None) -> bool:
        """Return True if a broker repeats a message that was in the journal; it is then acknowledged."""
        if self._journal is None or not self._journal.repeats(message):
            return False
        self._counters["duplicates"] += 1
        self._journal.after(partial(self._delivery.finish, message, seen))
        return True

    def add(self, feed: RouteDecoder, debt: Debt, inputs: ModelInputs) -> Later | None:
        """Add the samples of a message. Return the work that is left if it completes more windows than have room."""
        return self._submit_ready(feed, debt, inputs.ready, is_kept=self._keep(debt, inputs))

    # ---- one message -----------------------------------------------------------------------------------------------
    def _submit_ready(self, feed: RouteDecoder, debt: Debt, ready: Iterator[Ready], *, is_kept: bool) -> Later | None:
        """Submit the windows of a message, or of the journal. Return the work that is left."""
        try:
            left = RemainingWindows(ready, next(ready, None))
            if not self._submit_windows(feed, debt.message, left):
                self._hold(feed)
                return self._submit_rest(feed, debt, left, is_kept=is_kept)
        except Exception:  # noqa: BLE001  a message that causes a defect must not stop the others
            self._fail(debt, is_kept=is_kept)
        else:
            self._finish(feed, debt, is_kept=is_kept)
        return None

    def _keep(self, debt: Debt, inputs: ModelInputs) -> bool:
        """Add the samples of a message to the journal. Return True if that acknowledges the message."""
        if self._journal is None or inputs.samples is None:
            return False
        finish = partial(self._delivery.finish, debt.message, debt.seen)
        self._journal.add(inputs.samples, debt.message.epoch, finish)
        debt.message.payload = b""
        return True

    def _submit_windows(self, feed: RouteDecoder, message: Message, left: RemainingWindows) -> bool:
        """Submit windows, but not more than the backlog has room for, or WINDOWS_LIMIT. Return True if none is left."""
        for count in range(WINDOWS_LIMIT):
            if left.following is None or (count and feed.route.qos and self._runs.full):
                break
            self._submit(feed, message, cast("Ready", left.take()))
        return left.following is None

    async def _submit_rest(self, feed: RouteDecoder, debt: Debt, left: RemainingWindows, *, is_kept: bool) -> None:
        """Submit the other windows of a message as the backlog has room. At QoS 0 it drops the oldest instead."""
        try:
            while left.following is not None:
                await asyncio.sleep(0)
                if feed.route.qos:
                    await self._room.wait()
                self._submit_windows(feed, debt.message, left)
        except Exception:  # noqa: BLE001  as above
            self._fail(debt, is_kept=is_kept)
        else:
            self._finish(feed, debt, is_kept=is_kept)
        self._release(feed)

    def _finish(self, feed: RouteDecoder, debt: Debt, *, is_kept: bool) -> None:
        """Acknowledge the message of samples, which are in their window, unless the journal does."""
        if not is_kept:
            self._delivery.finish(debt.message, debt.seen)
        self._timers.set(feed)

    def _fail(self, debt: Debt, *, is_kept: bool) -> None:
        """Report a defect. If the journal keeps the samples, it acknowledges the message."""
        refused = defect(debt.message)
        if is_kept:
            self._delivery.complain(debt.message, refused, debt.message.user_property("id"), debt.qos)
        else:
            self._delivery.refuse(debt.message, refused, debt.seen)

    def _hold(self, feed: RouteDecoder) -> None:
        """Take no snapshot and let nothing expire while only some samples of a message are in their window."""
        self._timers.hold(feed)
        if self._journal is not None:
            self._journal.hold()

    def _release(self, feed: RouteDecoder) -> None:
        self._timers.release(feed)
        if self._journal is not None:
            self._journal.release()

    # ---- windows ---------------------------------------------------------------------------------------------------
    def _submit(self, feed: RouteDecoder, message: Message, ready: Ready) -> None:
        self._counters["windows"] += 1
        self._runs.add(self._new_job(feed, message, ready))

    def _submit_all(self, feed: RouteDecoder, found: Iterator[Ready]) -> None:
        """Submit windows that no message completed."""
        for ready in found:
            message = Message("", b"", qos=feed.route.qos, arrived_ns=time.monotonic_ns())
            self._submit(feed, message, ready)

    def _expire(self, feed: RouteDecoder, now_ns: int) -> None:
        """Submit the windows that are complete without samples that did not come in time."""
        if self._journal is not None and result_qos(feed.route):
            self._journal.expired(feed.route.name, now_ns)
        self._submit_all(feed, feed.expire(now_ns))


def result_qos(route: MqttRoute) -> int:
    """Return the quality of service of the results of windows."""
    return 0 if route.at_most_once else route.qos
