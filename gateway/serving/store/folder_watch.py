"""Watch of model directories by inotify(7): a callback once they have changed and no file is being written any more."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import select
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from gateway.common.domain.model_files import is_hidden

SETTLE_S = 2.0
"""Time without a change after which a change is reported."""
OPEN_S = 60.0
"""The same while a file that was written to is open: a copy over a network may pause."""
LONGEST_S = 600.0
"""Time after which a change is reported although there are always new ones."""
LOOK_S = 60.0
"""Time between two looks at the folders where the kernel gives no watches."""
MOST_FOLDERS = 2048
"""Most folders that are watched."""
EVENT_BYTES = 65_536
"""Bytes of events in one read."""

_MODIFY, _ATTRIB, _CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x8, 0x40, 0x80, 0x100, 0x200
_SELF, _ONLYDIR, _MASK_ADD, _ISDIR = 0x400 | 0x800, 0x1000000, 0x20000000, 0x40000000
_NAMES = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ATTRIB | _SELF | _ONLYDIR | _MASK_ADD
"""Changes of names and modes, which are all that counts in the folder above a model directory."""
MOST_LINKS = 40
"""Most links on the way to a folder, as for the kernel."""
_EVENT = struct.Struct("iIII")

_Watched = dict[int, tuple[Path, set[str] | None]]
_log = logging.getLogger(__name__)


class FolderWatch:
    """Watch of folders that may be absent, replaced, or mounted later. Make it in a running loop."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed, self._loop = changed, asyncio.get_running_loop()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._folders: Sequence[Path] = ()
        self._watched: _Watched = {}
        """Folders by watch, with the names that count in them (None: all)."""
        self._written: set[tuple[int, str]] = set()
        self._first_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._problem = ""
        """Reason for which the last walk could not watch everything ("": it could)."""
        self._is_stale = False
        """True if there may be folders that are not watched yet."""
        self._catching_up: asyncio.Task[None] | None = None
        self._walking = asyncio.Lock()
        self._inotify = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lack = ctypes.get_errno() if self._inotify < 0 else 0
        if not self._lack:
            self._loop.add_reader(self._inotify, self._read)
        # inotify does not report a mount over a folder. mountinfo has an exceptional condition then (proc(5)), which
        # one poll sees and no other: it is lost where asyncio's epoll is within another one, as in a `DirectLoop`.
        self._mountinfo, self._ended = os.open("/proc/self/mountinfo", os.O_CLOEXEC), os.eventfd(0)
        self._mounts = threading.Thread(target=self._await_mounts, name="mounts", daemon=True)
        self._mounts.start()

    def close(self) -> None:
        """Report nothing more."""
        for pending in (self._timer, self._looking, self._catching_up):
            if pending is not None:
                pending.cancel()
        os.eventfd_write(self._ended, 1)
        self._mounts.join()
        os.close(self._mountinfo)
        os.close(self._ended)
        if not self._lack:
            self._loop.remove_reader(self._inotify)
            os.close(self._inotify)

    async def follow(self, folders: Sequence[Path]) -> bool:
        """Watch these folders as they are now; wait for it before they are read. Return True if the watches changed."""
        async with self._walking:
            self._folders, self._is_stale, self._problem = folders, False, ""
            before, self._watched = self._watched.keys(), await asyncio.to_thread(self._watch_all, folders)
            for watch in before - self._watched.keys():
                self._libc.inotify_rm_watch(self._inotify, watch)
            self._look_instead()
            return before != self._watched.keys()

    def _watch_all(self, folders: Sequence[Path]) -> _Watched:
        """Watch everything, on a thread: a disk may not answer."""
        watched: _Watched = {}
        for path in {path for folder in folders for path in _places(folder)}:
            above = next(each for each in (*path.parents, path) if os.path.isdir(each))  # noqa: PTH112  never raises
            self._add(watched, above, _NAMES, path.relative_to(above).parts[:1])
        self._walk(watched, folders)
        return watched

    def _walk(self, watched: _Watched, folders: Sequence[Path]) -> None:
        """Watch folders and those in them, those behind links too."""
        rest = [*folders]
        while rest:
            if self._add(watched, place := rest.pop(), _NAMES | _MODIFY | _CLOSE_WRITE, None):
                with suppress(OSError), os.scandir(place) as entries:  # after the watch: what is made later is an event
                    rest += [Path(each) for each in entries if not is_hidden(each.name) and os.path.isdir(each)]  # noqa: PTH112

    def _catch_up(self) -> None:
        self._is_stale = True
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = self._loop.create_task(self._follow_again(), name="watch")

    async def _follow_again(self) -> None:
        """Watch what is new, and report that after it is watched."""
        while self._is_stale:
            if await self.follow(self._folders):
                self._wait()

    def _add(self, watched: _Watched, folder: Path, mask: int, names: Sequence[str] | None) -> bool:
        """Watch one folder. Return False if all of its names are watched already, as where a link leads back."""
        if self._lack or len(watched) >= MOST_FOLDERS:
            self._problem = os.strerror(self._lack) if self._lack else f"there are more than {MOST_FOLDERS} folders"
            return False
        watch = self._libc.inotify_add_watch(self._inotify, os.fsencode(folder), mask)
        if watch < 0:
            if ctypes.get_errno() in {errno.ENOSPC, errno.ENOMEM}:
                self._problem = "the kernel gives no more watches"
            return False  # or it is gone again, or not readable: the scan reports that
        _, known = watched.get(watch, (folder, set()))
        watched[watch] = folder, None if names is None or known is None else {*known, *names}
        return known is not None

    def _look_instead(self) -> None:
        """Look at the folders, too, as long as not all of them are watched."""
        if self._problem and self._looking is None:
            remedy = "raise fs.inotify.max_user_watches or max_user_instances by sysctl, or reload after a change"
            _log.warning("changes of models are found after %g s: %s; %s", 2 * LOOK_S, self._problem, remedy)
            self._looking = self._loop.create_task(self._look(), name="look")
        elif not self._problem and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look(self) -> None:
        """Report a change that two looks in a row have found: a file may be being written."""
        served = last = 0
        while True:
            await asyncio.sleep(LOOK_S)
            now = await asyncio.to_thread(_fingerprint, self._folders)
            if now == last != served:
                served = now
                self._changed()
            last = now

    def _await_mounts(self) -> None:
        poll = select.poll()
        poll.register(self._mountinfo, select.POLLPRI)
        poll.register(self._ended, select.POLLIN)
        while self._ended not in dict(poll.poll()):
            self._loop.call_soon_threadsafe(self._mounted)

    def _mounted(self) -> None:
        if self._mounts.is_alive():  # else it was closed meanwhile
            self._catch_up()

    def _read(self) -> None:
        """Read events. Names that are hidden from the scan do not count."""
        events, start, counts = b"", 0, False
        with suppress(BlockingIOError):
            events = os.read(self._inotify, EVENT_BYTES)
        while start < len(events):
            watch, mask, _, length = _EVENT.unpack_from(events, start)
            start += _EVENT.size + length
            name = os.fsdecode(events[start - length : start].rstrip(b"\0"))
            folder, names = self._watched.get(watch, (None, set()))
            is_added = folder is None and self._walking.locked()  # a folder that is watched in a moment
            is_other = folder is None or is_hidden(name) or (names is not None and name not in {"", *names})
            if watch >= 0 and is_other and not is_added:
                continue
            counts = True
            if mask & _MODIFY and not mask & _ISDIR:  # on a folder, its time was set
                self._written.add((watch, name))
            elif not mask & _ATTRIB:
                self._written.discard((watch, name))
            if is_added or (mask & _ISDIR and mask & (_CREATE | _MOVED_TO)):
                self._catch_up()
        if counts:
            self._wait()

    def _wait(self) -> None:
        """Report the change when nothing has changed for a while."""
        if self._timer is not None:
            self._timer.cancel()
        now_s = self._loop.time()
        self._first_s = now_s if self._first_s is None else self._first_s
        due_s = min(now_s + (OPEN_S if self._written else SETTLE_S), self._first_s + LONGEST_S)
        self._timer = self._loop.call_at(due_s, self._report)

    def _report(self) -> None:
        self._timer = self._first_s = None
        self._written.clear()
        self._changed()


def _places(folder: Path) -> set[Path]:
    """Return the paths that decide where a folder is: its own, each link on the way, and what each leads to."""
    place, found = folder.absolute(), {Path(os.path.realpath(folder))}
    for _ in range(MOST_LINKS):
        link = next((each for each in (*reversed(place.parents), place) if os.path.islink(each)), None)  # noqa: PTH114  never raises
        found |= {place, link or place}
        if link is None:
            break
        with suppress(OSError):
            place = Path(os.path.normpath(link.parent / os.readlink(link))) / place.relative_to(link)  # noqa: PTH115
    return found


def _fingerprint(folders: Sequence[Path]) -> int:
    """Return a number that changes with any file of the folders."""
    found = []
    for folder in folders:
        for place, _, files in os.walk(folder):
            for name in files:
                with suppress(OSError):
                    status = Path(place, name).stat()
                    found.append((place, name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode))
    return hash(tuple(found))
