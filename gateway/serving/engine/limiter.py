"""Threads of the device, divided among models that run at the same time.

Start-time fair queueing (Goyal, Vin, Cheng 1996): the model that has consumed least goes next. A model that was idle
re-enters at the others' position. `ThreadShares` decides on values; `Limiter` blocks threads until their turn.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Share:
    """Claim of one model: `threads` per run (0: it runs on an accelerator), time × threads consumed so far."""

    threads: int
    consumed_ns: int = 0
    asked: bool = False
    running: bool = False
    granted: threading.Event = field(default_factory=threading.Event)


class ThreadShares:
    """Choice of the models that may run now. A run that needs more threads than there are takes them all."""

    def __init__(self, threads: int) -> None:
        self.threads = self.free = threads
        self.waiting: list[Share] = []
        self._clock_ns = 0

    def ask(self, share: Share) -> list[Share]:
        """Request a run. Return the shares that may begin now."""
        share.consumed_ns = max(share.consumed_ns, self._clock_ns)
        self.waiting.append(share)
        return self._grant()

    def end(self, share: Share, ran_ns: int, *, again: bool) -> list[Share]:
        """End a run, and request the next one if `again`. Return the shares that may begin now.

        Both happen in one step. Otherwise a model that always has work would lose its place to any waiting model.
        Models with short runs would get as many of them as other models get long ones.
        """
        if share.running:  # else it was abandoned
            share.running = False
            self.free += self._needs(share)
            share.consumed_ns += ran_ns * self._needs(share)
        return self.ask(share) if again else self._grant()

    def insist(self, share: Share) -> bool:
        """Run although there are too few threads. Return False if the run was granted in the meantime."""
        if share not in self.waiting:
            return False
        self._begin(share)
        return True

    def begin_if_free(self, share: Share) -> bool:
        """Begin a run if it delays no other. Return False if there are too few threads, or another share waits."""
        if self.waiting or self._needs(share) > self.free:
            return False
        self.waiting.append(share)
        self._begin(share)
        return True

    def _grant(self) -> list[Share]:
        """Grant runs, the least served share first.

        No share overtakes it, so that a run that needs many threads gets its turn.
        """
        granted: list[Share] = []
        while self.waiting:
            share = min(self.waiting, key=lambda each: each.consumed_ns)
            if self._needs(share) > self.free:
                break
            self._begin(share)
            granted.append(share)
        return granted

    def _begin(self, share: Share) -> None:
        self.waiting.remove(share)
        share.running = True
        self.free -= self._needs(share)
        self._clock_ns = max(self._clock_ns, share.consumed_ns)

    def _needs(self, share: Share) -> int:
        return min(share.threads, self.threads)


class Limiter:
    """Limit of concurrent runs on the processor: each waits until its threads are free, but at most `wait_s`.

    A run that hangs must not stop other models permanently.
    """

    def __init__(self, threads: int, wait_s: float) -> None:
        self._shares, self.wait_s = ThreadShares(threads), wait_s
        self._lock = threading.Lock()

    def enter(self, share: Share) -> None:
        """Return when the share's model may run. Called by its worker's thread."""
        if not share.threads:
            return
        if not share.asked:
            with self._lock:
                self._wake(self._shares.ask(share), share)
        while not share.running:  # `granted` may be left from an earlier grant
            if not share.granted.wait(self.wait_s):
                with self._lock:
                    self._shares.insist(share)
            share.granted.clear()
        share.asked = False

    def enter_if_free(self, share: Share) -> bool:
        """Enter without waiting. Return False if other runs use or wait for the threads that it takes."""
        if not share.threads:
            return True
        with self._lock:
            return self._shares.begin_if_free(share)

    def leave(self, share: Share, ran_ns: int, *, again: bool) -> None:
        """End a run. With `again`, the next run is requested here, and `enter` follows at once."""
        if share.threads:
            with self._lock:
                share.asked = again
                self._wake(self._shares.end(share, ran_ns, again=again), share)

    def abandon(self, share: Share) -> None:
        """Release the threads of a run that does not end, also if it ends later."""
        with self._lock:
            if share.running:
                self._wake(self._shares.end(share, 0, again=False), share)

    @staticmethod
    def _wake(granted: list[Share], own: Share) -> None:
        for share in granted:
            if share is not own:  # else it is the calling thread
                share.granted.set()
