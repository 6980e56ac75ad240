"""A fleet's certificate authority: the controller's own certificate, and those of devices."""

from __future__ import annotations

import ssl
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from tests.simulators.authority import Authority

LIFE = timedelta(days=90)


class FleetAuthority(Authority):
    """`file` is the authority's certificate."""

    def __init__(self, folder: Path) -> None:
        super().__init__(LIFE, timedelta(minutes=-1))
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self.file = folder, folder / "authority.pem"
        self.file.write_bytes(self.pem)

    def server_context(self) -> ssl.SSLContext:
        """For `localhost`; devices may show a certificate of this authority."""
        (self._folder / "server.pem").write_bytes(b"".join(self.issue("localhost")))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._folder / "server.pem")
        context.load_verify_locations(self.file)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def answer(self, request: str, device: str) -> str:
        """A device's certificate, in PEM. Raises ValueError for a request that is not signed by its own key."""
        made = x509.load_pem_x509_csr(request.encode())
        if not made.is_signature_valid:
            raise ValueError("the request is not signed by its own key")
        return self.certify(made.public_key(), device).decode()


def key_of(request: str) -> bytes:
    """The public key that a request is for: the same device asks with the same one again."""
    public = x509.load_pem_x509_csr(request.encode()).public_key()
    return public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
