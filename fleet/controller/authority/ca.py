"""Certificate authority: its key signs devices, its certificates verify them. No I/O; `folder` stores it."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fleet.controller.authority.certificate import DEVICE_URI, DeviceCertificate, device_certificate
from fleet.controller.authority.request import requested_key
from fleet.controller.authority.settings import AuthoritySettings
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest_toml import NAME_PATTERN

COMMON_NAME_LIMIT = 64
"""Characters: ub-common-name of RFC 5280, appendix A.1. A device's name may have twice as many."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA. `key` belongs to `certificate`; `earlier` are certificates of previous CAs that are still trusted."""

    key: ec.EllipticCurvePrivateKey = field(repr=False)
    certificate: x509.Certificate
    earlier: tuple[x509.Certificate, ...] = ()
    settings: AuthoritySettings = AuthoritySettings()

    @property
    def trusted(self) -> tuple[x509.Certificate, ...]:
        """All CA certificates that may have issued a device's certificate."""
        return (self.certificate, *self.earlier)

    @property
    def pem(self) -> bytes:
        """`trusted` as one PEM file, for TLS servers and proxies."""
        return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in self.trusted)

    def trusts(self, certificate_pem: str) -> bool:
        """Return whether a CA certificate is trusted."""
        return x509.load_pem_x509_certificate(certificate_pem.encode()) in self.trusted

    @property
    def certificate_pem(self) -> bytes:
        """The certificate of the CA that signs now."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The private key, PKCS #8, not encrypted. Its owner can impersonate any device."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def sign_csr(
        self,
        request_pem: bytes,
        device: str,
        now: datetime,
        validity_d: float | None = None,
        since: datetime | None = None,
    ) -> DeviceCertificate:
        """Return a certificate for the key of a request, with the controller's name of the device.

        It is valid from `since` on (None: `now`). Raise RequestError: INVALID or TOO_LARGE for the request, UNAVAILABLE
        if the CA's own certificate is not valid now.
        """
        if not NAME_PATTERN.fullmatch(device):
            raise RequestError(Fault.INVALID, f"{device!r:.140} is no device's name")
        key = requested_key(request_pem, self.settings)
        days = self.settings.validity_d if validity_d is None else validity_d
        name = x509.UniformResourceIdentifier(DEVICE_URI + device)
        common = device  # for people; the URI has the whole name
        if len(device) > COMMON_NAME_LIMIT:
            common = f"{device[:47]}~{hashlib.sha256(device.encode()).hexdigest()[:16]}"
        builder = self._begun(common, key, [name], ExtendedKeyUsageOID.CLIENT_AUTH)
        return device_certificate(self._signed(builder, now, days, since or now))

    def issue_server(self, names: Sequence[str], now: datetime) -> tuple[bytes, bytes]:
        """Return certificate and key (PEM) of this controller's own port, for at least one DNS name or address.

        It is used if no certificate is configured. Clients that trust this CA can verify the server with it.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        known = [_server_name(name) for name in names]
        builder = self._begun("edge-fleet", key.public_key(), known, ExtendedKeyUsageOID.SERVER_AUTH)
        certificate = self._signed(builder, now, self.settings.server_validity_d, now)
        private_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return certificate.public_bytes(Encoding.PEM), private_pem

    def _begun(
        self,
        common_name: str,
        key: CertificatePublicKeyTypes,
        names: Sequence[x509.GeneralName],
        usage: x509.ObjectIdentifier,
    ) -> x509.CertificateBuilder:
        signs = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(_name(common_name))
            .issuer_name(self.certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())  # 159 random bits (RFC 5280, 4.1.2.2: at most 20 octets)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(signs, critical=False)
        )

    def _signed(
        self, builder: x509.CertificateBuilder, now: datetime, days: float, since: datetime
    ) -> x509.Certificate:
        expires = min(now + timedelta(days=days), self.certificate.not_valid_after_utc)
        issued = max(since - timedelta(seconds=self.settings.backdate_s), self.certificate.not_valid_before_utc)
        if expires <= now or now < self.certificate.not_valid_before_utc:
            problem = "the device CA's own certificate does not hold now; see the controller's clock, or give a new CA"
            raise RequestError(Fault.UNAVAILABLE, problem)
        return builder.not_valid_before(issued).not_valid_after(expires).sign(self.key, hashes.SHA256())


def new_authority(
    now: datetime, settings: AuthoritySettings | None = None, key: ec.EllipticCurvePrivateKey | None = None
) -> Authority:
    """Return a self-signed CA with a new EC P-256 key, or with `key`."""
    settings = settings or AuthoritySettings()
    key = key or ec.generate_private_key(ec.SECP256R1())
    public = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = _name(f"edge-fleet device CA {public.digest.hex()[:8]}")  # the digest makes the names of two CAs differ
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(seconds=settings.backdate_s))
        .not_valid_after(now + timedelta(days=settings.authority_validity_d))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(public, critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(key, certificate, (), settings)


def name_of(certificate_pem: str) -> str:
    """Return a CA's name for people."""
    return x509.load_pem_x509_certificate(certificate_pem.encode()).subject.rfc4514_string()


def key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    """Return the key usage extension (RFC 5280, 4.2.1.3)."""
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _server_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
