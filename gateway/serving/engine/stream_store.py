"""Streams of all pipelines and models, by what may go on with them, and their way over a restart.

States whose declaration says `keep_on_disk` are written as the gateway ends. Those of pipelines are written every
30 s as well, while they change: after a kill they are as old as that. A sequence has none after a kill: its client
had answers that an older state does not know, and learns by a refusal that it must begin again.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from gateway.common.domain.errors import UnreachableError
from gateway.common.domain.manifest import StreamLimits
from gateway.common.domain.manifest_toml import IDLE_LIMIT_S
from gateway.common.files.durable import make_folder, remove_file, sweep
from gateway.common.files.locks import sole_writer
from gateway.serving.engine.streams import Streams, StreamState

PAUSE_S = 0.001
"""Pause after some streams that are written meanwhile: requests run then."""
READ_BYTES = 2**28
"""Most bytes of all files that a start reads."""
SUFFIX, LOCK_FILE, FOLDER_MODE = ".streams", "streams.lock", 0o700
REMEDY = "stop it, or give this gateway a folder of its own with --state"
_log = logging.getLogger(__name__)


class StreamStore:
    """Streams by owner. Their targets hold them. On the event loop.

    `folder`: of the files; None: there is no disk for them. `kinds` returns the classes of states.
    """

    save_s: ClassVar[float] = 30.0
    """Time from a change of a state until it is written: what a kill may lose."""

    def __init__(self, folder: Path | None = None, kinds: Callable[[], Sequence[type[Any]]] = tuple) -> None:
        self._folder, self._kinds = folder, kinds
        self._live = WeakValueDictionary[tuple[str, ...], Streams]()
        self._found = dict[tuple[str, ...], Streams]()
        """Streams of the files that no target has claimed yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._problems = dict[tuple[str, ...], str]()
        self._lock, self._is_open, self._obstacle = ExitStack(), False, "the state is not on a disk (EG-210)"

    def of(self, owner: tuple[str, ...], limits: StreamLimits, *, often: bool = False) -> Streams:
        """Return the streams of an owner, whose first part is a name. `often`: they are written while they change."""
        if (streams := self._live.get(owner)) is None:
            if (streams := self._found.pop(owner, None)) is not None:
                _log.info("%d streams of %s go on after the restart", len(streams), owner[0])
            elif any(other[0] == owner[0] for other in self._found):
                _log.info("streams of %s begin again: those on the disk are of another release of it", owner[0])
            streams = self._live[owner] = Streams(limits) if streams is None else streams
        streams.limits = limits
        if limits.keep_on_disk and often:
            streams.changed = self._changed
        if limits.keep_on_disk and self._opened() is None:
            self._note(owner, f"not kept over a restart: {self._obstacle}")
        return streams

    @property
    def problem(self) -> str:
        """Return why states are not kept, for operators; "" if they are."""
        return "; ".join(f"states of {owner[0]}: {words}" for owner, words in self._problems.items())

    async def read(self) -> None:
        """Read the files, before the first target. What no target claims is forgotten in its time."""
        if self._folder is None or not self._folder.is_dir() or (folder := self._opened()) is None:
            return
        self._reading = asyncio.create_task(self._found_in(folder), name="streams of the disk")
        await asyncio.shield(self._reading)  # files that were read are removed: a stop must not lose their states

    async def _found_in(self, folder: Path) -> None:
        try:
            self._found = await asyncio.to_thread(lambda: dict(self._read(folder)))
        except OSError as error:
            _log.warning("states of streams cannot be read, and begin again: %s", error)
        for streams in self._found.values():
            streams.look()

    async def close(self) -> None:
        """Write all states, after the last request."""
        if self._timer is not None:
            self._timer.cancel()
        if tasks := {task for task in (self._reading, self._saving) if task is not None}:
            await asyncio.wait(tasks)
        await self._save(is_final=True)
        self._lock.close()

    def _opened(self) -> Path | None:
        """Return the folder, of which this process is the only writer, or None: `_obstacle` says why."""
        if self._folder is not None and not self._is_open:
            try:
                make_folder(self._folder, FOLDER_MODE)
                self._lock.enter_context(sole_writer(self._folder / LOCK_FILE, "edge-gateway", REMEDY))
                self._is_open = True
            except OSError as error:  # it may pass: the next save tries again
                self._obstacle = str(error)
            except UnreachableError as error:
                self._folder, self._obstacle = None, str(error)
        return self._folder if self._is_open else None

    def _changed(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.save_s, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(self._save(), name="streams")
        else:  # a slow disk
            self._changed()

    async def _save(self, *, is_final: bool = False) -> None:
        for owner, streams in [*self._live.items(), *self._found.items()]:
            if not streams.limits.keep_on_disk or not (is_final or streams.is_changed) or self._opened() is None:
                continue
            write = partial(self._write, owner, streams, streams.newest(), 0.0 if is_final else PAUSE_S)
            try:
                words = await asyncio.to_thread(write)
            except OSError as error:
                words = f"{error}{' (EG-209)' if error.errno == errno.ENOSPC else ''}"
            except Exception as error:  # noqa: BLE001  the states of others are written all the same
                words = f"{type(error).__name__}: {error}"
            self._note(owner, words)

    def _note(self, owner: tuple[str, ...], words: str) -> None:
        """Note why states are not kept, or "", and log a change."""
        before = self._problems.pop(owner, "")
        if words:
            self._problems[owner] = words
        if words != before:
            level = logging.WARNING if words else logging.INFO
            _log.log(level, "states of %s: %s", owner[0], words or "kept on the disk")

    def _file(self, owner: tuple[str, ...]) -> Path:
        return Path(self._folder or "", f"{owner[0]}-{hashlib.sha256(repr(owner).encode()).hexdigest()[:16]}{SUFFIX}")

    def _write(self, owner: tuple[str, ...], streams: Streams, newest: Sequence[StreamState], pause_s: float) -> str:
        """Write a file on a thread. Return what is left out of it. Raises OSError."""
        from gateway.serving.engine.stream_files import FILE_BYTES, FORMAT, FileHeader, write_streams

        file, often = self._file(owner), streams.changed is not None
        if not newest:
            remove_file(file)
            return ""
        header = FileHeader(FORMAT, owner, streams.limits, time.time(), time.monotonic(), often)
        left = write_streams(file, header, newest, pause_s)
        return f"{left} of {len(newest)} do not fit into {FILE_BYTES} bytes, or the disk (EG-209)" if left else ""

    def _read(self, folder: Path) -> Iterator[tuple[tuple[str, ...], Streams]]:
        """Yield the streams of the files, on a thread. Remove files that are not read again. Raises OSError."""
        from gateway.serving.engine.stream_files import read_streams

        sweep(folder)
        found = [(file.stat(), file) for file in folder.glob(f"*{SUFFIX}")]
        left = READ_BYTES
        for state, file in sorted(found, key=lambda each: -each[0].st_mtime):
            left -= state.st_size
            words, is_over = "", time.time() - state.st_mtime > IDLE_LIMIT_S
            if left < 0 and not is_over:
                words = f"the files have more than {READ_BYTES} bytes"
            elif not is_over:
                try:
                    header, streams = read_streams(file, self._kinds())
                except (OSError, MemoryError, ImportError) as error:  # no fault of the file
                    _log.warning("%s cannot be read now, and its streams begin again: %s", file, error)
                    continue
                except Exception as error:  # noqa: BLE001  whatever a damaged file leads to
                    words = str(error) or type(error).__name__
                else:
                    yield header.owner, (made := Streams(header.limits, streams))
                    if header.often:
                        made.changed = self._changed
                        continue
            if words:
                _log.warning("%s is removed, and its streams begin again: %s", file, words)
            remove_file(file)
