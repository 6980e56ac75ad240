"""TLS context of a listener, from PEM contents."""

from __future__ import annotations

import ssl

from gateway.common.domain.access import Security
from gateway.common.domain.errors import ConfigurationError
from gateway.common.wire.tls import listener_context, load_chain


def server_context(security: Security, *, protocol: str) -> ssl.SSLContext | None:
    """Return a context for TLS 1.2 and later, or None without certificate.

    Client certificates are required if `client_ca` is set. `protocol` is what ALPN negotiates (RFC 7301): "h2" or
    "http/1.1".

    Raises ConfigurationError if certificate, key or authority cannot be used, or one of them is missing: a gateway with
    TLS configured never serves its port without TLS.
    """
    if security.certificate is None or security.key is None:
        if security.certificate is security.key is security.client_ca:
            return None
        raise ConfigurationError("cert and key belong together, and client_ca needs both; give them all", table="tls")
    context = listener_context(protocol)
    load_chain(context, security.certificate, security.key, table="tls", key="cert, key")
    if security.client_ca is not None:
        try:
            context.load_verify_locations(cadata=security.client_ca.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise ConfigurationError(
                f"cannot be used ({error}); it must hold PEM certificates of the authority that signs clients",
                table="tls",
                key="client_ca",
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context
