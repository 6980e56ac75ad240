"""The certificate that the port shows: of the device CA, renewed in time, or what lies in files now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from cryptography import x509

from fleet.authority.ca import Authority
from fleet.authority.certificate import RENEWAL_SHARE
from fleet.disk import read_bounded

Pair = tuple[bytes, bytes]
Shown = Callable[[datetime], Pair]
"""Certificate, leaf first, and key at a time, both PEM; the same bytes while nothing changed."""
PEM_LIMIT_BYTES = 1_048_576


def own_certificate(authority: Authority, names: Sequence[str]) -> Shown:
    """Signed by the device CA for DNS names and addresses, and again at two thirds of its life, or where the clock was
    ahead when it was: nobody believes a certificate that does not hold yet."""
    pair: list[Pair] = []

    def shown(now: datetime) -> Pair:
        if not pair or not _is_young(pair[-1][0], now):
            pair[:] = [authority.issue_server(names, now)]
        return pair[-1]

    return shown


def filed_certificate(certificate: Path, key: Path) -> Shown:
    """Of another authority, renewed by somebody else. Raises ConfigurationError where it cannot be read."""
    return lambda _: (read_bounded(certificate, PEM_LIMIT_BYTES), read_bounded(key, PEM_LIMIT_BYTES))


def _is_young(certificate_pem: bytes, now: datetime) -> bool:
    held = x509.load_pem_x509_certificate(certificate_pem)
    begin, end = held.not_valid_before_utc, held.not_valid_after_utc
    return begin <= now < begin + (end - begin) * RENEWAL_SHARE
