"""Who is at the other end of a connection, as far as the connection itself tells."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass, replace
from typing import Any, cast

from gateway.domain.access import Address
from gateway.domain.rights import Caller
from gateway.domain.shares import caller_key

_CREDENTIALS = struct.Struct("3i")
"""struct ucred of SO_PEERCRED: pid, uid, gid (unix(7))."""
_SO_PEERGROUPS = 59
"""Supplementary groups of the peer, as gid_t each (Linux 4.13, asm-generic/socket.h); Python names no constant."""
_GROUPS_BYTES = 1024
"""Room for 256 groups; of a peer that has more, only the primary one counts."""
UNKNOWN_USER = "unix"
"""Address of a peer behind a UNIX socket whose user its transport does not tell (grpcio)."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Subject of its certificate, user, process and groups behind a UNIX socket, address behind a TCP one."""

    certificate: str = ""
    uid: int | None = None
    pid: int | None = None
    address: str = ""
    gids: tuple[int, ...] = ()

    @property
    def identities(self) -> tuple[str, ...]:
        """Names by which `[[auth.grant]]` may mean it (`domain.rights.Grant`)."""
        if self.certificate:
            return (f"cert:{self.certificate}",)
        if self.uid is not None:
            return (f"uid:{self.uid}", *(f"gid:{gid}" for gid in self.gids))
        if self.address == UNKNOWN_USER:
            return ("uid:?",)
        return ("loopback", "anonymous") if self.local else ("anonymous",)

    @property
    def name(self) -> str:
        """Client certificate, else peer uid, else address (contracts.md, "Faults"; a token comes before them)."""
        if self.certificate:
            return self.certificate
        return self.address if self.uid is None else f"uid:{self.uid}"

    @property
    def share_key(self) -> str:
        """The caller in whose share its connection counts."""
        return caller_key(certificate=self.certificate, uid=self.uid, address=self.address)

    def share_of(self, caller: Caller) -> str:
        """In whose share a call counts that `caller` makes on its connection: a token comes before all else."""
        return caller_key(token=caller.name) if caller.by_token else self.share_key

    @property
    def local(self) -> bool:
        """Whether it is on this machine: it came by a UNIX socket or over loopback."""
        return self.uid is not None or Address(self.address).private


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """The peer of a connection that was just made."""
    return certified(peer_behind(transport.get_extra_info("socket"), transport.get_extra_info("peername")), transport)


def certified(peer: Peer, transport: asyncio.BaseTransport) -> Peer:
    """Return `peer` with the subject of the certificate that the transport's handshake brought, if any."""
    subject = _subject(transport.get_extra_info("peercert") or {})
    return replace(peer, certificate=subject) if subject else peer


def peer_behind(connected: Any, name: Any) -> Peer:
    """The peer of a connected socket, of which accept(2) told `name`."""
    if connected is None or connected.family != socket.AF_UNIX:
        return Peer(address=str(name[0]) if name else "")
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(credentials)
    return Peer(uid=uid, pid=pid, gids=(gid, *_groups(connected)))


def _groups(connected: socket.socket) -> tuple[int, ...]:
    """Supplementary groups of the peer; () where the kernel does not tell, or where they are too many."""
    try:
        groups = connected.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        return ()
    return struct.unpack(f"{len(groups) // 4}I", groups)


def _subject(certificate: dict[str, Any]) -> str:
    """Its common name, else the first alternative name, else ""."""
    names = [value for entry in certificate.get("subject", ()) for key, value in entry if key == "commonName"]
    names += [value for _, value in certificate.get("subjectAltName", ())]
    return cast("str", names[0]) if names else ""
