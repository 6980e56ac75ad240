"""TLS of the port: its own certificate, and optional client certificates of the device CA."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from cryptography import x509

from fleet.controller.authority.ca import Authority
from fleet.controller.authority.certificate import RENEWAL_SHARE
from fleet.disk import read_bounded
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


Pair = tuple[bytes, bytes]
CertificateSource = Callable[[datetime], Pair]
"""Return certificate (leaf first) and key at a time, both in PEM; the same bytes while nothing changed."""
PEM_LIMIT_BYTES = 1_048_576


def own_certificate(authority: Authority, names: Sequence[str]) -> CertificateSource:
    """Return a source of certificates that the device CA issues for DNS names and addresses.

    A new one is issued after two thirds of its validity, or if it is not valid yet because the clock was ahead.
    """
    pair: list[Pair] = []

    def current(now: datetime) -> Pair:
        if pair:
            held = x509.load_pem_x509_certificate(pair[-1][0])
            begin, end = held.not_valid_before_utc, held.not_valid_after_utc
            if begin <= now < begin + (end - begin) * RENEWAL_SHARE:
                return pair[-1]
        pair[:] = [authority.issue_server(names, now)]
        return pair[-1]

    return current


def filed_certificate(certificate: Path, key: Path) -> CertificateSource:
    """Return a source that reads files, which another program renews. It raises ConfigurationError."""
    return lambda _: (read_bounded(certificate, PEM_LIMIT_BYTES), read_bounded(key, PEM_LIMIT_BYTES))
