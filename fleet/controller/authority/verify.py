"""Verification of a device's certificate: issuer, purpose, validity, revocation. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from fleet.controller.authority.certificate import DeviceCertificate, NoDeviceError, device_certificate
from gateway.domain.errors import Fault, RequestError


def verified(certificate: x509.Certificate, trusted: Sequence[x509.Certificate], now: datetime) -> DeviceCertificate:
    """Return the device of a certificate that one of `trusted` issued directly, without an intermediate CA.

    Raise RequestError UNAUTHENTICATED.
    """
    policy = PolicyBuilder().store(Store(list(trusted))).time(now).max_chain_depth(0)
    try:
        policy.build_client_verifier().verify(certificate, [])
        return device_certificate(certificate)
    except (VerificationError, NoDeviceError, ValueError) as error:
        problem = f"the client certificate is not of this fleet ({error!s:.200}); enrol the device again"
        raise RequestError(Fault.UNAUTHENTICATED, problem) from None


def check_holds(certificate: DeviceCertificate, revoked: Collection[str], now: datetime) -> None:
    """Check that a certificate verified at the handshake is still valid.

    Raise RequestError UNAUTHENTICATED if it has expired, or if its serial is in `revoked`.
    """
    if certificate.serial in revoked:
        raise _over(certificate, "was revoked")
    if not certificate.issued <= now <= certificate.expires:
        raise _over(
            certificate, f"holds from {certificate.issued:%Y-%m-%d %H:%M} to {certificate.expires:%Y-%m-%d %H:%M} UTC"
        )


def _over(certificate: DeviceCertificate, problem: str) -> RequestError:
    message = f"the certificate {certificate.serial} of {certificate.device} {problem}; enrol the device again"
    return RequestError(Fault.UNAUTHENTICATED, message)
