"""Registration of sealed memory: a program passes a memfd over a UNIX socket, and its inputs are read in place.

One connection registers one region. The program sends a line of JSON with the descriptor attached (SCM_RIGHTS,
unix(7)), `{"name": "frames", "byte_size": 602112}`, with `"authorization": "Bearer TOKEN"` if callers need a token. The
answer is a line: `{}`, or `{"error": "…"}`. The region belongs to its caller under that name until either side closes
the connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from gateway.common.domain.access import Address, Security
from gateway.common.domain.errors import RequestError
from gateway.common.domain.rights import MEMORY
from gateway.common.wire.kept_listeners import KEPT
from gateway.common.wire.listening import listen
from gateway.serving.domain.shares import ShareBounds
from gateway.serving.frontends.authentication import Authentication
from gateway.serving.frontends.peer import Peer, peer_behind
from gateway.serving.frontends.pools import Pool, RefusalCounters
from gateway.serving.frontends.regions import Regions, Registrant
from gateway.serving.frontends.segment import invalid
from gateway.serving.frontends.settings import SharedMemorySettings

log = logging.getLogger(__name__)

LINE_BYTES = 4096
"""Longest registration."""
REGISTER_S = 5.0
"""Time for a connection to register, and for its answer to be taken."""
PAUSE_S = 1.0
"""Pause in accepting while this process has no descriptor left."""


@dataclass(frozen=True, slots=True)
class RegionRegistration:
    """A request to register a region. `authorization`: as in HTTP's header."""

    name: str
    byte_size: int
    authorization: str | None


def read_registration(line: bytes) -> RegionRegistration:
    """Read one line. Raises RequestError INVALID."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise _malformed("it is not JSON") from None
    if not isinstance(fields, dict) or not fields.keys() <= {"name", "byte_size", "authorization"}:
        raise _malformed("it must be an object with name, byte_size and, where tokens are needed, authorization")
    name, size, authorization = fields.get("name"), fields.get("byte_size"), fields.get("authorization")
    if not isinstance(name, str) or type(size) is not int or not isinstance(authorization, str | None):
        raise _malformed("name must be a string, byte_size an integer, authorization a string")
    return RegionRegistration(name, size, authorization)


class SealedMemory:
    """Listener of the registration socket. Implements `credentials.Guarded`."""

    def __init__(
        self, regions: Regions, settings: SharedMemorySettings, security: Security, refusals: RefusalCounters
    ) -> None:
        self.regions, self.authentication = regions, Authentication("memory", security)
        bounds = ShareBounds.of(settings.max_regions, caller_percent=settings.caller_percent, local_percent=0)
        self.places = Pool("memory connections", "[shared_memory] max_regions", bounds, refusals)
        self._settings, self._loop = settings, asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        self._connections: set[_RegionConnection] = set()

    def secure(self, security: Security) -> Callable[[], None]:
        """Implement `Guarded.secure`."""
        return partial(self.authentication.replace, security)

    def start(self) -> Address:
        """Listen. Raises UnreachableError."""
        address = Address(path=self._settings.socket)
        mode, backlog = self._settings.unix_socket_mode, self._settings.max_regions
        self._listener = listen(address, "shared_memory", "socket", backlog=backlog, unix_mode=mode)
        self._loop.add_reader(self._listener, self._accept)
        return address

    def stop(self) -> None:
        """Close the listener and all connections, and with them their regions."""
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            KEPT.unlink(self._settings.socket)
            self._listener = None
        for connection in list(self._connections):
            connection.close()

    def closed(self, connection: _RegionConnection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)

    def _accept(self) -> None:
        if self._listener is None:
            return
        try:
            connected, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # no descriptor is left: without a pause this would be called again at once
            log.warning("memory socket: accept failed (%s); next attempt in %g s", error.strerror or error, PAUSE_S)
            self._loop.remove_reader(self._listener)
            self._loop.call_later(PAUSE_S, self._resume)
            return
        connected.setblocking(False)
        peer = peer_behind(connected, "")
        try:
            self.places.require(peer.share_key, local=True)
        except RequestError as error:
            _send(connected, error)
            connected.close()
        else:
            self._connections.add(_RegionConnection(self, connected, peer))

    def _resume(self) -> None:
        if self._listener is not None:
            self._loop.add_reader(self._listener, self._accept)


class _RegionConnection:
    """One program's connection, and the region that it registered."""

    def __init__(self, memory: SealedMemory, connected: socket.socket, peer: Peer) -> None:
        self._memory, self._socket, self._peer = memory, connected, peer
        self._loop = asyncio.get_running_loop()
        self._line, self._descriptor = b"", -1
        self._region: tuple[str, str] | None = None
        self._closed = False
        self._timer = self._loop.call_later(REGISTER_S, self.close)
        self._loop.add_reader(connected, self._read)

    def close(self) -> None:
        """Close the connection, and unregister its region."""
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._drop_descriptor()
        self._memory.places.give(self._peer.share_key, local=True)
        if self._region is not None:
            self._memory.regions.unregister(*self._region)
        self._memory.closed(self)

    def _read(self) -> None:
        try:
            data, descriptors, flags, _ = socket.recv_fds(self._socket, LINE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        extra = self._take(descriptors) or bool(flags & socket.MSG_CTRUNC)
        if not data or self._region is not None:
            self.close()
            return
        self._line += data
        if extra or len(self._line) > LINE_BYTES:
            self._answer(_malformed(f"send one line of at most {LINE_BYTES} bytes with one descriptor"))
        elif self._line.endswith(b"\n"):
            try:
                self._register(read_registration(self._line))
            except RequestError as error:
                self._answer(error)
            else:
                self._answer(None)

    def _take(self, descriptors: list[int]) -> bool:
        """Keep the first descriptor; return True if there was another one."""
        for descriptor in descriptors:
            if self._descriptor >= 0:
                os.close(descriptor)
                return True
            self._descriptor = descriptor
        return False

    def _register(self, wanted: RegionRegistration) -> None:
        peer, memory = self._peer, self._memory
        if self._descriptor < 0:
            raise _malformed("no descriptor came with it (SCM_RIGHTS)")
        caller = memory.authentication.admit(peer, wanted.authorization, MEMORY)
        who = Registrant(caller.name, True, peer.uid, peer.pid, peer.share_of(caller))
        memory.regions.register_sealed(who, wanted.name, self._descriptor, wanted.byte_size, self._dropped)
        self._region = (caller.name, wanted.name)

    def _answer(self, error: RequestError | None) -> None:
        _send(self._socket, error)
        self._drop_descriptor()
        if error is None:
            self._timer.cancel()
        else:
            self.close()

    def _dropped(self) -> None:
        """Close the connection because its region was dropped: the program learns that from the close."""
        self._region = None
        self.close()

    def _drop_descriptor(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _send(connected: socket.socket, error: RequestError | None) -> None:
    answer: dict[str, Any] = {} if error is None else {"error": error.message}
    with suppress(OSError):  # the program has closed the connection
        connected.send(json.dumps(answer).encode() + b"\n")


def _malformed(why: str) -> RequestError:
    return invalid(f"not a registration: {why}")
