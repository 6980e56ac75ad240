"""A fleet's certificate authority: the controller's own certificate, and those of devices."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fleet.authority.ca import key_usage

PEM = serialization.Encoding.PEM
LIFE = timedelta(days=90)
_SIGNS = key_usage(key_cert_sign=True, crl_sign=True)
"""What an authority's certificate has to say (RFC 5280, 4.2.1); from Python 3.13 on clients insist."""


class Authority:
    """`file` is the authority's certificate; `lives` how long the next certificates hold, from `begins` (from now)."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._key, self._folder = ec.generate_private_key(ec.SECP256R1()), folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fleet authority")])
        self.lives, self.begins = LIFE, timedelta(minutes=-1)
        own = self._sign(self._key.public_key(), self._name, authority=True)
        self.file = folder / "authority.pem"
        self.file.write_bytes(own)

    def server_context(self) -> ssl.SSLContext:
        """For `localhost`; devices may show a certificate of this authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (self._folder / "server.pem").write_bytes(self._sign(key.public_key(), name, host="localhost") + private)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._folder / "server.pem")
        context.load_verify_locations(self.file)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def certify(self, request: str, device: str) -> str:
        """A device's certificate, in PEM. Raises ValueError for a request that is not signed by its own key."""
        made = x509.load_pem_x509_csr(request.encode())
        if not made.is_signature_valid:
            raise ValueError("the request is not signed by its own key")
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, device)])
        return self._sign(made.public_key(), name).decode()

    def _sign(self, key, name: x509.Name, *, authority: bool = False, host: str = "") -> bytes:  # type: ignore[no-untyped-def]
        begins = datetime.now(UTC) + self.begins
        builder = (
            x509.CertificateBuilder(self._name, name, key, x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(begins + self.lives)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if authority:
            builder = builder.add_extension(_SIGNS, critical=True)
        if host:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(PEM)


def key_of(request: str) -> bytes:
    """The public key that a request is for: the same device asks with the same one again."""
    public = x509.load_pem_x509_csr(request.encode()).public_key()
    return public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
