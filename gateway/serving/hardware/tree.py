"""Bounded reader of a root directory: it never leaves the root, opens a device node or raises OSError."""

from __future__ import annotations

import itertools
import os
import re
import stat
from pathlib import Path

from gateway.serving.hardware.settings import HardwareSettings

GROUP_READ_WRITE = 0o060
OTHERS_READ_WRITE = 0o006
READ = 0o044
OVERFLOW_GROUP = 65534
"""Group that a user namespace shows for a group of the host that it has no number for."""
FLAT_LINK_BYTES = 1024
FLAT_LINK = re.compile(r"\.\.(?:/[\x21-\x7e]*)?|/(?:sys|proc|dev|etc)/[\x21-\x7e]+")
"""Content of a file that replaces a link in archives and checkouts without links: the target, without a line end."""


class Tree:
    """Files under `root`, by absolute path without the root ("/sys/class/drm"). Unreadable files are None or empty.

    `live`: the root is this machine's own.
    """

    def __init__(self, root: Path, settings: HardwareSettings | None = None) -> None:
        self.settings = settings or HardwareSettings()
        self._root = os.path.realpath(root).rstrip("/")
        self.live = self._root == ""

    def resolve(self, path: str) -> str | None:
        """Return the path with every link followed inside the root, or None if it is absent, loops or dangles.

        Absolute link targets start at the root again, and ".." stops at it, as after a chroot.
        """
        pending, done = _parts(path)[::-1], list[str]()
        hops = self.settings.link_hops_max
        while pending:
            part = pending.pop()
            if part == "..":
                del done[-1:]
                continue
            try:
                target = self._link_target([*done, part])
            except (OSError, ValueError):
                return None
            if target is None:
                done.append(part)
                continue
            hops -= 1
            if hops < 0:
                return None
            done = [] if target.startswith("/") else done
            pending += _parts(target)[::-1]
        return "/" + "/".join(done)

    def status(self, path: str) -> os.stat_result | None:
        """Return the lstat result of the resolved path."""
        found = self.resolve(path)
        try:
            return None if found is None else os.lstat(self._host(found))
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        """Return True if the path exists once links are followed."""
        return self.status(path) is not None

    def is_directory(self, path: str) -> bool:
        """Return True if the path is a directory."""
        found = self.status(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def names(self, path: str) -> tuple[str, ...]:
        """Return printable names in a directory, sorted; () if there is none or it may not be listed."""
        found = self.resolve(path)
        if found is None:
            return ()
        try:
            with os.scandir(self._host(found) or "/") as entries:
                bounded = itertools.islice(entries, self.settings.entries_max)
                return tuple(sorted(entry.name for entry in bounded if entry.name.isprintable()))
        except OSError:
            return ()

    def read_text(self, path: str, limit_bytes: int | None = None) -> str | None:
        """Return the content of a regular file; None for another kind, or if it is unreadable or too long.

        Bytes that are no UTF-8 become U+FFFD; NULs stay.
        """
        limit = self.settings.attribute_bytes if limit_bytes is None else limit_bytes
        found = self.resolve(path)
        if found is None:
            return None
        try:
            content = self._read(self._host(found), limit + 1)
        except OSError:
            return None
        return None if content is None or len(content) > limit else content.decode("utf-8", "replace")

    def line(self, path: str) -> str | None:
        """Return an attribute as one printable line, shortened to the limit; None if it is empty."""
        text = self.read_text(path)
        return None if text is None else self._printable(text) or None

    def strings(self, path: str) -> tuple[str, ...]:
        """Return NUL-separated strings, as a device tree holds them."""
        text = self.read_text(path) or ""
        return tuple(found for found in map(self._printable, text.split("\0")) if found)

    def integer(self, path: str) -> int | None:
        """Return a decimal attribute."""
        text = self.line(path)
        return int(text) if text and re.fullmatch(r"[+-]?[0-9]{1,20}", text) else None

    def hexadecimal(self, path: str) -> str | None:
        """Return a hexadecimal attribute in lower case without "0x" ("0x8086" and "8086" give "8086")."""
        text = (self.line(path) or "").lower().removeprefix("0x")
        return text if re.fullmatch(r"[0-9a-f]{1,16}", text) else None

    def link_name(self, path: str) -> str | None:
        """Return the last part of a link's own target, even if the target is absent: a driver's name."""
        parent, _, name = path.rpartition("/")
        found = self.resolve(parent or "/")
        try:
            target = None if found is None else self._link_target([*_parts(found), name])
        except (OSError, ValueError):
            return None
        return self._printable(target.rstrip("/").rpartition("/")[2]) or None if target else None

    def may_open(self, path: str) -> bool:
        """Return True if a device node may be opened for reading and writing.

        On the live root the running user's rights decide, under another root `grants`.
        """
        found = self.status(path)
        if found is None:
            return False
        if self.live:
            effective = os.access in os.supports_effective_ids
            return os.access(self.resolve(path) or path, os.R_OK | os.W_OK, effective_ids=effective)
        return grants(found.st_mode, found.st_gid)

    def _host(self, path: str) -> str:
        return self._root + path

    def _link_target(self, parts: list[str]) -> str | None:
        host = self._host("/" + "/".join(parts))
        status = os.lstat(host)
        if stat.S_ISLNK(status.st_mode):
            return str(Path(host).readlink())
        if self.live or not (stat.S_ISREG(status.st_mode) and 1 < status.st_size <= FLAT_LINK_BYTES):
            return None
        try:
            content = self._read(host, FLAT_LINK_BYTES) or b""
        except OSError:
            return None  # a file that may not be read exists nevertheless
        text = content.decode("ascii", "replace")
        return text if FLAT_LINK.fullmatch(text) else None

    def _read(self, host: str, size_bytes: int) -> bytes | None:
        if not stat.S_ISREG(os.lstat(host).st_mode):
            return None  # opening a node or a FIFO can have effects or block forever
        descriptor = os.open(host, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(size_bytes)

    def _printable(self, text: str) -> str:
        words = "".join(letter if letter.isprintable() else " " for letter in text).split()
        return " ".join(words)[: self.settings.text_chars]


def grants(mode: int, group_id: int) -> bool:
    """Return True if the mode bits open a node to a service, which is in no group of root and not in the overflow one.

    Plain files replace nodes in copied trees, and archives keep no write bits for them: reading is enough.
    """
    wanted = [bits & READ if stat.S_ISREG(mode) else bits for bits in (GROUP_READ_WRITE, OTHERS_READ_WRITE)]
    by_group = mode & wanted[0] == wanted[0] and group_id not in {0, OVERFLOW_GROUP}
    return by_group or mode & wanted[1] == wanted[1]


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]
