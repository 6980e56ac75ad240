"""Inferences of messages: they wait for a place, run, are tried again, and are answered.

A message that meets OVERLOADED is not acknowledged. At QoS 1 it is tried again here until it expires. Once enough of
them wait, the socket is no longer read, so that the broker keeps later messages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from gateway.domain.errors import Fault, RequestError
from gateway.domain.infer import InferResponse
from gateway.domain.ports import InferenceEngine
from gateway.domain.retry import draw_chance, pause_s
from gateway.frontends.mqtt.messages import Message
from gateway.frontends.mqtt.outbound.backlog import Backlog
from gateway.frontends.mqtt.outbound.delivery import Delivery
from gateway.frontends.mqtt.outbound.jobs import InferenceJob, expired, passed
from gateway.frontends.mqtt.settings.broker import MqttSettings

_LOG = logging.getLogger(__name__)
AWAY = frozenset({Fault.NOT_FOUND, Fault.UNAVAILABLE})
"""Faults of a model that is unavailable."""


class _Step(Protocol):
    """Pending answer of a running job, or timer of its next attempt."""

    def cancel(self) -> None: ...


class Runs:
    """Jobs that wait or run, at most `max_running` at a time. None begins while the outbox is full.

    Implements `domain.ports.Sink`; the token is the job.
    `changed` is called whenever the number of waiting or running jobs changes.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        settings: MqttSettings,
        delivery: Delivery,
        counters: Counter[str],
        changed: Callable[[], None],
    ) -> None:
        self._engine, self._settings, self._delivery = engine, settings, delivery
        self._counters, self._changed = counters, changed
        self._backlog: Backlog[InferenceJob] = Backlog(settings.max_queued, settings.max_running)
        self._running: dict[InferenceJob, tuple[int, _Step | None]] = {}
        """Running jobs with their QoS at the beginning, and the step that each waits for."""
        self.idle = asyncio.Event()
        """Set while no job runs or waits."""
        self.idle.set()

    @property
    def full(self) -> bool:
        """Return True if the permitted number of QoS 1 jobs waits or runs."""
        return self._backlog.full

    @property
    def queued(self) -> int:
        """Return the number of jobs that wait."""
        return len(self._backlog)

    @property
    def running(self) -> int:
        """Return the number of jobs that run or wait for another attempt."""
        return len(self._running)

    def add(self, job: InferenceJob) -> None:
        """Run a job as soon as there is a place. At QoS 0 the oldest job may be dropped for it."""
        job.debt.message.payload = b""  # the tensors hold the data they need
        self.idle.clear()
        dropped = self._backlog.put(job, job.debt.qos)
        if dropped is not None and dropped.debt.make_sure():
            self._backlog.put(dropped, dropped.debt.qos)
        elif dropped is not None:
            self._counters["dropped_queue_full"] += 1
            self._delivery.forget(dropped.debt.seen)
        self.flush()

    def abandon(self) -> int:
        """Abandon all jobs. Return their number.

        Their messages are not acknowledged: the broker may send them again.
        """
        abandoned = len(self._running) + len(self._backlog)
        for job, (_, step) in self._running.items():
            if step is not None:
                step.cancel()
            self._delivery.forget(job.debt.seen)
        self._running.clear()
        self._backlog.close()
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
    def answer(self, token: InferenceJob, response: InferResponse) -> None:
        """Implement `Sink.answer`: publish the answer."""
        self._end(token)
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
        while not self._delivery.full and (taken := self._backlog.take()) is not None:
            job, qos = taken
            self._running[job] = qos, None
            self._submit(job)
        self._check_idle()
        self._changed()

    # ---- internal --------------------------------------------------------------------------------------------------
    def _begin(self, job: InferenceJob) -> None:
        """Submit a job again, and fill its place if it is refused permanently."""
        self._submit(job)
        self.flush()

    def _submit(self, job: InferenceJob) -> None:
        qos, _ = self._running[job]
        try:
            self._running[job] = qos, self._engine.submit(job.request, self, job)
        except RequestError as refused:
            self.refuse(job, refused)
        except Exception:  # noqa: BLE001  the job's boundary: other jobs continue
            self._end(job)
            self._delivery.refuse_debt(job.debt, defect(job.debt.message))

    def _end(self, job: InferenceJob) -> None:
        qos, _ = self._running.pop(job)
        self._backlog.done(qos)
        self._check_idle()

    def _check_idle(self) -> None:
        if not self._running and not len(self._backlog):
            self.idle.set()

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
