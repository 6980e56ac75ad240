"""One thread per session for runs that are too long for the event loop: plan → gather → run → one callback per run.

A queue belongs to the event loop or to its worker's thread, never to both. The owner of the queue uses the session.
While the worker owns it, both access it under one lock, and the thread sleeps while it is empty.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from gateway.serving.engine.cost import Cost
from gateway.serving.engine.limiter import Limiter, Share
from gateway.serving.engine.pauses import Pauses
from gateway.serving.engine.priority import LAST, step_back
from gateway.serving.engine.queue import Queue, RunPlan
from gateway.serving.engine.run import Ran, Runner
from gateway.serving.engine.ticket import Ticket

BESIDE_PAUSE_S = 0.001
"""First pause before a run without a caller asks for the device's threads again; each next pause is twice as long."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Callbacks of a worker, made on the event loop.

    `ran`: a run is over. `beside_ended`: a run outside the queue is over (None: it never ran). `returned`: the queue
    belongs to the event loop again. `close_failed`: the session failed to close. `priority_refused`: the kernel refused
    the thread's lower priority.
    """

    ran: Callable[[Ran], None]
    beside_ended: Callable[[Ticket, Ran | None], None]
    returned: Callable[[], None]
    close_failed: Callable[[str], None]
    priority_refused: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of all workers of a device: its threads, the event loop's pauses for them, and their nice value."""

    limiter: Limiter
    pauses: Pauses
    nice: int = 0


