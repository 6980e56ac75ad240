"""Threads of one session for runs that are too long for the event loop: plan → gather → run → one callback per run.

A queue belongs to the event loop or to its worker's threads, never to both. The owner of the queue uses the session.
While the worker owns it, all access it under one lock, and the threads sleep while it is empty.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
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


@dataclass(slots=True, eq=False)
class OrderedRun:
    """Run whose answers wait until those of earlier runs with the same `callers` were given. `ran`: it is over."""

    callers: frozenset[str]
    ran: Ran | None = None


class RunThread:
    """One thread of a worker: its session's runner, its share of the device's threads, and its run in progress."""

    __slots__ = ("cancelled", "hung", "ordered", "runner", "running", "share", "thread")

    def __init__(self, runner: Runner, share: Share) -> None:
        self.runner, self.share = runner, share
        self.thread: threading.Thread | None = None
        self.running: tuple[RunPlan, int] | None = None
        """Run in progress and its start (monotonic ns). Written by the thread, read by the event loop."""
        self.ordered: OrderedRun | None = None
        self.cancelled = 0, 0
        """Start of the run that was cancelled last, and the time at which it was."""
        self.hung = False


class SessionWorker:
    """Threads of one session: one for each `runner`, so that as many runs take place at a time.

    All share the queue. A thread starts when requests wait that no other thread is free for, the first one at the first
    `take_over`. The answers to one caller come in the order in which its runs began, as with one thread,
    but for answers in parts: these do not wait for each other.
    """

    def __init__(
        self,
        name: str,
        runners: Sequence[Runner],
        queue: Queue,
        cost: Cost,
        calls: Calls,
        *,
        worker_settings: WorkerSettings,
        share: Share,
        delay_us: int = 0,
    ) -> None:
        self._name, self._queue, self._cost, self._calls = name, queue, cost, calls
        self._worker_settings, self._delay_ns = worker_settings, delay_us * 1000
        self.threads = [RunThread(runner, share.peer() if index else share) for index, runner in enumerate(runners)]
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._closing = False
        self._finished = asyncio.Event()
        self._beside: Ticket | None = None
        self._started = self._idle = self._claimed = self._over = 0
        """Threads started, those without a run (which look for one before they sleep), about to take one, and ended."""
        self._ordered: list[OrderedRun] = []
        self.owns = False
        """Ownership of the queue. Set by the event loop, cleared by a thread, both under the lock."""
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
            self._changed.notify_all()

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
        """Let the threads finish the queued runs, close the session and end. Return the tickets that cannot be run.

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
            self._changed.notify_all()
        return []

    async def closed(self) -> None:
        """Wait until the session is closed."""
        await self._finished.wait()

    def abandon(self) -> list[Ticket]:
        """Remove and return the waiting tickets, so that closing need not run them."""
        with self._changed:
            left = self._queue.clear()
            self._changed.notify_all()
        return left

    def cancel_runs(self) -> None:
        """Ask the runs in progress to end."""
        for thread in self.threads:
            if (running := thread.running) is not None:
                thread.runner.cancel(running[0])

    def under_way(self) -> list[Ticket]:
        """Return the tickets of the runs in progress."""
        found = [thread.running for thread in self.threads]
        return [ticket for running in found if running is not None for ticket in running[0].batch]

    def abandon_runs(self) -> list[Ticket]:
        """Abandon the runs in progress, none of which ends. Return their tickets."""
        left: list[Ticket] = []
        for thread in self.threads:
            if (running := thread.running) is not None:
                left += running[0].batch
                thread.runner.insist(running[0])
                self.abandon_run(thread)
        return left

    def abandon_run(self, thread: RunThread) -> None:
        """Release the CPU share of a run that does not end, and answer the later runs that wait for it.

        The thread continues at the lowest priority: nothing in Python can end it.
        """
        if thread.thread is not None:
            step_back(LAST, thread.thread)
            self._worker_settings.pauses.forget(thread.thread.native_id or 0)
        self._worker_settings.limiter.abandon(thread.share)
        if (ordered := thread.ordered) is not None:
            ordered.callers = frozenset()
            self._answer_in_order()

    def _wake(self) -> None:
        """Wake threads for the queue, and start those that it needs.

        Raises RuntimeError, with nothing changed, if there is none and none can start.
        """
        if not self._started:
            self._start()
        with suppress(RuntimeError):
            while self._queue.length > self._idle and self._started < len(self.threads) and not self._over:
                self._start()
        self.owns = True
        self._changed.notify(max(1, self._queue.length))

    def _start(self) -> None:
        of = self.threads[self._started]
        name = f"{self._name} {self._started + 1}" if self._started else self._name
        thread = threading.Thread(target=self._work, args=(of,), name=name, daemon=True)
        thread.start()
        of.thread = thread
        self._started += 1
        self._idle += 1

    def _work(self, thread: RunThread) -> None:
        if self._worker_settings.nice and (refused := step_back(self._worker_settings.nice)):
            self._post(self._calls.priority_refused, refused)
        limiter, share = self._worker_settings.limiter, thread.share
        more = False
        while due := more or self._due():
            if isinstance(due, Ticket):
                self._run_beside(thread, due)
                del due  # a variable would keep its inputs until the next run; so no variable holds the run below
                continue
            limiter.enter(share)
            began_ns = time.monotonic_ns()
            more = self._run_next(thread, began_ns)
            limiter.leave(share, time.monotonic_ns() - began_ns, again=more)
        with self._changed:
            self._over += 1
            last = self._over == self._started
            self._changed.notify_all()  # a thread that another one left nothing to run ends, too
        if last:
            self._end()

    def _end(self) -> None:
        try:
            self.threads[0].runner.close()
        except Exception as error:  # noqa: BLE001  an engine's boundary: the end must be reported in any case
            self._post(self._calls.close_failed, f"close: {type(error).__name__}: {error}")
        self._post(self._finished.set)

    def _run_beside(self, thread: RunThread, ticket: Ticket) -> None:
        ran = None
        if self._enter_beside(thread.share):
            began_ns = time.monotonic_ns()
            ran = self._run(thread, RunPlan([ticket], ticket.form.rows, []))
            self._worker_settings.limiter.leave(thread.share, time.monotonic_ns() - began_ns, again=False)
        with self._changed:
            self._idle += 1
        self._post(self._end_run, self._calls.beside_ended, ticket, ran)

    def _enter_beside(self, share: Share) -> bool:
        """Wait for threads that no other run wants, asking less and less often.

        Return False once this queue has requests, or after too long a time. The run that was just answered holds its
        threads for a moment longer.
        """
        limiter, pause_s = self._worker_settings.limiter, BESIDE_PAUSE_S
        while not limiter.enter_if_free(share):
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

    def _end_ordered(self, run: OrderedRun, ran: Ran) -> None:
        run.ran = ran
        self._answer_in_order()

    def _answer_in_order(self) -> None:
        """Make the callbacks of ended runs, on the event loop, except of those with a caller of an earlier run."""
        held, ready, waiting = set[str](), list[Ran](), list[OrderedRun]()
        with self._changed:
            for run in self._ordered:
                if run.ran is not None and held.isdisjoint(run.callers):
                    ready.append(run.ran)
                else:
                    held |= run.callers
                    waiting.append(run)
            self._ordered = waiting
        for ran in ready:
            self._end_run(self._calls.ran, ran)

    def _post(self, callback: Callable[..., object], *values: object) -> None:
        # One wake-up of the event loop per run. Futures would cost one per request.
        with suppress(RuntimeError):  # the event loop is closed: nothing can receive the call
            self._loop.call_soon_threadsafe(callback, *values)

    def _due(self) -> Ticket | bool:
        """Wait until there is a run: from the queue, or the ticket outside it if the queue is empty.

        Return False when closing and nothing is left. The queue returns to the event loop once all threads are idle.
        """
        with self._changed:
            while not self._ready():
                if self._closing and not self._queue.length:
                    return False
                if self.owns and self._idle == self._started and self._is_the_loops():
                    self.owns = False
                    self._post(self._calls.returned)
                    if dropped := self._take_beside():  # other requests came first
                        self._post(self._end_run, self._calls.beside_ended, dropped, None)
                held_back_ns = self._held_back_ns() if self.owns else 0
                self._changed.wait(held_back_ns / 1e9 if held_back_ns > 0 else None)
            self._idle -= 1
            if self._queue.length:
                self._claimed += 1
                return True
            return self._take_beside() or False

    def _take_beside(self) -> Ticket | None:
        taken, self._beside = self._beside, None
        return taken

    def _ready(self) -> bool:
        """Return True if the next run is due and belongs to the worker, and no other thread is about to take it."""
        if not self._queue.length:
            return self._beside is not None
        return (
            self._queue.length > self._claimed and self.owns and not self._is_the_loops() and self._held_back_ns() <= 0
        )

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

    def _run_next(self, thread: RunThread, now_ns: int) -> bool:
        """Run what the queue has, and post the callback; nothing if another thread was first.

        Return True if this thread takes the next run as well.
        """
        with self._changed:
            self._claimed -= 1
            plan = self._queue.take(now_ns, self._cost.worker_rows)
            if not (plan.batch or plan.expired):
                return self._goes_on()
            self._begun += 1
            if len(self.threads) > 1 and not thread.runner.in_parts:
                thread.ordered = OrderedRun(frozenset(ticket.request.caller for ticket in plan.batch))
                self._ordered.append(thread.ordered)
        ran = self._run_due(thread, plan)
        with self._changed:  # before the answers lead to new requests, which would wake or start another thread
            more = self._goes_on()
            if ordered := thread.ordered:  # before another thread can return the queue to the event loop
                thread.ordered = None
                self._post(self._end_ordered, ordered, ran)
        if not ordered:
            self._post(self._end_run, self._calls.ran, ran)
        return more

    def _goes_on(self) -> bool:
        """Return True if the queue has a run for this thread; otherwise it is idle from now on."""
        more = self._queue.length > self._claimed and self._ready()
        self._claimed += more
        self._idle += not more
        return more

    def _run_due(self, thread: RunThread, plan: RunPlan) -> Ran:
        """Run a plan for which callers wait."""
        pauses = self._worker_settings.pauses
        pauses.begin(min((ticket.queued_ns for ticket in plan.batch), default=0), thread.share.use)
        try:
            return self._run(thread, plan)
        finally:
            pauses.end()

    def _run(self, thread: RunThread, plan: RunPlan) -> Ran:
        """Run a plan. Its cost is the thread's own CPU time: waiting for the GIL is not counted."""
        began_ns, thread.running = time.thread_time_ns(), (plan, time.monotonic_ns())
        ran = thread.runner.run(plan)
        thread.running = None
        ran.cost_ns, ran.lane = time.thread_time_ns() - began_ns, "worker"
        return ran


