"""Path of samples through their windows: journal, window, inference; expiry, and recovery after a restart.

The samples of a message go into the journal before they go into their window, so that a snapshot holds them once. The
message is acknowledged once they are in the journal; without a journal, once they are in the window.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from gateway.serving.frontends.mqtt.inbound.decoder import ModelInputs, RouteDecoder
from gateway.serving.frontends.mqtt.journal.journal import Recovered
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.outbound.context import RouteContext
from gateway.serving.frontends.mqtt.outbound.dedup import SeenMessage
from gateway.serving.frontends.mqtt.outbound.delivery import Debt, Delivery
from gateway.serving.frontends.mqtt.outbound.inputs import Ready
from gateway.serving.frontends.mqtt.outbound.runs import InferenceJob, Runs, defect
from gateway.serving.frontends.mqtt.pipeline.recovery import RouteRecovery, discard_others, window_states
from gateway.serving.frontends.mqtt.pipeline.work import Later
from gateway.serving.frontends.mqtt.windows.rings import Complete, Ring

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
        self.closed = False

    def is_held(self, decoder: RouteDecoder) -> bool:
        """Return True if the route is held."""
        return decoder.route.name in self._held

    def hold(self, decoder: RouteDecoder) -> None:
        """Let nothing expire until `release`."""
        self._held.add(decoder.route.name)

    def release(self, decoder: RouteDecoder) -> None:
        """Take back a `hold`."""
        self._held.discard(decoder.route.name)
        self.set(decoder)

    def set(self, decoder: RouteDecoder) -> None:
        """Set the timer of a route if its samples wait, unless it has one that is as early."""
        name = decoder.route.name
        if self.closed or name in self._held or (due_ns := self._due_ns(decoder)) is None:
            return
        if name in self._timers:
            known_ns, timer = self._timers[name]
            if known_ns <= due_ns:
                return
            timer.cancel()
        wait_s = max(LEAST_S, (due_ns - time.monotonic_ns()) / 1e9)
        self._timers[name] = due_ns, asyncio.get_running_loop().call_later(wait_s, self._due, decoder)

    def close(self) -> None:
        """Cancel all timers, and set none any more."""
        self.closed = True
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _due(self, decoder: RouteDecoder) -> None:
        del self._timers[decoder.route.name]
        now_ns, due_ns = time.monotonic_ns(), self._due_ns(decoder)
        if not self.is_held(decoder) and due_ns is not None and due_ns <= now_ns:
            self._expire(decoder, now_ns)
        self.set(decoder)

    def _due_ns(self, decoder: RouteDecoder) -> int | None:
        """Return when samples are due; without a connection as late as if one began now."""
        due_ns = decoder.due_ns()
        if due_ns is None:
            return None
        since_ns = self._since()
        began_ns = time.monotonic_ns() if since_ns is None else since_ns
        return max(due_ns, began_ns + decoder.waiting_ns)


WINDOWS_LIMIT = 64
"""Windows that are submitted at once: about 0.5 ms."""
NewJob = Callable[[RouteDecoder, Message, Ready], InferenceJob]


class WindowFlow:
    """Windows of all routes. `new_job` makes the inference of a window.

    `begin_recovery` calls `recover_route`, and lets later messages of the route wait for the work that is left.
    """

    def __init__(
        self,
        context: RouteContext,
        delivery: Delivery,
        runs: Runs,
        decoders: Mapping[str, RouteDecoder],
        *,
        new_job: NewJob,
        begin_recovery: Callable[[RouteDecoder], None],
    ) -> None:
        self._decoders, self._new_job, self._begin_recovery = decoders, new_job, begin_recovery
        self._delivery, self._runs, self._counters, self._journal = delivery, runs, context.counters, context.journal
        found = Recovered() if self._journal is None else self._journal.take_recovered()
        discard_others(found, decoders, self._counters)
        pending = ((name, RouteRecovery(each, found, self._counters)) for name, each in decoders.items())
        self.recoveries = {name: recovery for name, recovery in pending if recovery.is_pending}
        """Records of the routes whose model is not known yet."""
        self._timers = ExpiryTimers(self._expire, lambda: context.outlet.receives_since_ns)
        self.room = asyncio.Event()
        """Set while backlog and outbox have room."""
        self._unkept = 0
        self.kept = asyncio.Event()
        """Set while no window waits until the journal has the number of its ring on the disk."""
        self.kept.set()

    def recover(self) -> None:
        """Continue with the windows of the journal, and replace it by what is still needed."""
        if self._journal is not None:
            self._journal.states = lambda: window_states(self._decoders.values(), self.recoveries.values())
            for decoder in self._decoders.values():
                self._begin_recovery(decoder)
            self._journal.renew()
            self._journal.compact_if_due()

    def recover_route(self, decoder: RouteDecoder) -> Later | None:
        """Submit the windows of the journal that have no result, once the model of the route is known.

        Return the work that is left if there are more windows than have room.
        """
        if self._journal is None or decoder.windows is None or decoder.route.name not in self.recoveries:
            return None
        recovery = self.recoveries.pop(decoder.route.name)
        message = Message("", b"", qos=decoder.route.qos, arrived_ns=time.monotonic_ns())
        debt = Debt(message, decoder.route.qos, "")
        later = self._submit_ready(decoder, debt, recovery.replay(decoder.windows), is_kept=True)
        self._journal.renew()
        return later

    def readiness_changed(self) -> None:
        """Continue with the windows of routes whose model was not known at the start."""
        for name in tuple(self.recoveries):
            if self._decoders[name].away is None:
                self._begin_recovery(self._decoders[name])

    def flush(self) -> None:
        """Submit the windows that are complete without samples that did not come, unless the journal keeps them."""
        for decoder in self._decoders.values():
            kept = self._journal is not None and decoder.route.result_qos
            if not kept and not self._timers.is_held(decoder):
                self._submit_all(decoder, decoder.expire(None))

    def close(self) -> None:
        """Let no more samples expire."""
        self._timers.close()

    def begin(self, route: str, sensor: str, window: Complete, debt: Debt) -> None:
        """Note in the journal that the result of a window follows."""
        if self._journal is not None and debt.qos and debt.message.qos:
            debt.settled = partial(self._journal.done, self._journal.begin(route, sensor, window))

    def repeats(self, message: Message, seen: SeenMessage | None = None) -> bool:
        """Return True if a broker repeats a message that was in the journal; it is then acknowledged."""
        if self._journal is None or not self._journal.repeats(message):
            return False
        self._counters["duplicates"] += 1
        self._journal.after(partial(self._delivery.finish, message, seen))
        return True

    def add(self, decoder: RouteDecoder, debt: Debt, inputs: ModelInputs) -> Later | None:
        """Add the samples of a message. Return the work that is left if it completes more windows than have room."""
        is_kept = False
        if self._journal is not None and inputs.samples is not None:  # it acknowledges the message
            is_kept, finish = True, partial(self._delivery.finish, debt.message, debt.seen)
            self._journal.add(inputs.samples, debt.message.epoch, finish)
            debt.message.payload = b""
        return self._submit_ready(decoder, debt, inputs.ready, is_kept=is_kept)

    # ---- one message -----------------------------------------------------------------------------------------------
    def _submit_ready(
        self, decoder: RouteDecoder, debt: Debt, ready: Iterator[Ready], *, is_kept: bool
    ) -> Later | None:
        """Submit the windows of a message, or of the journal. Return the work that is left."""
        try:
            left = next(ready, None)
            if left is not None:
                left = self._submit_windows(decoder, debt.message, left, ready)
            if left is not None:
                # no snapshot is taken and nothing expires while only some samples of a message are in their window
                self._timers.hold(decoder)
                if self._journal is not None:
                    self._journal.hold()
                return self._submit_rest(decoder, debt, left, ready, is_kept=is_kept)
        except Exception:  # noqa: BLE001  a message that causes a defect must not stop the others
            self._fail(debt, is_kept=is_kept)
        else:
            self._finish(decoder, debt, is_kept=is_kept)
        return None

    def _submit_windows(
        self, decoder: RouteDecoder, message: Message, left: Ready | None, ready: Iterator[Ready]
    ) -> Ready | None:
        """Submit `left` and those after it, but not more than the backlog has room for, or WINDOWS_LIMIT.

        Return the next one; None if none is left.
        """
        for count in range(WINDOWS_LIMIT):
            if left is None or (count and decoder.route.qos and self._runs.backlog.full):
                break
            window, left = left, next(ready, None)
            self._submit(decoder, message, window)
        return left

    async def _submit_rest(
        self, decoder: RouteDecoder, debt: Debt, left: Ready | None, ready: Iterator[Ready], *, is_kept: bool
    ) -> None:
        """Submit the other windows of a message as the backlog has room. At QoS 0 it drops the oldest instead."""
        try:
            while left is not None:
                await asyncio.sleep(0)
                await self.kept.wait()  # a full disk holds WINDOWS_LIMIT windows of a message, not all
                if decoder.route.qos:
                    await self.room.wait()
                left = self._submit_windows(decoder, debt.message, left, ready)
        except Exception:  # noqa: BLE001  as above
            self._fail(debt, is_kept=is_kept)
        else:
            self._finish(decoder, debt, is_kept=is_kept)
        self._timers.release(decoder)
        if self._journal is not None:
            self._journal.release()

    def _finish(self, decoder: RouteDecoder, debt: Debt, *, is_kept: bool) -> None:
        """Acknowledge the message of samples, which are in their window, unless the journal does."""
        if not is_kept:
            self._delivery.finish(debt.message, debt.seen)
        if decoder.windows is not None and decoder.windows.is_timed:
            self._timers.set(decoder)

    def _fail(self, debt: Debt, *, is_kept: bool) -> None:
        """Report a defect. If the journal keeps the samples, it acknowledges the message."""
        refused = defect(debt.message)
        if is_kept:
            self._delivery.complain(debt.message, refused, debt.message.user_property("id"), debt.qos)
        else:
            self._delivery.refuse(debt.message, refused, debt.seen)

    # ---- windows ---------------------------------------------------------------------------------------------------
    def _submit(self, decoder: RouteDecoder, message: Message, ready: Ready) -> None:
        """Run a window; the first ones of a ring once the journal has its first number on the disk.

        After a kill before that, the broker repeats the samples, and the clock gives the ring another number: a result
        that was already published would come again under another id.
        """
        self._counters["windows"] += 1
        job, windows = self._new_job(decoder, message, ready), decoder.windows
        ring = None if windows is None else windows.ring_of(ready.sensor)
        if windows is None or self._journal is None or not decoder.route.result_qos or ring is None or ring.is_kept:
            self._runs.add(job)
            return
        ring.unkept += 1
        self._unkept += 1
        self.kept.clear()
        self._journal.after(partial(self._run_kept, ring, job), windows.shape.size_bytes)

    def _run_kept(self, ring: Ring, job: InferenceJob) -> None:
        ring.unkept -= 1
        self._unkept -= 1
        ring.is_kept = not ring.unkept  # no window overtakes one that waits
        if not self._unkept:
            self.kept.set()
        if not self._timers.closed:  # else the next process runs it
            self._runs.add(job)

    def _submit_all(self, decoder: RouteDecoder, found: Iterator[Ready]) -> None:
        """Submit windows that no message completed."""
        for ready in found:
            message = Message("", b"", qos=decoder.route.qos, arrived_ns=time.monotonic_ns())
            self._submit(decoder, message, ready)

    def _expire(self, decoder: RouteDecoder, now_ns: int) -> None:
        """Submit the windows that are complete without samples that did not come in time."""
        if self._journal is not None and decoder.route.result_qos:
            self._journal.expired(decoder.route.name, now_ns)
        self._submit_all(decoder, decoder.expire(now_ns))
