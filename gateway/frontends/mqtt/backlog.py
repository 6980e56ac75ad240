"""Work that waits for inference: in order, bounded, with the right thing given up. Pure."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Job = TypeVar("Job")


class Backlog(Generic[Job]):
    """QoS 1 work is never dropped: `full` says that no more should be read. Of QoS 0 the oldest goes."""

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
        """Whether as much QoS 1 work waits or runs as may."""
        return len(self._sure) + self._running_sure >= self._max_queued

    def put(self, job: Job, qos: int) -> Job | None:
        """Add `job`; the QoS 0 job that was dropped for it, if any."""
        self._count += 1
        (self._sure if qos else self._unsure).append((self._count, job))
        return self._unsure.popleft()[1] if len(self._unsure) > self._max_queued else None

    def take(self) -> tuple[Job, int] | None:
        """The oldest job and its QoS, now running; None where none waits or enough run."""
        if self.running >= self._max_running or not (self._sure or self._unsure):
            return None
        sure = bool(self._sure) and (not self._unsure or self._sure[0][0] < self._unsure[0][0])
        self.running += 1
        self._running_sure += sure
        return (self._sure if sure else self._unsure).popleft()[1], int(sure)

    def done(self, qos: int) -> None:
        """A job that was taken has ended."""
        self.running -= 1
        self._running_sure -= bool(qos)

    def close(self) -> None:
        """Give up all that waits."""
        self._sure.clear()
        self._unsure.clear()
