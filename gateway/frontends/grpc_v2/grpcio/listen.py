"""Errors before the first call: ports, UNIX socket paths and certificates, each with its remedy."""

from __future__ import annotations

import errno
from pathlib import Path

from gateway.domain.access import Address, Security
from gateway.domain.errors import UnreachableError
from gateway.frontends.tls import server_context
from gateway.wire.listening import listen, refusal, remove_stale

TABLE = "grpc"
BACKLOG = 1


def claim_unix_path(address: Address) -> None:
    """Remove a dead server's socket. Raises UnreachableError if a live one listens, or the path cannot be used."""
    if not Path(address.path).parent.is_dir():
        raise refusal(address, TABLE, OSError(errno.ENOENT, "no such folder"))
    try:
        remove_stale(address.path)
    except OSError as error:
        raise refusal(address, TABLE, error) from None


def cannot_listen(address: Address) -> UnreachableError:
    """Return why a listener could not be opened. The operating system is asked afterwards: grpcio reports nothing."""
    if address.path:
        return refusal(address, TABLE, OSError(errno.EACCES, "not permitted"))
    try:
        listen(address, TABLE, backlog=BACKLOG, unix_mode=0).close()
    except UnreachableError as error:
        return error
    return refusal(address, TABLE, OSError("the listener could not be opened"))


def check_certificates(security: Security) -> bool:
    """Return True if TLS is configured and usable.

    Raises as `server_context` does: grpcio would not report the error.
    """
    return server_context(security, protocol="h2") is not None
