"""Bounded queue of work that waits for inference, in order of arrival. Pure: no I/O."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Job = TypeVar("Job")


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
