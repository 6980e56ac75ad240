"""Answers in parts: runs whose outputs reach their callers while the model still computes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np

from gateway.common.domain.errors import Fault, RequestError, lacks_device
from gateway.common.domain.tensor import Tensors
from gateway.common.domain.text_model import COUNTS
from gateway.serving.domain.infer import InferResponse
from gateway.serving.domain.ports import Part, Pending, Session
from gateway.serving.engine.queue import RunPlan
from gateway.serving.engine.run import Ran, Runner
from gateway.serving.engine.ticket import Ticket

CALLERS_FAULT = "the request: "
"""Beginning of the reason of a VariantError for a request that no model could answer."""
UNDELIVERED_PARTS = 1024
"""Most parts of a run that the event loop has not delivered yet. Beyond, the run waits for the event loop."""
DELIVERY_S = 60.0
"""Longest wait for the event loop; then the run ends, as if its caller had left."""
UNTAKEN_BYTES = 1_048_576
"""Most bytes of parts that a caller has not taken; beyond, its request is cancelled. A token takes about 500."""
PART_BYTES = 400
"""Bytes of a part besides its texts: objects and arrays."""


class PartsRunner(Runner):
    """Runner of a session in parts. `deliver` is called on the event loop with a ticket and its new outputs."""

    in_parts = True

    def __init__(self, *args: Any, deliver: Callable[[Ticket, Tensors], None], checks: bool = False) -> None:
        super().__init__(*args, checks=checks)
        self._deliver, self._loop = deliver, asyncio.get_running_loop()
        self._room = threading.Semaphore(UNDELIVERED_PARTS)
        self._plan: RunPlan | None = None
        self._sent: set[str] = set()
        self._steps = self._first_ns = 0
        self._insisted: RunPlan | None = None
        self._inner, self._session = self._session, cast("Session", _InParts(self._session, self._part))

    def run(self, plan: RunPlan) -> Ran:
        """Run one request. After a part, it is never repeated: its caller has read the part."""
        self._plan, self._sent, self._steps, self._first_ns = plan, set(), 0, 0
        ran = self._run(plan)
        insisted, self._insisted = self._insisted, None
        is_stale = insisted is not None and insisted is not plan  # the end of the run before was meant
        if ran.failure and (ran.away or is_stale) and not (self._sent or self._cancelled is plan or plan.batch[0].done):
            ran = self._run(plan)  # a process ends for another's run, too: no part of this one was read
        self._plan, ran.shown = None, bool(self._sent)
        counts = [int(ran.outputs[name].ravel()[0]) for name in COUNTS if name in ran.outputs]
        ran.tokens = (counts[0], counts[1]) if len(counts) == len(COUNTS) else (0, self._steps)
        ran.first_ns = self._first_ns
        if self._cancelled is plan:
            self._cancelled, ran.overlong = None, True
            ran.failure = ran.failure or "the run was ended"
        elif ran.failure.startswith(CALLERS_FAULT):
            ran.by_caller = True
        elif ran.failure and not (ran.away or lacks_device(ran.failure)):
            ran.by_caller = self._works()
        elif self._sent and not plan.batch[0].request.whole_last:
            ran.outputs = {name: _rest(array) if name in self._sent else array for name, array in ran.outputs.items()}
        return ran

    def cancel(self, plan: RunPlan) -> bool:
        """Ask the run of `plan` to end with its next step."""
        self._cancelled = plan
        return True

    def insist(self, plan: RunPlan) -> bool:
        """Ask the session to end the run of `plan`, which takes no step. Return False if it was asked before."""
        if self._insisted is plan:
            return False
        self._insisted = plan
        return self._session.cancel()

    def close(self) -> None:
        """Free the session, and what refers back to this."""
        self._session = self._inner
        self._session.close()

    def _part(self, outputs: Tensors) -> bool:
        """Implement `Part`, on the thread of the run. A witness has no plan."""
        plan = self._plan
        if plan is None:
            return True
        if self._cancelled is plan:
            return False
        self.progressed_ns = time.monotonic_ns()
        if outputs:
            self._steps += 1
            self._first_ns = self._first_ns or self.progressed_ns
        ticket = plan.batch[0]
        if ticket.done:
            return False
        if not (outputs and ticket.request.in_parts):
            return True
        self._sent |= outputs.keys()
        if not self._room.acquire(timeout=DELIVERY_S):
            return False
        try:
            self._loop.call_soon_threadsafe(self._delivered, ticket, outputs)
        except RuntimeError:  # the event loop is closed
            return False
        return True

    def _delivered(self, ticket: Ticket, outputs: Tensors) -> None:
        self._room.release()
        self._deliver(ticket, outputs)


class _InParts:
    """Session whose every run is one in parts."""

    def __init__(self, session: Session, part: Part) -> None:
        self._session, self.run = session, partial(session.run_in_parts, part=part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def _rest(array: Any) -> Any:
    """Return what is left of texts that were sent in parts: empty ones."""
    return np.full(array.shape, b"", object)


class UntakenParts:
    """Sink of one request in parts for a caller that takes them one by one. `pending` is the request."""

    def __init__(self) -> None:
        self.pending: Pending | None = None
        self._arrived = deque[tuple[InferResponse, bool, int]]()
        self._error: RequestError | None = None
        self._changed = asyncio.Event()
        self._nbytes = 0

    async def take(self) -> tuple[InferResponse, bool]:
        """Return the next response, and whether it is the last one. Raises the refusal of the request."""
        if self._arrived:  # let others have the event loop: a connection that is lost is not written to
            await asyncio.sleep(0)
        while not self._arrived:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        response, is_last, nbytes = self._arrived.popleft()
        self._nbytes -= nbytes
        return response, is_last

    def part(self, _token: Any, response: InferResponse) -> None:
        """Implement `Sink.part`. A caller that takes too few is refused, and its request is cancelled."""
        nbytes = PART_BYTES + sum(len(text) for each in response.outputs.values() for text in each.array.ravel())
        self._nbytes += nbytes
        if self._nbytes <= UNTAKEN_BYTES:
            self._arrived.append((response, False, nbytes))
            return
        words = f"the caller has not taken {UNTAKEN_BYTES} bytes of its answer's parts, so the rest was not computed"
        self.refuse(None, RequestError(Fault.OVERLOADED, f"{words}; read faster, or ask for the whole answer"))
        self._changed.set()
        if self.pending is not None:
            self.pending.cancel()

    def answer(self, _token: Any, response: InferResponse) -> None:
        """Implement `Sink.answer`."""
        self._arrived.append((response, True, 0))

    def refuse(self, _token: Any, error: RequestError) -> None:
        """Implement `Sink.refuse`."""
        self._error = error

    def flush(self) -> None:
        """Implement `Sink.flush`."""
        self._changed.set()