class SessionWorker:
    """Thread of one session. The first `take_over` starts it."""

    def __init__(
        self,
        name: str,
        runner: Runner,
        queue: Queue,
        cost: Cost,
        calls: Calls,
        *,
        worker_settings: WorkerSettings,
        share: Share,
        delay_us: int = 0,
    ) -> None:
        self._name, self._runner, self._queue, self._cost, self._calls = name, runner, queue, cost, calls
        self._worker_settings, self._share, self._delay_ns = worker_settings, share, delay_us * 1000
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._closing = False
        self._finished = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._beside: Ticket | None = None
        self.running: tuple[RunPlan, int] | None = None
        """Run in progress and its start (monotonic ns). Written by the thread, read by the event loop."""
        self.owns = False
        """Ownership of the queue. Set by the event loop, cleared by the thread, both under the lock."""
        self._begun = self._ended = 0
        """Runs begun, or accepted outside the queue, and those of them whose callback was made."""

    @property
    def busy(self) -> bool:
        """Return True if a run is under way whose callback was not made yet."""
        return self._begun != self._ended

    def take_over(self) -> None:
        """Take over the queue, and with it the session, from now on. Raises as `_wake` does."""
        with self._changed:
            self._wake()

    def reprice(self, cost: Cost) -> None:
        """Use another cost from now on."""
        with self._changed:
            self._cost = cost
            self._changed.notify()

    def offer(self, ticket: Ticket) -> Ticket | None:
        """Call `Queue.offer` while the worker owns the queue."""
        with self._changed:
            displaced = self._queue.offer(ticket)
            self._wake()
        return displaced

    def offer_beside(self, ticket: Ticket) -> bool:
        """Run a ticket that is in no queue once nothing else waits.

        Return False if one waits for that already, the worker closes, or no thread can start.
        """
        with self._changed:
            if self._beside is not None or self._closing:
                return False
            with suppress(RuntimeError):
                self._wake()
                self._beside = ticket
                self._begun += 1
            return self._beside is ticket

    def remove(self, ticket: Ticket) -> bool:
        """Call `Queue.remove` while the worker owns the queue."""
        with self._changed:
            return self._queue.remove(ticket)

    def begin_closing(self) -> list[Ticket]:
        """Let the thread finish the queued runs, close the session and end. Return the tickets that cannot be run.

        If no thread can start, the session is closed immediately, on the event loop that still owns it.
        """
        with self._changed:
            if self._closing:
                return []
            self._closing = True
            try:
                self._wake()
            except RuntimeError:
                self._end()
                return self._queue.clear()
        return []

    async def closed(self) -> None:
        """Wait until the session is closed."""
        await self._finished.wait()

    def abandon(self) -> list[Ticket]:
        """Remove and return the waiting tickets, so that closing need not run them."""
        with self._changed:
            left = self._queue.clear()
            self._changed.notify()
        return left

    def abandon_run(self) -> None:
        """Release the CPU share of a run that does not end.

        Its thread continues at the lowest priority: nothing in Python can end it.
        """
        if self._thread is not None:
            step_back(LAST, self._thread)
            self._worker_settings.pauses.forget(self._thread.native_id or 0)
        self._worker_settings.limiter.abandon(self._share)

    def _wake(self) -> None:
        """Wake the thread; start it if necessary. Raises RuntimeError, with nothing changed, if it cannot start."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        self.owns = True
        self._changed.notify()

    def _work(self) -> None:
        if self._worker_settings.nice and (refused := step_back(self._worker_settings.nice)):
            self._post(self._calls.priority_refused, refused)
        limiter, share = self._worker_settings.limiter, self._share
        more = False
        while due := more or self._due():
            if isinstance(due, Ticket):
                self._run_beside(due)
                del due  # a variable would keep its inputs until the next run; so no variable holds the run below
                continue
            limiter.enter(share)
            began_ns = time.monotonic_ns()
            self._post(self._end_run, self._calls.ran, self._run_due(self._take(began_ns)))
            with self._changed:
                more = self._queue.length > 0 and self._ready()
            limiter.leave(share, time.monotonic_ns() - began_ns, again=more)
        self._end()

    def _end(self) -> None:
        try:
            self._runner.close()
        except Exception as error:  # noqa: BLE001  an engine's boundary: the end must be reported in any case
            self._post(self._calls.close_failed, f"close: {type(error).__name__}: {error}")
        self._post(self._finished.set)

    def _run_beside(self, ticket: Ticket) -> None:
        ran = None
        if self._enter_beside():
            began_ns = time.monotonic_ns()
            ran = self._run(RunPlan([ticket], ticket.form.rows, []))
            self._worker_settings.limiter.leave(self._share, time.monotonic_ns() - began_ns, again=False)
        self._post(self._end_run, self._calls.beside_ended, ticket, ran)

    def _enter_beside(self) -> bool:
        """Wait for threads that no other run wants, asking less and less often.

        Return False once this queue has requests, or after too long a time. The run that was just answered holds its
        threads for a moment longer.
        """
        limiter, pause_s = self._worker_settings.limiter, BESIDE_PAUSE_S
        while not limiter.enter_if_free(self._share):
            with self._changed:
                wanted = self._changed.wait_for(lambda: self._closing or self._queue.length > 0, pause_s)
            pause_s *= 2
            if wanted or pause_s > limiter.wait_s:
                return False
        return True

    def _end_run(self, callback: Callable[..., None], *values: object) -> None:
        """Count a run as ended, on the event loop, and make its callback."""
        self._ended += 1
        callback(*values)

    def _post(self, callback: Callable[..., object], *values: object) -> None:
        # One wake-up of the event loop per run. Futures would cost one per request.
        with suppress(RuntimeError):  # the event loop is closed: nothing can receive the call
            self._loop.call_soon_threadsafe(callback, *values)

    def _due(self) -> Ticket | bool:
        """Wait until there is a run: from the queue, or the ticket outside it if the queue is empty.

        Return False when closing and nothing is left.
        """
        with self._changed:
            while not self._ready():
                if self._closing and not self._queue.length:
                    return False
                if self.owns and self._is_the_loops():
                    self.owns = False
                    self._post(self._calls.returned)
                    if dropped := self._take_beside():  # other requests came first
                        self._post(self._end_run, self._calls.beside_ended, dropped, None)
                held_back_ns = self._held_back_ns() if self.owns else 0
                self._changed.wait(held_back_ns / 1e9 if held_back_ns > 0 else None)
            return self._queue.length > 0 or self._take_beside() or False

    def _take_beside(self) -> Ticket | None:
        taken, self._beside = self._beside, None
        return taken

    def _ready(self) -> bool:
        """Return True if the next run is due and belongs to the worker."""
        if not self._queue.length:
            return self._beside is not None
        return self.owns and not self._is_the_loops() and self._held_back_ns() <= 0

    def _is_the_loops(self) -> bool:
        """Return True if the queue returns to the event loop, because the next run is short enough for it."""
        if not self._cost.limit_ns or self._closing:
            return False
        head = self._queue.head()
        return head is None or not head.form.costly

    def _held_back_ns(self) -> int:
        """Return the time for which the next run still waits for more requests to join.

        It waits until it has enough rows, or until the oldest request is due.
        """
        if not self._delay_ns or self._closing or self._cost.worker_rows == 1 or not self._queue.length:
            return 0
        waiting = list(self._queue)
        if sum(ticket.form.rows for ticket in waiting) >= self._cost.worker_rows:
            return 0
        return min(ticket.queued_ns for ticket in waiting) + self._delay_ns - time.monotonic_ns()

    def _take(self, now_ns: int) -> RunPlan:
        with self._changed:
            self._begun += 1
            return self._queue.take(now_ns, self._cost.worker_rows)

    def _run_due(self, plan: RunPlan) -> Ran:
        """Run a plan for which callers wait."""
        pauses = self._worker_settings.pauses
        pauses.begin(min((ticket.queued_ns for ticket in plan.batch), default=0))
        try:
            return self._run(plan)
        finally:
            pauses.end()

    def _run(self, plan: RunPlan) -> Ran:
        """Run a plan. Its cost is the thread's own CPU time: waiting for the GIL is not counted."""
        began_ns, self.running = time.thread_time_ns(), (plan, time.monotonic_ns())
        ran = self._runner.run(plan)
        self.running = None
        ran.cost_ns, ran.lane = time.thread_time_ns() - began_ns, "worker"
        return ran


