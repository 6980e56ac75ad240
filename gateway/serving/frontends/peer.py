"""Identity of a connection's peer, as far as the connection itself shows it."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from gateway.common.domain.access import Address
from gateway.common.domain.rights import Caller
from gateway.serving.domain.shares import caller_key

_CREDENTIALS = struct.Struct("3i")
"""Layout of SO_PEERCRED's struct ucred: pid, uid, gid (unix(7))."""
_SO_PEERGROUPS = 59
"""Option for the peer's supplementary groups, as gid_t each (Linux 4.13, asm-generic/socket.h); not in Python."""
_GROUPS_BYTES = 1024
"""Space for 256 groups; of a peer that has more, only the primary one counts."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Peer of a connection: subject of its certificate; user, process and groups (UNIX socket); address (TCP)."""

    certificate: str = ""
    uid: int | None = None
    pid: int | None = None
    address: str = ""
    gids: tuple[int, ...] = ()

    @property
    def identities(self) -> tuple[str, ...]:
        """Return the names by which `[[auth.grant]]` may refer to it (`domain.rights.Grant`)."""
        if self.certificate:
            return (f"cert:{self.certificate}",)
        if self.uid is not None:
            return (f"uid:{self.uid}", *(f"gid:{gid}" for gid in self.gids))
        return ("loopback", "anonymous") if self.local else ("anonymous",)

    @property
    def name(self) -> str:
        """Return the client certificate's name, else peer uid, else address. A token takes precedence over them."""
        if self.certificate:
            return self.certificate
        return self.address if self.uid is None else f"uid:{self.uid}"

    @property
    def share_key(self) -> str:
        """Return the caller in whose share its connection counts."""
        return caller_key(certificate=self.certificate, uid=self.uid, address=self.address)

    def share_of(self, caller: Caller) -> str:
        """Return the share key of a call that `caller` makes on its connection: a token takes precedence."""
        return caller_key(token=caller.name) if caller.by_token else self.share_key

    @property
    def local(self) -> bool:
        """Return True if it is on this machine: it came by a UNIX socket or over loopback."""
        return self.uid is not None or _is_local(self.address)


@lru_cache(maxsize=4096)
def _is_local(address: str) -> bool:
    return Address(address).private


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """Return the peer of a connection that was just made."""
    return certified(peer_behind(transport.get_extra_info("socket"), transport.get_extra_info("peername")), transport)


def certified(peer: Peer, transport: asyncio.BaseTransport) -> Peer:
    """Return `peer` with the subject of the certificate from the transport's handshake, if there is one."""
    certificate: dict[str, Any] = transport.get_extra_info("peercert") or {}
    # The subject is its common name, else the first alternative name.
    names = [value for entry in certificate.get("subject", ()) for key, value in entry if key == "commonName"]
    names += [value for _, value in certificate.get("subjectAltName", ())]
    return replace(peer, certificate=names[0]) if names and names[0] else peer


def peer_behind(connected: Any, name: Any) -> Peer:
    """Return the peer of a connected socket; `name` is accept(2)'s address."""
    if connected is None or connected.family != socket.AF_UNIX:
        return Peer(address=str(name[0]) if name else "")
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(credentials)
    return Peer(uid=uid, pid=pid, gids=(gid, *_groups(connected)))


def _groups(connected: socket.socket) -> tuple[int, ...]:
    """Return supplementary groups of the peer; () if the kernel does not report them, or if they are too many."""
    try:
        groups = connected.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        return ()
    return struct.unpack(f"{len(groups) // 4}I", groups)
