"""A device's certificate: its value, and its verification (issuer, purpose, validity, revocation). No I/O, no clock."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest_toml import NAME_PATTERN

DEVICE_URI = "urn:edge-fleet:device:"
RENEWAL_SHARE = 2 / 3
"""Share of a certificate's validity after which the device renews it."""


class NoDeviceError(ValueError):
    """The certificate names no device, or several."""


@dataclass(frozen=True)
class DeviceCertificate:
    """A device's certificate, verified before.

    `serial` is lower-case hex without leading zeros, `subject` is for people (RFC 4514), `device` comes from the one
    URI among the alternative names.
    """

    device: str
    serial: str
    subject: str
    issued: datetime
    expires: datetime
    certificate: x509.Certificate = field(repr=False, compare=False)

    @cached_property
    def pem(self) -> bytes:
        """The certificate in PEM."""
        return self.certificate.public_bytes(Encoding.PEM)

    @cached_property
    def key_digest(self) -> str:
        """SHA-256 (hex) of its public key. Two devices with the same key are clones."""
        key = self.certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return hashlib.sha256(key).hexdigest()

    @property
    def renewal(self) -> datetime:
        """The time after two thirds of its validity."""
        return self.issued + (self.expires - self.issued) * RENEWAL_SHARE


def device_certificate(certificate: x509.Certificate) -> DeviceCertificate:
    """Read a certificate. Raise NoDeviceError."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError) as error:
        raise NoDeviceError(f"the certificate names no device ({error!s:.200})") from None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    device = uris[0].removeprefix(DEVICE_URI) if len(uris) == 1 and uris[0].startswith(DEVICE_URI) else ""
    if len(list(names)) != 1 or not NAME_PATTERN.fullmatch(device):
        raise NoDeviceError(f"the certificate's one alternative name must be the URI {DEVICE_URI}DEVICE")
    return DeviceCertificate(
        device=device,
        serial=f"{certificate.serial_number:x}",
        subject=certificate.subject.rfc4514_string(),
        issued=certificate.not_valid_before_utc,
        expires=certificate.not_valid_after_utc,
        certificate=certificate,
    )


def verified(certificate: x509.Certificate, trusted: Sequence[x509.Certificate], now: datetime) -> DeviceCertificate:
    """Return the device of a certificate that one of `trusted` issued directly, without an intermediate CA.

    It may begin in the future. Raise RequestError UNAUTHENTICATED.
    """
    at = max(now, certificate.not_valid_before_utc)
    policy = PolicyBuilder().store(Store(list(trusted))).time(at).max_chain_depth(0)
    try:
        policy.build_client_verifier().verify(certificate, [])
        return device_certificate(certificate)
    except (VerificationError, NoDeviceError, ValueError) as error:
        problem = f"the client certificate is not of this fleet ({error!s:.200}); enrol the device again"
        raise RequestError(Fault.UNAUTHENTICATED, problem) from None


def check_holds(certificate: DeviceCertificate, revoked: Collection[str], now: datetime) -> None:
    """Check that a certificate verified at the handshake is still valid.

    Raise RequestError UNAUTHENTICATED if it has expired, or if its serial is in `revoked`; UNAVAILABLE if it begins in
    the future: a controller of this fleet issued it, so that the clock of one is wrong, and not the device.
    """
    named, begins = f"the certificate {certificate.serial} of {certificate.device}", certificate.issued
    if certificate.serial in revoked:
        ended = "was revoked"
    elif now < begins:
        problem = f"begins at {begins:%Y-%m-%d %H:%M} UTC, and the controller's clock shows {now:%Y-%m-%d %H:%M}"
        raise RequestError(Fault.UNAVAILABLE, f"{named} {problem}; set the clock of the controller")
    elif now > certificate.expires:
        ended = f"has expired at {certificate.expires:%Y-%m-%d %H:%M} UTC"
    else:
        return
    raise RequestError(Fault.UNAUTHENTICATED, f"{named} {ended}; enrol the device again")
