"""Certificate revocation list (RFC 5280, 5) for proxies that terminate TLS. The controller uses serials instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from fleet.controller.authority.ca import Authority


@dataclass(frozen=True, slots=True)
class RevocationList:
    """Content of a CRL: its number, the revoked serials (hex) and its validity.

    `genuine`: it is of this CA and its signature is valid.
    """

    number: int
    serials: frozenset[str]
    made: datetime
    next_update: datetime
    genuine: bool


def read_list(authority: Authority, pem: bytes) -> RevocationList | None:
    """Read a CRL, or return None if `pem` is not one."""
    try:
        found = x509.load_pem_x509_crl(pem)
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        serials = frozenset(f"{entry.serial_number:x}" for entry in found)
    except (ValueError, x509.ExtensionNotFound):
        return None
    genuine = found.issuer == authority.certificate.subject and found.is_signature_valid(authority.key.public_key())
    until = found.next_update_utc or found.last_update_utc
    return RevocationList(number, serials, found.last_update_utc, until, genuine)


def revocation_list(
    authority: Authority, revoked: Mapping[str, datetime], now: datetime, *, number: int, next_after: timedelta
) -> bytes:
    """Return a CRL (PEM) of serials (hex) and the times of their revocation. `number` must grow from list to list.

    Publish the next one before `next_after` has passed: a proxy with an expired list refuses all clients.
    """
    signs = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now)
        .next_update(now + next_after)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(signs, critical=False)
    )
    for serial, since in sorted(revoked.items()):
        entry = x509.RevokedCertificateBuilder().serial_number(int(serial, 16)).revocation_date(since)
        builder = builder.add_revoked_certificate(entry.build())
    return builder.sign(authority.key, hashes.SHA256()).public_bytes(Encoding.PEM)
