"""Inferences of messages: they wait for a place, run, are tried again, and are answered.

A message that meets OVERLOADED is not acknowledged. At QoS 1 it is tried again here until it expires. Once enough of
them wait, the socket is no longer read, so that the broker keeps later messages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.pipeline import keeps_state
from gateway.common.domain.retry import draw_chance, pause_s
from gateway.common.domain.text_model import FINAL
from gateway.serving.domain.infer import InferRequest, InferResponse
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.outbound.context import RouteContext
from gateway.serving.frontends.mqtt.outbound.delivery import Debt, Delivery

_LOG = logging.getLogger(__name__)
AWAY = frozenset({Fault.NOT_FOUND, Fault.UNAVAILABLE})
"""Faults of a model that is unavailable."""
PART = "part"
"""Parameter of an answer's part: its number. 0 begins the answer, again if its request had to run again."""
Job = TypeVar("Job")


@dataclass(slots=True, eq=False)
class InferenceJob:
    """An inference: its request, the function that encodes its answer, the answer's debt, and failed attempts.

    `encode` returns None for an answer that is not published. `holds`: at QoS 1 it waits while its model is away.
    `line`: model, caller and stream of a target with state, whose jobs run one after the other. `parts`: those made.
    """

    request: InferRequest
    encode: Callable[[InferResponse], bytes | None]
    debt: Debt
    failures: int = 0
    holds: bool = False
    line: tuple[str, str, str] | None = None
    parts: int = 0


def passed(deadline_ns: int | None) -> bool:
    """Return True if a deadline on the monotonic clock has passed."""
    return deadline_ns is not None and time.monotonic_ns() >= deadline_ns


def expired() -> RequestError:
    """Return the refusal of a message that expired while the device was overloaded."""
    return RequestError(
        Fault.EXPIRED, "the message expired while the device was overloaded or the model unavailable (EG-608)"
    )


class Backlog(Generic[Job]):
    """Jobs that wait or run. QoS 1 jobs are never dropped: `full` means that no more should be read.

    If too many QoS 0 jobs wait, the oldest one is dropped.
    """

    def __init__(self, max_queued: int, max_running: int) -> None:
        self._max_queued, self._max_running = max_queued, max_running
        self._sure: deque[tuple[int, Job]] = deque()
        self._unsure: deque[tuple[int, Job]] = deque()
        self._count = 0
        self._running_sure = 0
        self.running = 0

    def __len__(self) -> int:
        return len(self._sure) + len(self._unsure)

    @property
    def full(self) -> bool:
        """Return True if the permitted number of QoS 1 jobs waits or runs."""
        return len(self._sure) + self._running_sure >= self._max_queued

    def put(self, job: Job, qos: int) -> Job | None:
        """Add `job`. Return the QoS 0 job that was dropped for it, if any."""
        self._count += 1
        (self._sure if qos else self._unsure).append((self._count, job))
        return self._unsure.popleft()[1] if len(self._unsure) > self._max_queued else None

    def take(self) -> tuple[Job, int] | None:
        """Return the oldest job, which now runs, and its QoS. Return None if none waits or enough run."""
        if self.running >= self._max_running or not (self._sure or self._unsure):
            return None
        sure = bool(self._sure) and (not self._unsure or self._sure[0][0] < self._unsure[0][0])
        self.running += 1
        self._running_sure += sure
        return (self._sure if sure else self._unsure).popleft()[1], int(sure)

    def done(self, qos: int) -> None:
        """Count the end of a job that was taken."""
        self.running -= 1
        self._running_sure -= bool(qos)

    def close(self) -> None:
        """Drop all waiting jobs."""
        self._sure.clear()
        self._unsure.clear()


class _Step(Protocol):
    """Pending answer of a running job, or timer of its next attempt."""

    def cancel(self) -> None: ...


