"""The TLS context of a listener, from PEM contents. grpcio has its own TLS, and is given only what works here."""

from __future__ import annotations

import os
import ssl

from gateway.domain.access import Security
from gateway.domain.errors import ConfigurationError


def server_context(security: Security, *, protocol: str) -> ssl.SSLContext | None:
    """TLS 1.2 and later, client certificates required where `client_ca` is set; None without certificate. `protocol` is
    what is agreed on by ALPN (RFC 7301): "h2" or "http/1.1".

    Raises ConfigurationError where certificate, key or authority cannot be used, or one of them is missing: a gateway
    that was told to guard its port never serves it in the clear.
    """
    if security.certificate is None or security.key is None:
        if security.certificate is security.key is security.client_ca:
            return None
        raise ConfigurationError("cert and key belong together, and client_ca needs both; give them all", table="tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # which costs the server more than the client
    context.set_alpn_protocols([protocol])
    _load_chain(context, security.certificate, security.key)
    if security.client_ca is not None:
        _require_clients_of(context, security.client_ca)
    return context


def _load_chain(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """OpenSSL's chain loader wants a file: an anonymous one in memory, so that the key touches no disk."""
    descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(key.rstrip() + b"\n" + certificate)
        # The empty password makes an encrypted key an error; without it OpenSSL would ask on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(
            f"certificate and key cannot be used ({error}); they must be PEM, belong together, and the key must not "
            "be encrypted",
            table="tls",
            key="cert, key",
        ) from None
    finally:
        os.close(descriptor)


def _require_clients_of(context: ssl.SSLContext, authority: bytes) -> None:
    try:
        context.load_verify_locations(cadata=authority.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(
            f"cannot be used ({error}); it must hold PEM certificates of the authority that signs clients",
            table="tls",
            key="client_ca",
        ) from None
    context.verify_mode = ssl.CERT_REQUIRED
