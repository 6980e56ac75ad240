"""What can go wrong before the first call: ports, UNIX socket paths, certificates; each with what to do about it."""

from __future__ import annotations

import socket
from pathlib import Path

from gateway.domain.access import Address, Security
from gateway.domain.errors import ConfigurationError, UnreachableError

CONNECT_TIMEOUT_S = 1.0
"""How long a UNIX socket that is already there may take to show that somebody listens on it."""


def claim_unix_path(address: Address) -> None:
    """Remove a dead server's socket. UnreachableError where a live one listens, or the path is something else."""
    path = Path(address.path)
    if not path.parent.is_dir():
        raise _refusal(address, f"the folder {path.parent} does not exist", "create it or choose another path")
    if not path.exists():
        return
    if not path.is_socket():
        raise _refusal(address, "the path exists and is no socket", "remove it or choose another path")
    if _answers(address.path):
        raise _refusal(address, "another program listens there", "stop it or choose another path")
    path.unlink()


def cannot_listen(address: Address) -> UnreachableError:
    """Why a listener could not be opened, asked of the operating system afterwards: grpcio does not tell."""
    if address.path:
        return _refusal(address, "the socket could not be created", "check the folder's permissions")
    try:
        family, kind, _, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        return _refusal(address, str(error.strerror or error), "stop what listens there or choose another address")
    return _refusal(address, "the listener could not be opened", "try again or choose another address")


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


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_TIMEOUT_S)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


def _refusal(address: Address, problem: str, remedy: str) -> UnreachableError:
    return UnreachableError(f"cannot listen on {address}: {problem}; {remedy}", table="grpc", key="listen")
