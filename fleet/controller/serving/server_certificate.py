"""The port's server certificate: issued and renewed by the device CA, or read from files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from cryptography import x509

from fleet.controller.authority.ca import Authority
from fleet.controller.authority.certificate import RENEWAL_SHARE
from fleet.disk import read_bounded

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
