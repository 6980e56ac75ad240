"""Listening sockets that outlive a process: over its own replacement (exec), and in the service manager's store.

Both pass them as sd_listen_fds(3) describes. The manager keeps them over a restart and a crash if the unit sets
FileDescriptorStoreMax and the variable FDSTORE, which systemd 254 and newer set themselves (sd_notify(3), FDSTORE=1).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import resource
import socket
from collections.abc import Iterable, MutableMapping
from pathlib import Path

from gateway.common.domain.access import Address
from gateway.common.notify import Notifier

FIRST = 3
"""First descriptor that is passed (SD_LISTEN_FDS_START)."""
MOST = 64
"""Most descriptors that are taken. FileDescriptorStoreMax of the unit is the same number."""

_log = logging.getLogger(__name__)


class KeptListeners:
    """Listening sockets of this process, for the next one. Until `inherit`, nothing is kept."""

    def __init__(self) -> None:
        self._kept: dict[str, socket.socket] = {}
        self._inherited: dict[str, socket.socket] = {}
        self._fixed: set[str] = set()
        """Names of inherited sockets whose ports are configured, so that they are not those of port 0."""
        self._paths: dict[str, bool] = {}
        """Paths of kept UNIX sockets; True: their owner has ended, and would have removed the file."""
        self._notifier: Notifier | None = None
        self._is_stored = False

    def inherit(self, environ: MutableMapping[str, str]) -> None:
        """Take what the previous process or the service manager passed; keep sockets from now on. Never raises."""
        pid, number = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
        names = environ.pop("LISTEN_FDNAMES", "").split(":")
        self._notifier = Notifier.from_environment(environ)
        self._is_stored = "NOTIFY_SOCKET" in environ and environ.get("FDSTORE", "0") != "0"
        if pid != str(os.getpid()) or not number.isdecimal():
            return
        for index in range(min(int(number[:9]), MOST)):  # int() refuses thousands of digits
            name = names[index] if index < len(names) else ""
            given = _received(FIRST + index)
            if given is None or self._inherited.setdefault(name, given) is not given:
                self._discard(name, given, f"descriptor {FIRST + index} is no listening socket, or its name came twice")

    def retain(self, wanted: Iterable[tuple[str, Address]]) -> None:
        """Keep inherited sockets of these tables' addresses; close the others, before anything listens."""
        there = self._inherited
        self._inherited = {}
        for table, address in sorted(wanted, key=lambda each: _is_any(each[1])):
            for name, listener in there.items():
                if _fits(listener, name, table, address):
                    self._inherited[name] = there.pop(name)
                    self._fixed |= set() if _is_any(address) else {name}
                    break
        for name, listener in there.items():
            place = listener.getsockname()
            self._discard(name, listener, f"{place} is not configured")
            if isinstance(place, str) and _is_own(place, name):
                _remove(place)

    def take(self, table: str, address: Address) -> socket.socket | None:
        """Return the inherited socket of an address, or None. The caller owns it."""
        for name, listener in self._inherited.items():
            if _fits(listener, name, table, address) and not (_is_any(address) and name in self._fixed):
                del self._inherited[name]
                self._keep(name, listener, address)
                return listener
        return None

    def keep(self, table: str, listener: socket.socket, address: Address) -> None:
        """Keep a new socket; the caller owns the one that it has."""
        if self._notifier is None:
            return
        # The name of a UNIX socket tells whether the path is still the socket's; that of another one is only unique.
        inode = Path(address.path).stat().st_ino if address.path else os.fstat(listener.fileno()).st_ino
        name = f"{table}-{inode}"
        self._keep(name, listener, address)
        if self._is_stored:
            self._notifier.store(name, listener.fileno())

    def unlink(self, path: str) -> None:
        """Remove a socket file, unless its socket is kept."""
        if path in self._paths:
            self._paths[path] = True
        else:
            _remove(path)

    def close(self) -> None:
        """Keep nothing: this process ends. The service manager keeps its copies, and then their files stay, too."""
        for listener in (*self._kept.values(), *self._inherited.values()):
            listener.close()
        self._kept.clear()
        self._inherited.clear()
        if not self._is_stored:
            ended = [path for path, has_ended in self._paths.items() if has_ended]
            self._paths.clear()
            for path in ended:
                self.unlink(path)

    def pass_on(self) -> dict[str, str]:
        """Close every descriptor but 0, 1, 2 and the kept sockets. Return variables that announce them after exec."""
        passed = {**self._inherited, **self._kept}
        above = FIRST + len(passed)
        copies = [fcntl.fcntl(listener.fileno(), fcntl.F_DUPFD, above) for listener in passed.values()]
        for index, copy in enumerate(copies):
            os.dup2(copy, FIRST + index)
        os.closerange(above, resource.getrlimit(resource.RLIMIT_NOFILE)[0])  # libraries do not mark all of theirs
        if not passed:
            return {}
        return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(passed)), "LISTEN_FDNAMES": ":".join(passed)}

    def _keep(self, name: str, listener: socket.socket, address: Address) -> None:
        self._kept[name] = listener.dup()
        if address.path:
            self._paths[address.path] = False

    def _discard(self, name: str, listener: socket.socket | None, reason: str) -> None:
        _log.warning("inherited listener %s is closed: %s", name or "without a name", reason)
        if listener is not None:
            listener.close()
        if self._is_stored and self._notifier is not None:
            self._notifier.unstore(name)


KEPT = KeptListeners()
"""Kept listeners of this process."""


def _received(descriptor: int) -> socket.socket | None:
    """Return a listening socket that was passed; close anything else, and return None."""
    try:
        given = socket.socket(fileno=descriptor)
    except OSError:
        with contextlib.suppress(OSError):
            os.close(descriptor)
        return None
    given.setblocking(False)
    given.set_inheritable(False)
    if given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return given
    given.close()
    return None


def _remove(path: str) -> None:
    """Remove a socket file. One that cannot be removed does no harm: the next start replaces it, or reports it."""
    with contextlib.suppress(OSError):
        Path(path).unlink()


def _is_any(address: Address) -> bool:
    return not address.path and address.port == 0


def _is_own(path: str, name: str) -> bool:
    """Return True if a path is still that of the socket that was kept under this name."""
    try:
        return name.endswith(f"-{Path(path).stat().st_ino}")
    except OSError:
        return False


def _fits(listener: socket.socket, name: str, table: str, address: Address) -> bool:
    """Return True if a socket listens at `address`, whose port 0 is that of any socket of the same `table`."""
    there = listener.getsockname()
    if address.path:
        return there == address.path and _is_own(there, name)
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError):  # the name cannot be resolved: `listen` reports it
        return False
    if listener.family != found[0] or there[0] != found[4][0]:
        return False
    return bool(there[1] == address.port or (address.port == 0 and name.startswith(f"{table}-")))
