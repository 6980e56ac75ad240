"""A certificate authority for TLS of tests, as strict as clients of Python 3.13 and newer want it (RFC 5280, 4.2.1)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fleet.authority.ca import key_usage

PEM = serialization.Encoding.PEM


class Authority:
    """A throw-away one; what it issues holds for an hour."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("test authority")
        own = self._builder(self._name, self._key).add_extension(key_usage(key_cert_sign=True), critical=True)
        self.pem = self._signed(own.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True))

    def issue(self, common_name: str, host: str = "localhost") -> tuple[bytes, bytes]:
        """Certificate and key as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            self._builder(_name(common_name), key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        )
        private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return self._signed(builder), private

    def write(self, folder: Path, host: str = "localhost") -> Path:
        """ca.pem, and cert.pem with key.pem for a host, in the folder, which is made."""
        folder.mkdir(exist_ok=True)
        for name, content in zip(("cert", "key", "ca"), (*self.issue(host, host), self.pem), strict=True):
            (folder / f"{name}.pem").write_bytes(content)
        return folder

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now, public = datetime.now(UTC), key.public_key()
        return (
            x509.CertificateBuilder(self._name, subject, public, x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )

    def _signed(self, builder: x509.CertificateBuilder) -> bytes:
        return builder.sign(self._key, hashes.SHA256()).public_bytes(PEM)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else [])