class RunWatch:
    """Timer of the event loop while a worker is busy; no timer while it is idle.

    `run_limit_ns`: function from rows to the time that a run may take; `end_ns`: time to end after that. `cancel` is
    called with the thread and the plan when the run's time is over. `hung` is called when the run did not end after
    that. Each is called at most once per run.
    """

    def __init__(
        self,
        worker: SessionWorker,
        run_limit_ns: Callable[[int], int],
        end_ns: int,
        *,
        busy: Callable[[], bool],
        cancel: Callable[[RunThread, RunPlan], None],
        hung: Callable[[RunThread, RunPlan], None],
    ) -> None:
        self._worker, self._run_limit_ns, self._end_ns, self._busy = worker, run_limit_ns, end_ns, busy
        self._cancel, self._hung = cancel, hung
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

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
        self._timer = None
        now_ns = time.monotonic_ns()
        waits_ns = [left for thread in self._worker.threads if (left := self._left_ns(thread, now_ns)) > 0]
        if waits_ns:
            self.close()  # of a refusal above, which led to a new request
            self._check_in(min(*waits_ns, self._run_limit_ns(1)))  # a run may begin that may take no longer
        elif self._busy():
            self.arm()

    def _left_ns(self, thread: RunThread, now_ns: int) -> int:
        """Return the time until a thread must be checked, after whatever is due now; 0: not, or it is hung."""
        running = thread.running
        if running is None or thread.hung:
            return 0
        plan, began_ns = running
        left_ns = max(began_ns, thread.runner.progressed_ns) + self._run_limit_ns(plan.rows) - now_ns
        if left_ns > 0:
            return left_ns
        if thread.cancelled[0] != began_ns:  # its start, because the plan would hold the requests
            thread.cancelled = began_ns, now_ns
            self._cancel(thread, plan)
        if (left_ns := thread.cancelled[1] + self._end_ns - now_ns) <= 0:
            if thread.runner.insist(plan):
                thread.cancelled = began_ns, now_ns
                return self._end_ns
            thread.hung = True
            self._hung(thread, plan)
        return left_ns
