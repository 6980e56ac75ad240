"""The revocation list (RFC 5280, 5) for proxies that end TLS themselves; in process the set of serials is enough."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from fleet.authority.ca import Authority


def revocation_list(
    authority: Authority, revoked: Mapping[str, datetime], now: datetime, *, number: int, next_after: timedelta
) -> bytes:
    """A CRL (PEM) of the serials (hex) with the times since when. `number` must grow from list to list.

    Write the next before `next_after` is over: a proxy with an old list lets nobody in.
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
