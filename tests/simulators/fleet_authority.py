"""Certificate authority of a fleet: it issues the controller's and the devices' certificates."""

from __future__ import annotations

import ssl
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from tests.simulators.authority import Authority

LIFE = timedelta(days=90)


class FleetAuthority(Authority):
    """CA whose certificate is `file`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(LIFE, timedelta(minutes=-1))
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self.file = folder, folder / "authority.pem"
        self.file.write_bytes(self.pem)

    def server_context(self) -> ssl.SSLContext:
        """Return a TLS context for `localhost` with optional client certificates of this authority."""
        (self._folder / "server.pem").write_bytes(b"".join(self.issue("localhost")))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._folder / "server.pem")
        context.load_verify_locations(self.file)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def answer(self, request: str, device: str) -> str:
        """Return a device's certificate in PEM. Raise ValueError for a request not signed by its own key."""
        made = x509.load_pem_x509_csr(request.encode())
        if not made.is_signature_valid:
            raise ValueError("the request is not signed by its own key")
        return self.certify(made.public_key(), device).decode()


def key_of(request: str) -> bytes:
    """Return the public key of a request. A device repeats a request with the same key."""
    public = x509.load_pem_x509_csr(request.encode()).public_key()
    return public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
