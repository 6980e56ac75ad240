"""Who is at the other end of a connection, as far as the connection itself tells."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import Any, cast

from gateway.domain.access import Address

_CREDENTIALS = struct.Struct("3i")
"""struct ucred of SO_PEERCRED: pid, uid, gid (unix(7))."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Subject of its certificate, user and process behind a UNIX socket, address behind a TCP one."""

    certificate: str = ""
    uid: int | None = None
    pid: int | None = None
    address: str = ""

    @property
    def name(self) -> str:
        """Client certificate, else peer uid, else address (contracts.md, "Faults"; a token comes before them)."""
        if self.certificate:
            return self.certificate
        return self.address if self.uid is None else f"uid:{self.uid}"

    @property
    def local(self) -> bool:
        """Whether it is on this machine: it came by a UNIX socket or over loopback."""
        return self.uid is not None or Address(self.address).private


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """The peer of a connection that was just made."""
    certificate = _subject(transport.get_extra_info("peercert") or {})
    connected = transport.get_extra_info("socket")
    if connected is None or connected.family != socket.AF_UNIX:
        name = transport.get_extra_info("peername")
        return Peer(certificate, address=str(name[0]) if name else "")
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return Peer(certificate, uid, pid)


def _subject(certificate: dict[str, Any]) -> str:
    """Its common name, else the first alternative name, else ""."""
    names = [value for entry in certificate.get("subject", ()) for key, value in entry if key == "commonName"]
    names += [value for _, value in certificate.get("subjectAltName", ())]
    return cast("str", names[0]) if names else ""
