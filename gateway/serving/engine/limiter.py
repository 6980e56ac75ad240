"""Threads of the device, divided among models that run at the same time.

Start-time fair queueing (Goyal, Vin, Cheng 1996): the model that has consumed least goes next. A model that was idle
re-enters at the others' position. `ThreadShares` decides on values; `Limiter` blocks threads until their turn.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class ModelUse:
    """Use of processors by all runs of one model: time × threads consumed so far, and how many of them run now.

    `kept_until_ns`: its threads are kept free of other models' further runs until then (monotonic).
    """

    consumed_ns: int = 0
    running: int = 0
    kept_until_ns: int = 0


@dataclass(slots=True, eq=False)
class Share:
    """Claim of one run at a time: its `threads` (0: it runs on an accelerator), and the model that it belongs to."""

    threads: int
    use: ModelUse = field(default_factory=ModelUse)
    asked: bool = False
    running: bool = False
    granted: threading.Event = field(default_factory=threading.Event)

    @property
    def consumed_ns(self) -> int:
        """Return the time × threads that the model has consumed so far."""
        return self.use.consumed_ns

    def peer(self) -> Share:
        """Return a share for another run of the same model at the same time."""
        return Share(self.threads, self.use)


class ThreadShares:
    """Choice of the models that may run now. A run that needs more threads than there are takes them all.

    The first run of each model has its turn as if no model ran more than one at a time: further runs get only threads
    that are left, and delay no other model. They may overlap with its first run until they end. So that this is rare, a
    model keeps its threads for as long after a run as that took: it is busy if its next request comes within that time.
    """

    def __init__(self, threads: int) -> None:
        self.threads = self.free = threads
        self.further = 0
        """Threads of further runs. `free` counts first runs only."""
        self.waiting: list[Share] = []
        self.retry_ns = 0
        """Time at which to call `grant`, because threads that a waiting run needs are kept until then; 0: not."""
        self._clock_ns = 0
        self._kept: dict[ModelUse, int] = {}

    def ask(self, share: Share, now_ns: int = 0) -> list[Share]:
        """Request a run. Return the shares that may begin now."""
        share.use.consumed_ns = max(share.use.consumed_ns, self._clock_ns)
        self.waiting.append(share)
        return self.grant(now_ns)

    def end(self, share: Share, ran_ns: int, *, again: bool, now_ns: int = 0) -> list[Share]:
        """End a run, and request the next one if `again`. Return the shares that may begin now.

        Both happen in one step. Otherwise a model that always has work would lose its place to any waiting model.
        Models with short runs would get as many of them as other models get long ones.
        """
        if share.running:  # else it was abandoned
            share.running, needs = False, self._needs(share)
            share.use.running -= 1
            if share.use.running:  # a further run of the model becomes its first one
                self.further -= needs
            else:
                self.free += needs
                share.use.kept_until_ns, self._kept[share.use] = now_ns + ran_ns, needs
            share.use.consumed_ns += ran_ns * needs
        return self.ask(share, now_ns) if again else self.grant(now_ns)

    def insist(self, share: Share) -> bool:
        """Run although there are too few threads. Return False if the run was granted in the meantime."""
        if share not in self.waiting:
            return False
        self._begin(share)
        return True

    def begin_if_free(self, share: Share) -> bool:
        """Begin a run if it delays no other. Return False if there are too few threads, or another share waits."""
        if self.waiting or self._needs(share) > self.free - self.further:
            return False
        self.waiting.append(share)
        self._begin(share)
        return True

    def grant(self, now_ns: int) -> list[Share]:
        """Grant runs, the least served model first, and further runs after all others.

        No share overtakes it, so that a run that needs many threads gets its turn.
        """
        granted: list[Share] = []
        self.retry_ns = 0
        while self.waiting:
            first = [share for share in self.waiting if not share.use.running]
            share = min(first or self.waiting, key=lambda each: each.use.consumed_ns)
            left = self.free - (0 if first else self.further) - self._needs(share)
            if left < 0:
                break
            if not first and left < self._kept_threads(now_ns):
                self.retry_ns = min(use.kept_until_ns for use in self._kept)
                break
            self._begin(share)
            granted.append(share)
        return granted

    def _kept_threads(self, now_ns: int) -> int:
        self._kept = {use: needs for use, needs in self._kept.items() if now_ns < use.kept_until_ns}
        return sum(self._kept.values())

    def _begin(self, share: Share) -> None:
        self.waiting.remove(share)
        self._kept.pop(share.use, None)
        share.running, needs = True, self._needs(share)
        if share.use.running:
            self.further += needs
        else:
            self.free -= needs
        share.use.running += 1
        self._clock_ns = max(self._clock_ns, share.use.consumed_ns)

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
        end_ns = time.monotonic_ns() + int(self.wait_s * 1e9)
        if not share.asked:
            with self._lock:
                self._wake(self._shares.ask(share, time.monotonic_ns()), share)
        while not share.running:  # `granted` may be left from an earlier grant
            until_ns = min(end_ns, self._shares.retry_ns or end_ns)
            if not share.granted.wait(max(0, until_ns - time.monotonic_ns()) / 1e9):
                with self._lock:
                    self._wake(self._shares.grant(time.monotonic_ns()), share)
                    if time.monotonic_ns() >= end_ns:
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
                self._wake(self._shares.end(share, ran_ns, again=again, now_ns=time.monotonic_ns()), share)

    def abandon(self, share: Share) -> None:
        """Release the threads of a run that does not end, also if it ends later."""
        with self._lock:
            if share.running:
                self._wake(self._shares.end(share, 0, again=False, now_ns=time.monotonic_ns()), share)

    def _wake(self, granted: list[Share], own: Share) -> None:
        for share in granted:
            if share is not own:  # else it is the calling thread
                share.granted.set()
        if self._shares.retry_ns:
            self._shares.waiting[0].granted.set()  # any thread that waits can do it