class RunWatch:
    """Timer of the event loop while a worker is busy; no timer while it is idle.

    `run_limit_ns`: function from rows to the time that a run may take; `end_ns`: time to end after that. `cancel` is
    called with the plan when the run's time is over. `hung` is called when the run did not end after that. Each is
    called at most once per run.
    """

    def __init__(
        self,
        worker: SessionWorker,
        run_limit_ns: Callable[[int], int],
        end_ns: int,
        *,
        busy: Callable[[], bool],
        cancel: Callable[[RunPlan], None],
        hung: Callable[[RunPlan], None],
    ) -> None:
        self._worker, self._run_limit_ns, self._end_ns, self._busy = worker, run_limit_ns, end_ns, busy
        self._cancel, self._hung = cancel, hung
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._overlong_ns = 0  # start of the run that was cancelled; its plan would hold the requests

    def arm(self) -> None:
        """Watch the worker until it is idle."""
        if self._timer is None:
            self._check_in(self._run_limit_ns(1))

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()

    def _check_in(self, wait_ns: int) -> None:
        self._timer = self._loop.call_later(wait_ns / 1e9, self._check)

    def _check(self) -> None:
        self._timer, running = None, self._worker.running
        if running is None:
            if self._busy():
                self.arm()
            return
        plan, began_ns = running
        left_ns = began_ns + self._run_limit_ns(plan.rows) - time.monotonic_ns()
        if left_ns > 0:
            self._check_in(left_ns)
        elif began_ns != self._overlong_ns:
            self._overlong_ns = began_ns
            self._check_in(self._end_ns)
            self._cancel(plan)
        else:
            self._hung(plan)
