"""What can go wrong before the first call: ports, UNIX socket paths, certificates; each with what to do about it."""

from __future__ import annotations

import errno
from pathlib import Path

from gateway.domain.access import Address, Security
from gateway.domain.errors import ConfigurationError, UnreachableError
from gateway.frontends.listening import listen, refusal, remove_stale

TABLE = "grpc"
BACKLOG = 1


def claim_unix_path(address: Address) -> None:
    """Remove a dead server's socket. UnreachableError where a live one listens, or the path cannot be had."""
    if not Path(address.path).parent.is_dir():
        raise refusal(address, TABLE, OSError(errno.ENOENT, "no such folder"))
    try:
        remove_stale(address.path)
    except OSError as error:
        raise refusal(address, TABLE, error) from None


def cannot_listen(address: Address) -> UnreachableError:
    """Why a listener could not be opened, asked of the operating system afterwards: grpcio does not tell."""
    if address.path:
        return refusal(address, TABLE, OSError(errno.EACCES, "not permitted"))
    try:
        listen(address, TABLE, backlog=BACKLOG, unix_mode=0).close()
    except UnreachableError as error:
        return error
    return refusal(address, TABLE, OSError("the listener could not be opened"))


def check_certificates(security: Security) -> tuple[bytes, bytes] | None:
    """Certificate and key to serve with, None where TLS is not configured.

    Raises ConfigurationError where half of it is missing, the PEM cannot be read, or the key is another certificate's:
    a gateway that was told to guard its port never serves it in the clear.
    """
    certificate, key = security.certificate, security.key
    if certificate is None or key is None:
        if certificate is key is security.client_ca:
            return None
        raise ConfigurationError("cert and key belong together, and client_ca needs both; give them all", table="tls")
    _check_pem(certificate, key, security.client_ca)
    return certificate, key


def _check_pem(certificate: bytes, key: bytes, client_ca: bytes | None) -> None:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        leaf = x509.load_pem_x509_certificates(certificate)[0]
        private = load_pem_private_key(key, None)
        if client_ca is not None:
            x509.load_pem_x509_certificates(client_ca)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(
            f"cert, key or client_ca cannot be read as PEM without a password: {error}", table="tls"
        ) from None
    if leaf.public_key() != private.public_key():
        raise ConfigurationError("the key does not belong to the certificate; give the pair", table="tls", key="key")
