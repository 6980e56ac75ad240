"""One thread per session: plan → gather → run → scatter → one callback to the loop per batch.

The queue is the only thing both sides touch, under one lock; the thread sleeps while it is empty.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gateway.domain.errors import RequestError
from gateway.domain.manifest import ModelManifest
from gateway.domain.ports import Session
from gateway.domain.postprocess import finish_outputs
from gateway.engine.batching import Answer, Plan, Ticket, gather, plan, scatter


@dataclass(slots=True)
class Outcome:
    """What became of one plan: answers for its batch in order, or the failure that all of them share."""

    plan: Plan
    answers: Sequence[Answer] = ()
    failure: str = ""


class Worker:
    """Runs a session's tickets in a thread of its own. `deliver` is called on the loop, once per plan."""

    def __init__(
        self,
        session: Session,
        manifest: ModelManifest,
        batch_rows: int,
        deliver: Callable[[Outcome], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._session, self._manifest, self._batch_rows = session, manifest, batch_rows
        self._deliver, self._loop = deliver, loop
        self._waiting: deque[Ticket] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._finished = asyncio.Event()
        name = f"run {manifest.name}/{manifest.version}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, ticket: Ticket) -> bool:
        """Queue a ticket; the caller has checked the bound with `waiting`. False where the worker is closing."""
        with self._changed:
            if not self._closing:
                self._waiting.append(ticket)
                self._changed.notify()
            return not self._closing

    def withdraw(self, ticket: Ticket) -> None:
        """Take back a ticket that nobody waits for, so that it holds no place in the queue."""
        with self._changed, suppress(ValueError):
            self._waiting.remove(ticket)

    @property
    def waiting(self) -> int:
        """Tickets queued and not yet taken into a run."""
        return len(self._waiting)

    async def close(self) -> None:
        """Finish what is queued, close the session in its own thread, end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        await self._finished.wait()

    def abandon(self, error: RequestError) -> None:
        """Refuse what still waits, so that closing need not run it. Called on the loop."""
        with self._changed:
            self._closing = True
            left = list(self._waiting)
            self._waiting.clear()
            self._changed.notify()
        for ticket in left:
            if not ticket.future.done():
                ticket.future.set_exception(error)

    def _work(self) -> None:
        while (decided := self._next()) is not None:
            self._post(self._deliver, self._carry_out(decided))
        try:
            self._session.close()
        except Exception as error:  # noqa: BLE001  a thread's boundary: whoever waits for the end must hear of it
            self._post(self._deliver, Outcome(Plan([], [], []), failure=f"close: {type(error).__name__}: {error}"))
        self._post(self._finished.set)

    def _post(self, callback: Callable[..., object], *values: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
            self._loop.call_soon_threadsafe(callback, *values)

    def _next(self) -> Plan | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return plan(self._waiting, time.monotonic_ns(), self._batch_rows) if self._waiting else None

    def _carry_out(self, decided: Plan) -> Outcome:
        if not decided.batch:
            return Outcome(decided)
        try:
            return Outcome(decided, self._run(decided.batch))
        except Exception as error:  # noqa: BLE001  a thread's boundary: whatever an engine raises, the callers get an answer
            return Outcome(decided, failure=f"{type(error).__name__}: {error}")

    def _run(self, batch: list[Ticket]) -> list[Answer]:
        start = time.monotonic_ns()
        inputs = gather(batch)
        gathered = time.monotonic_ns()
        raw = self._session.run(inputs)
        ran = time.monotonic_ns()
        parts = scatter(batch, finish_outputs(self._manifest, raw))
        scattered = time.monotonic_ns()
        rows = sum(ticket.rows for ticket in batch)
        return [
            Answer(part, start - ticket.queued_ns, gathered - start, ran - gathered, scattered - ran, rows, index == 0)
            for index, (ticket, part) in enumerate(zip(batch, parts, strict=True))
        ]
