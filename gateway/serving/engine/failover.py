"""Record of the candidates that failed in service, and of the accelerators that are gone. No clock inside.

A candidate is a variant of a model version on one accelerator. Each has a circuit breaker (`breaker` has the table):

    closed: the candidate may serve
    open: it failed, and the next candidate serves; a trial in a child process decides after the wait
    half open: the trial passed and the candidate serves again; a failure opens it at once, for twice as long

A candidate on an accelerator that is gone is out until the accelerator is back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import NamedTuple

from gateway.common.domain.retry import SECOND_NS
from gateway.common.domain.selection import Candidate, untried
from gateway.serving.engine.breaker import NEVER_NS, Breaker, BreakerState
from gateway.serving.engine.settings import FailoverSettings

PROBATION_WAITS = 10
"""Waits without a failure after which its failures are forgotten: at most about 12 failovers an hour."""
SETTLE_NS = 2 * SECOND_NS
"""Time from the return of an accelerator's node to the trial on it: its driver sets it up, and udev its rights."""


class CandidateKey(NamedTuple):
    """A variant (`place`: variant, accelerator, plugin provider) of a model version."""

    model: str
    version: str
    place: tuple[str, str, str]

    @property
    def accelerator(self) -> str:
        """Return the kind of its accelerator."""
        return self.place[1]


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """Breaker of a candidate that failed, and why. `is_barred`: only a load of the model by hand ends that.

    `answered`: requests that its version had answered at the last failure.
    """

    breaker: Breaker
    reason: str = ""
    is_barred: bool = False
    answered: int = 0


@dataclass(slots=True)
class Failover:
    """Candidates that failed, and kinds of accelerators that are `gone`, with their device. Used on the event loop."""

    settings: FailoverSettings = field(default_factory=FailoverSettings)
    gone: dict[str, str] = field(default_factory=dict)
    _records: dict[CandidateKey, CandidateRecord] = field(default_factory=dict)

    def obstacle(self, key: CandidateKey) -> str:
        """Return why a candidate is out, or ""."""
        if device := self.gone.get(key.accelerator):
            return f"{key.accelerator} at {device} is gone"
        record = self._records.get(key)
        return record.reason if record and record.breaker.is_open else ""

    def usable(self, model: str, version: str, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """Return the candidates, of which those that are out are not eligible."""
        return tuple(
            replace(each, eligible=False, reason=words)
            if each.eligible and (words := self.obstacle(CandidateKey(model, version, each.place)))
            else each
            for each in candidates
        )

    def failed(
        self,
        key: CandidateKey,
        reason: str,
        now_ns: int,
        *,
        at_once: bool = False,
        barred: bool = False,
        answered: int = 0,
    ) -> bool:
        """Count a failure of a candidate. Return True if it is out from now on. `at_once`: one failure is enough."""
        record = self._records.get(key) or CandidateRecord(self._breaker())
        answered = max(answered, record.answered)
        if record.breaker.is_open:
            self._records[key] = replace(record, answered=answered)
            return False
        limit = 1 if at_once else self.settings.failures
        breaker = replace(replace(record.breaker, limit=limit).fault(now_ns), limit=self.settings.failures)
        self._records[key] = CandidateRecord(breaker, reason, barred, answered)
        return breaker.is_open

    def failed_again(self, key: CandidateKey, reason: str, now_ns: int) -> None:
        """Leave a candidate out for twice as long: its trial failed."""
        self.tried(key, now_ns)
        self.failed(key, reason, now_ns, at_once=True)

    def put_off(self, key: CandidateKey, now_ns: int) -> None:
        """Leave out a candidate that was `tried` for as long as before: it is not its fault that it does not serve."""
        if (record := self._records.get(key)) is not None:
            breaker = replace(record.breaker, state=BreakerState.OPEN, since_ns=now_ns)
            self._records[key] = replace(record, breaker=breaker)

    def tried(self, key: CandidateKey, now_ns: int) -> None:
        """Let a candidate serve again if it is out: its trial passed, or it was opened."""
        if (record := self._records.get(key)) is not None and record.breaker.is_open:
            self._records[key] = replace(record, breaker=record.breaker.attempt(now_ns))

    def works(self, key: CandidateKey, answered: int) -> bool:
        """Return True if a version has answered requests since its candidate failed last."""
        return (record := self._records.get(key)) is not None and answered > record.answered

    def leave(self, accelerator: str, device: str) -> None:
        """Leave out every candidate on an accelerator that is gone."""
        self.gone[accelerator] = device

    def returned(self, accelerator: str, now_ns: int) -> None:
        """Try the candidates on an accelerator soon. One that fails again and again waits as long as before."""
        self.gone.pop(accelerator, None)
        for key, record in self._records.items():
            breaker = record.breaker
            if key.accelerator == accelerator and breaker.is_open and breaker.wait_ns == breaker.first_wait_ns:
                since_ns = min(breaker.since_ns, now_ns + SETTLE_NS - breaker.wait_ns)
                self._records[key] = replace(record, breaker=replace(breaker, since_ns=since_ns))

    def forget(self, model: str, version: str) -> dict[CandidateKey, CandidateRecord]:
        """Forget the failures of a version that is loaded from other files. Return them."""
        return {key: self._records.pop(key) for key in list(self._records) if key[:2] == (model, version)}

    def restore(self, records: Mapping[CandidateKey, CandidateRecord]) -> None:
        """Remember what was forgotten, because the other files do not serve."""
        self._records = {**records, **self._records}

    def try_now(self, model: str, version: str, now_ns: int) -> None:
        """Try the candidates of a version now, also those that hung too often: it is loaded by hand."""
        for key, record in self._records.items():
            if key[:2] == (model, version) and record.breaker.is_open:
                breaker = replace(record.breaker, since_ns=now_ns - record.breaker.wait_ns)
                self._records[key] = replace(record, breaker=breaker, is_barred=False)

    def next(self) -> tuple[int, CandidateKey | None]:
        """Return the time of the next trial, and its candidate; NEVER_NS and None if there is none."""
        waits = [
            (record.breaker.retry_ns, key)
            for key, record in self._records.items()
            if record.breaker.is_open and not record.is_barred and key.accelerator not in self.gone
        ]
        return min(waits, default=(NEVER_NS, None))

    def degraded(self, model: str, version: str, epoch_s: float) -> str:
        """Return which candidates of a version are out, why, and when each is tried again; "" if none is.

        `epoch_s`: wall clock at 0 of the monotonic clock.
        """
        return "; ".join(
            f"{key.place[0]} on {key.accelerator} is out: {self.obstacle(key)}; {self._until(key, record, epoch_s)}"
            for key, record in self._records.items()
            if key[:2] == (model, version) and self.obstacle(key)
        )

    def _until(self, key: CandidateKey, record: CandidateRecord, epoch_s: float) -> str:
        if key.accelerator in self.gone:
            return "tried again when it is back"
        if record.is_barred:
            return "tried again after a load of the model, or a restart"
        at = datetime.fromtimestamp(epoch_s + record.breaker.retry_ns / SECOND_NS, timezone.utc)
        return f"tried again at {at.isoformat(timespec='seconds')}"

    def _breaker(self) -> Breaker:
        settings = self.settings
        first_ns, window_ns = int(settings.retry_s * 1e9), int(settings.window_s * 1e9)
        return Breaker(settings.failures, first_ns, window_ns=window_ns, probation=PROBATION_WAITS)


def spare(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that may serve: those that passed, and those that are not tried yet."""
    return [each for each in candidates if each.passed] + [*untried(candidates)]
