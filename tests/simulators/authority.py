"""Certificate authority for TLS in tests, strict enough for clients of Python 3.13 and newer (RFC 5280, 4.2.1)."""

from __future__ import annotations

import re
import shlex
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import NameOID

from fleet.controller.authority.ca import key_usage

PEM = serialization.Encoding.PEM
GUIDE = Path(__file__).parents[2] / "fleet" / "README.md"


class Authority:
    """Temporary CA with the certificate `pem`. New certificates are valid for `lives`, from now + `begins`."""

    def __init__(self, lives: timedelta = timedelta(days=1), begins: timedelta = timedelta(minutes=-5)) -> None:
        self.lives, self.begins = lives, begins
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("test authority")
        self.pem = self._sign(self._name, self._key.public_key(), authority=True)

    def issue(self, common_name: str, host: str = "localhost") -> tuple[bytes, bytes]:
        """Return a new certificate and key as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return self.certify(key.public_key(), common_name, host), private

    def certify(self, key: CertificatePublicKeyTypes, common_name: str, host: str = "") -> bytes:
        """Return a certificate for an existing key, as PEM."""
        return self._sign(_name(common_name), key, host=host)

    def write(self, folder: Path, host: str = "localhost") -> Path:
        """Create a folder with ca.pem, and cert.pem with key.pem for a host."""
        folder.mkdir(exist_ok=True)
        for name, content in zip(("cert", "key", "ca"), (*self.issue(host, host), self.pem), strict=True):
            (folder / f"{name}.pem").write_bytes(content)
        return folder

    def _sign(
        self, subject: x509.Name, key: CertificatePublicKeyTypes, *, authority: bool = False, host: str = ""
    ) -> bytes:
        begins = datetime.now(timezone.utc) + self.begins
        builder = (
            x509.CertificateBuilder(self._name, subject, key, x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(begins + self.lives)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if authority:
            builder = builder.add_extension(key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        if host:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(PEM)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else [])


def ca_of_the_guide(folder: Path) -> None:
    """Make new-ca.key and new-ca.pem in a folder, by the command in fleet/README.md."""
    (command,) = re.findall(r"^ *(openssl req -x509 .*)$", GUIDE.read_text().replace("\\\n", " "), re.MULTILINE)
    subprocess.run(shlex.split(command), cwd=folder, capture_output=True, check=True)
