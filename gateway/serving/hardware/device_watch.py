"""Watch of the nodes of accelerators by inotify(7): a callback when one is gone, and when it is back.

The kernel makes and removes nodes in /dev itself (devtmpfs), which inotify reports without any right. Netlink's uevents
come only in the first network namespace, so not in containers.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from gateway.common.domain.inventory import Accelerator
from gateway.serving.hardware.probe import probe

DEV, USB = Path("/dev"), Path("/dev/bus/usb")
USB_SETTLE_S = 3.0
"""Time without the node of a USB device before it is gone: one that loads its firmware comes back as another device."""
EVENT_BYTES = 65_536
"""Bytes of events in one read."""
_ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF = 0x4, 0x40, 0x80, 0x100, 0x200, 0x400
_NAMES = _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF
_log = logging.getLogger(__name__)


class DeviceWatch:
    """Watch of accelerators with a node. Make it in a running loop.

    `changed` is called with a kind, its device, and whether that is there. One that is known by its address only is not
    watched: its runs fail then. A USB device has a new number after each connection, so any of its kind counts.
    """

    def __init__(self, accelerators: Iterable[Accelerator], changed: Callable[[str, str, bool], None]) -> None:
        self._changed, self._loop = changed, asyncio.get_running_loop()
        usable = [(Path(each.device), each.kind) for each in accelerators if each.usable]
        self._nodes = {node: kind for node, kind in usable if node.is_absolute() and node.exists()}
        self._there = dict.fromkeys(self._nodes, True)
        self._now = {node: node for node in self._nodes}
        """Node of each device now: a USB device has another one after each connection."""
        self._later: asyncio.TimerHandle | None = None
        self._finding: asyncio.Task[None] | None = None
        self._inotify = -1
        if not self._nodes:
            return
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._inotify < 0 or not self._watch():
            why = os.strerror(ctypes.get_errno())
            _log.warning("an accelerator that is gone is found by its failures only: no watch of /dev: %s", why)
        if self._inotify >= 0:
            self._loop.add_reader(self._inotify, self._read)

    def close(self) -> None:
        """Report nothing more."""
        if self._later is not None:
            self._later.cancel()
        if self._finding is not None:
            self._finding.cancel()
        if self._inotify >= 0:
            self._loop.remove_reader(self._inotify)
            os.close(self._inotify)

    def _watch(self) -> bool:
        """Watch the folders that there are, also new ones. Return False if one cannot be watched."""
        folders = {folder for node in self._nodes for folder in self._folders(node) if folder.is_dir()}
        added = [self._libc.inotify_add_watch(self._inotify, os.fsencode(each), _NAMES) >= 0 for each in folders]
        return all(added)

    @staticmethod
    def _folders(node: Path) -> list[Path]:
        """Return the folders in which a node may come back, and those above them, which a driver may make again."""
        above = [each for each in node.parents[1:] if each.is_relative_to(DEV)]
        return [node.parent, *above, *(USB.glob("*/") if USB in node.parents else ())]

    def _read(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._inotify, EVENT_BYTES)
        self._watch()
        for node in self._nodes:
            if USB not in node.parents:
                self._report(node, node.exists())
        if self._later is None and any(USB in node.parents for node in self._nodes):
            self._later = self._loop.call_later(USB_SETTLE_S, self._find)

    def _find(self) -> None:
        self._later, self._finding = None, self._loop.create_task(self._find_usb())

    async def _find_usb(self) -> None:
        """Look for USB devices whose nodes are gone, in a thread: that reads many files."""
        found: list[Accelerator] | None = None
        for node, kind in self._nodes.items():
            if USB not in node.parents:
                continue
            if not self._now[node].exists():
                if found is None:
                    found = [*(await asyncio.to_thread(probe, Path("/"))).accelerators]
                devices = [Path(each.device) for each in found if each.kind == kind]
                self._now[node] = next(iter(devices), node)
            self._report(node, self._now[node].exists())

    def _report(self, node: Path, there: bool) -> None:
        if there != self._there[node]:
            self._there[node] = there
            self._changed(self._nodes[node], str(node), there)
