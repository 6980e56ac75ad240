"""TLS of the port: its own certificate, and optional client certificates of the device CA."""

from __future__ import annotations

import ssl

from gateway.common.domain.errors import ConfigurationError
from gateway.common.wire import tls as wire_tls


def server_context(certificate_pem: bytes, key_pem: bytes, client_ca_pem: bytes) -> ssl.SSLContext:
    """Return a TLS 1.2+ context. Raise ConfigurationError.

    Client certificates are optional, since enrolling devices and operators have none. One that is expired or not of the
    device CA ends the handshake.
    """
    context = wire_tls.listener_context("http/1.1")
    load_chain(context, certificate_pem, key_pem)
    try:
        context.load_verify_locations(cadata=client_ca_pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(f"the device CA's certificate cannot be used ({error})", table="authority") from None
    context.verify_mode = ssl.CERT_OPTIONAL
    context.num_tickets = 1  # each costs a seventh of the handshake, and agents do not resume sessions
    return context


def load_chain(context: ssl.SSLContext, certificate_pem: bytes, key_pem: bytes) -> None:
    """Use this certificate (leaf first) from now on, even in a context in use. Raise ConfigurationError."""
    wire_tls.load_chain(context, certificate_pem, key_pem, table="listen", key="certificate, key")
