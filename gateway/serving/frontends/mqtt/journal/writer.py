"""File of the journal, and the thread that writes it in groups: one write and one sync for each.

A group is what came within `commit_s` of the last sync. It ends earlier when `group` callers wait: a broker that has
`group` messages in flight may send no more before it has their acknowledgements.

A write that fails (a full disk) is repeated until it succeeds. Until then nothing is committed, so that messages stay
unacknowledged and the broker keeps them.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.common.files import durable

_LOG = logging.getLogger(__name__)
FILE_MODE = 0o600
Committed = Callable[[], object]
Make = Callable[[], bytes]
"""Function that makes the content of a file, on the thread."""
Report = Callable[[OSError | None], None]
"""Callback with the error of a failed write, and with None once writing succeeds again; on the event loop."""


@dataclass(frozen=True, slots=True)
class CommitRhythm:
    """Times of the journal's writes: least time between two syncs, callers that end it, time before a repetition."""

    commit_s: float
    group: int
    retry_s: float


@dataclass(frozen=True, slots=True)
class _Frame:
    content: bytes
    committed: Committed | None = None
    make: Make | None = None
    """Function that makes the whole new file."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Frames that are written together: the whole new file if there is one, and what follows it."""

    whole: bytes | None
    rest: bytes
    committed: list[Committed]


class JournalWriter:
    """Thread that appends frames to `file`, and syncs them in groups. All methods belong to the event loop.

    `rhythm` says when to write. Raises OSError if the file cannot be opened.
    """

    def __init__(self, file: Path, rhythm: CommitRhythm, loop: AbstractEventLoop, report: Report) -> None:
        self._file, self._rhythm = file, rhythm
        self._loop, self._report = loop, report
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        self._end = os.fstat(self._descriptor).st_size
        self._queue: list[_Frame] = []
        self._callers = 0
        """Frames in the queue whose caller waits."""
        self._synced_s = -math.inf  # not 0: the monotonic clock of a machine that has just started is near it
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mqtt-journal", daemon=True)
        self._thread.start()

    def append(self, content: bytes, committed: Committed | None = None, make: Make | None = None) -> None:
        """Append frames. `committed` is called on the event loop once they are on the disk."""
        with self._changed:
            self._queue.append(_Frame(content, committed, make))
            self._callers += committed is not None
            if len(self._queue) == 1 or self._callers >= self._rhythm.group:
                self._changed.notify()

    def replace(self, make: Make, committed: Committed | None = None) -> None:
        """Replace the whole file by what `make` returns, atomically. It must contain what was appended before."""
        self.append(b"", committed, make)

    def close(self) -> None:
        """Write what waits, and close the file. Blocks; a write that fails is given up."""
        with self._changed:
            self._closing.set()
            self._changed.notify()
        self._thread.join()
        os.close(self._descriptor)

    def _run(self) -> None:
        while frames := self._next():
            batch = _batch(frames)
            if not self._written(batch):
                return
            if batch.committed:
                self._tell(_all, batch.committed)
            self._synced_s = time.monotonic()

    def _next(self) -> list[_Frame]:
        with self._changed:
            while not (self._closing.is_set() or self._callers >= self._rhythm.group):
                wait_s = self._synced_s + self._rhythm.commit_s - time.monotonic() if self._queue else None
                if wait_s is not None and wait_s <= 0:
                    break
                self._changed.wait(wait_s)  # without a queue: until something comes
            batch, self._queue, self._callers = self._queue, [], 0
            return batch

    def _written(self, batch: _Batch) -> bool:
        """Write until it succeeds. Return False if it was given up, because the journal closes."""
        failed = False
        while True:
            try:
                self._write(batch)
            except OSError as error:
                failed = True
                self._tell(self._report, error)
                if self._closing.wait(self._rhythm.retry_s):
                    return False
            else:
                if failed:
                    self._tell(self._report, None)
                return True

    def _write(self, batch: _Batch) -> None:
        if batch.whole is not None:
            durable.write_file(self._file, batch.whole, FILE_MODE)
            # The name leads to a new file now; the open descriptor would still append to the old one.
            fresh = os.open(self._file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            os.close(self._descriptor)
            self._descriptor, self._end = fresh, len(batch.whole)
        if batch.rest:
            # The whole rest is written again after a failure, not only synced. The kernel reports a failed write-back
            # once and then counts the pages as clean (Rebello et al., USENIX ATC 2020); a part may be there, too.
            view, at = memoryview(batch.rest), self._end
            while view:
                written = os.pwrite(self._descriptor, view, at)
                view, at = view[written:], at + written
            os.fdatasync(self._descriptor)  # also of the size, which the next read needs; not of times (fdatasync(2))
            self._end = at

    def _tell(self, function: Callable[..., None], argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, argument)
        except RuntimeError:
            return  # the event loop is closed: there is no receiver any more


def _batch(frames: list[_Frame]) -> _Batch:
    whole: bytes | None = None
    begin = 0
    for index, frame in enumerate(frames):
        try:
            whole, begin = (whole, begin) if frame.make is None else (frame.make(), index + 1)
        except Exception:  # noqa: BLE001  the thread must go on, and the old file stays
            _LOG.exception("journal snapshot failed; report this traceback")
    rest = b"".join(frame.content for frame in frames[begin:])
    return _Batch(whole, rest, [frame.committed for frame in frames if frame.committed])


def _all(callbacks: list[Committed]) -> None:
    for callback in callbacks:
        callback()