class Runs:
    """Jobs that wait or run, at most `max_running` at a time. None begins while the outbox is full.

    Implements `domain.ports.Sink`; the token is the job.
    `changed` is called whenever the number of waiting or running jobs changes.
    """

    def __init__(self, context: RouteContext, delivery: Delivery, changed: Callable[[], None]) -> None:
        self._engine, self._settings, self._delivery = context.engine, context.settings, delivery
        self._outlet, self._counters, self._changed = context.outlet, context.counters, changed
        self.backlog: Backlog[InferenceJob] = Backlog(self._settings.max_queued, self._settings.max_running)
        """Jobs that wait."""
        self._running: dict[InferenceJob, tuple[int, _Step | None]] = {}
        """Running jobs with their QoS at the beginning, and the step that each waits for."""
        self._lines: dict[tuple[str, str, str], deque[InferenceJob]] = {}
        """Of each stream of a target with state that has a job: those behind it. It may be tried again, they wait."""
        self.idle = asyncio.Event()
        """Set while no job runs or waits."""
        self.idle.set()

    @property
    def running(self) -> int:
        """Return the number of jobs that run or wait for another attempt."""
        return len(self._running)

    def add(self, job: InferenceJob) -> None:
        """Run a job as soon as there is a place. At QoS 0 the oldest job may be dropped for it."""
        job.debt.message.payload = b""  # the tensors hold the data they need
        try:
            has_state = keeps_state(self._engine.describe(job.request.model, job.request.version))
        except RequestError:  # a target that is away now may have one
            has_state = True
        job.line = (job.request.model, job.request.caller, job.request.stream) if has_state else None
        self.idle.clear()
        dropped = self.backlog.put(job, job.debt.qos)
        if dropped is not None and dropped.debt.make_sure():
            self.backlog.put(dropped, dropped.debt.qos)
        elif dropped is not None:
            self._counters["dropped_queue_full"] += 1
            self._delivery.forget(dropped.debt.seen)
        self.flush()

    def abandon(self) -> int:
        """Abandon all jobs. Return their number.

        Their messages are not acknowledged: the broker may send them again.
        """
        abandoned = len(self._running) + len(self.backlog)
        for job, (_, step) in self._running.items():
            if step is not None:
                step.cancel()
            self._delivery.forget(job.debt.seen)
        self._running.clear()
        self._lines.clear()
        self.backlog.close()
        self.idle.set()
        return abandoned

    def retry_s(self, refused: RequestError, failures: int) -> float:
        """Count a retry after so many failures. Return the time before it."""
        self._counters["retries"] += 1
        wait_s = pause_s(failures, self._settings.retry_min_s, self._settings.retry_max_s, draw_chance())
        return wait_s + min(refused.retry_after_s or 0.0, self._settings.retry_max_s)

    def is_held_long(self, message: Message) -> bool:
        """Return True if a message has waited `hold_s` for a model that loads."""
        return time.monotonic_ns() - message.arrived_ns > self._settings.hold_s * 1e9

    # ---- Sink ------------------------------------------------------------------------------------------------------
    def part(self, token: InferenceJob, response: InferResponse) -> None:
        """Implement `Sink.part`: publish it at QoS 0 if the connection takes it now. The answer will be whole."""
        response.parameters = {**response.parameters, FINAL: False, PART: token.parts}
        token.parts += 1
        if token.debt.reply is None:
            return
        try:
            payload = token.encode(response)
        except RequestError:  # the answer will be refused, too
            return
        self._outlet.publish(replace(token.debt.reply.publication(payload or b"", 0, None), optional=True))

    def answer(self, token: InferenceJob, response: InferResponse) -> None:
        """Implement `Sink.answer`: publish the answer."""
        self._end(token)
        if token.request.in_parts:
            response.parameters = {**response.parameters, FINAL: True}
        try:
            payload = token.encode(response)
        except RequestError as refused:
            self._delivery.refuse_debt(token.debt, refused)
        except Exception:  # noqa: BLE001  a sink must not raise
            self._delivery.refuse_debt(token.debt, defect(token.debt.message))
        else:
            self._delivery.suppress(token.debt) if payload is None else self._delivery.answer(token.debt, payload)

    def refuse(self, token: InferenceJob, error: RequestError) -> None:
        """Implement `Sink.refuse`: try again if that may help, until the deadline or the last attempt."""
        token.failures += 1
        if (error.fault is Fault.OVERLOADED or token.holds or error.is_loading) and passed(token.request.deadline_ns):
            error = expired()
        elif self._tries_again(token, error):
            wait_s = self.retry_s(error, token.failures)
            again = asyncio.get_running_loop().call_later(wait_s, self._begin, token)
            self._running[token] = self._running[token][0], again
            return
        self._end(token)
        self._delivery.refuse_debt(token.debt, error)

    def flush(self) -> None:
        """Implement `Sink.flush`: jobs that wait take the places of those that ended."""
        while not self._outlet.full and (taken := self.backlog.take()) is not None:
            job, qos = taken
            self._running[job] = qos, None
            if job.line in self._lines:
                self._lines[job.line].append(job)
                continue
            if job.line is not None:
                self._lines[job.line] = deque()
            self._submit(job)
        if not self._running and not len(self.backlog):
            self.idle.set()
        self._changed()

    # ---- internal --------------------------------------------------------------------------------------------------
    def _begin(self, job: InferenceJob) -> None:
        """Submit a job again, and fill its place if it is refused permanently."""
        self._submit(job)
        self.flush()

    def _submit(self, job: InferenceJob) -> None:
        (qos, _), job.parts = self._running[job], 0
        try:
            self._running[job] = qos, self._engine.submit(job.request, self, job)
        except RequestError as refused:
            self.refuse(job, refused)
        except Exception:  # noqa: BLE001  the job's boundary: other jobs continue
            self._end(job)
            self._delivery.refuse_debt(job.debt, defect(job.debt.message))

    def _end(self, job: InferenceJob) -> None:
        qos, _ = self._running.pop(job)
        self.backlog.done(qos)
        if job.line is not None and not (behind := self._lines[job.line]):
            del self._lines[job.line]
        elif job.line is not None:
            following = behind.popleft()
            begins = asyncio.get_running_loop().call_soon(self._begin, following)
            self._running[following] = self._running[following][0], begins

    def _tries_again(self, job: InferenceJob, refused: RequestError) -> bool:
        loads = refused.is_loading and not self.is_held_long(job.debt.message)
        if refused.fault is Fault.OVERLOADED or loads or (job.holds and refused.fault in AWAY):
            return job.debt.make_sure()
        return (
            refused.fault is Fault.INTERNAL
            and job.failures < self._settings.max_attempts
            and not passed(job.request.deadline_ns)
        )


def defect(message: Message) -> RequestError:
    """Log the current exception as a defect of the gateway. Return the refusal of the message that met it."""
    _LOG.exception("message failed: topic %r; report this traceback", message.topic)
    return RequestError(Fault.INTERNAL, "the gateway failed on this message; report the traceback in its log")
