"""Listening sockets, for every port: a busy address is a clear error, port 0 is known afterwards."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gateway.common.domain.access import Address
from gateway.common.domain.errors import UnreachableError
from gateway.common.wire.kept_listeners import KEPT

PROBE_TIMEOUT_S = 1.0
"""Time for an existing UNIX socket to show that a process listens on it."""

_REMEDIES = {
    errno.EADDRINUSE: "it is in use: stop what listens there, or choose another address (EG-201)",
    errno.EACCES: "it is not permitted: choose a port from 1024, or a folder that this user may write",
    errno.EADDRNOTAVAIL: "this machine has no such address: choose one that `ip address` lists",
    errno.EEXIST: "the path exists and is no socket: remove it, or choose another path",
    errno.ENOENT: "its folder does not exist: create it, or choose another path",
}


def listen(address: Address, table: str, key: str = "listen", *, backlog: int, unix_mode: int) -> socket.socket:
    """Return a listening, non-blocking socket: an inherited one (`KEPT`), or a new one.

    Raises UnreachableError with address, `key` of `table` and remedy.
    """
    try:
        if inherited := KEPT.take(table, address):
            inherited.listen(backlog)  # changes the backlog
            if address.path:
                Path(address.path).chmod(unix_mode)
            return inherited
        made = _listen_unix(address.path, backlog, unix_mode) if address.path else _listen_tcp(address, backlog)
        KEPT.keep(table, made, address)
    except OSError as error:
        raise refusal(address, table, error, key) from None
    except UnicodeError:  # a label above 63 bytes, or an empty one
        raise refusal(address, table, OSError("this cannot be a host's name"), key) from None
    else:
        return made


@contextmanager
def listening(
    addresses: Iterable[Address], table: str, key: str = "listen", *, backlog: int, unix_mode: int
) -> Iterator[list[socket.socket]]:
    """Yield listening sockets on all of `addresses`, as `listen` returns them.

    If one fails, or the block raises, all are closed and their socket files removed. Otherwise the caller owns them.
    """
    with ExitStack() as opened:
        listeners = []
        for address in addresses:
            listeners.append(opened.enter_context(listen(address, table, key, backlog=backlog, unix_mode=unix_mode)))
            if address.path:
                opened.callback(KEPT.unlink, address.path)
        yield listeners
        opened.pop_all()


def refusal(address: Address, table: str, error: OSError, key: str = "listen") -> UnreachableError:
    """Return why `address` of `[table] key` cannot be used, with the remedy."""
    remedy = _REMEDIES.get(error.errno or 0, f"{error.strerror or error}: choose another address")
    return UnreachableError(f"cannot listen on {address}; {remedy}", table=table, key=key)


def bound_address(listener: socket.socket) -> Address:
    """Return the address of `listener`, port 0 resolved."""
    name = listener.getsockname()
    return Address(path=name) if isinstance(name, str) else Address(name[0], name[1])


def _listen_tcp(address: Address, backlog: int) -> socket.socket:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, where = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # "[::]" means IPv6 only, as everywhere else in the configuration: one address, one socket.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(where)
        listener.setblocking(False)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def _listen_unix(path: str, backlog: int, mode: int) -> socket.socket:
    remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Bound without permissions for others: no process connects between bind and chmod.
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        Path(path).chmod(mode)
        listener.setblocking(False)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def remove_stale(path: str) -> None:
    """Unlink a socket without a listener. Raises OSError EADDRINUSE if it has one, or is no socket."""
    try:
        found = Path(path).lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(errno.EEXIST, "exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
    raise OSError(errno.EADDRINUSE, "in use")
