"""TLS of the port: its own certificate, and client certificates of the device CA where clients have one."""

from __future__ import annotations

import ssl

from gateway.domain.errors import ConfigurationError
from gateway.wire import tls as wire_tls


def server_context(certificate_pem: bytes, key_pem: bytes, client_ca_pem: bytes) -> ssl.SSLContext:
    """TLS 1.2 and later. Who enrols and who operates comes without a certificate; one that is not of the device CA, or
    is over, ends the handshake. Raises ConfigurationError."""
    context = wire_tls.listener_context("http/1.1")
    load_chain(context, certificate_pem, key_pem)
    try:
        context.load_verify_locations(cadata=client_ca_pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(f"the device CA's certificate cannot be used ({error})", table="authority") from None
    context.verify_mode = ssl.CERT_OPTIONAL
    context.num_tickets = 1  # each costs a seventh of the handshake, and agents resume nothing
    return context


def load_chain(context: ssl.SSLContext, certificate_pem: bytes, key_pem: bytes) -> None:
    """Show this certificate (leaf first) from now on; also on a context in use. Raises ConfigurationError."""
    wire_tls.load_chain(context, certificate_pem, key_pem, table="listen", key="certificate, key")
