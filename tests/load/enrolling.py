"""Enrolment of a simulated device: its key, its certificate request, and the response."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from gateway import __version__
from tests.load.identities import SimulatedIdentity
from tests.load.settings import POLL_DEFAULT_S


@dataclass(frozen=True, slots=True)
class SimulatedEnrolment:
    """An enrolment request, sent again unchanged if a response was lost. `key` in PEM."""

    name: str
    key: str
    content: bytes


def apply(name: str, token: str) -> SimulatedEnrolment:
    """Return an enrolment request with a new P-256 key. 0.05 ms."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key, pem = ec.generate_private_key(ec.SECP256R1()), serialization.Encoding.PEM
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder(subject).sign(key, hashes.SHA256()).public_bytes(pem)
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    told = {"token": token, "serial": name, "csr": request.decode(), "agent": __version__}
    return SimulatedEnrolment(name, private.decode(), json.dumps(told).encode())


def admitted(application: SimulatedEnrolment, answer: bytes) -> tuple[SimulatedIdentity, Any]:
    """Return the device's identity and the root to pin.

    Raise KeyError, TypeError or ValueError for a response of another form.
    """
    said = json.loads(answer)
    identity = SimulatedIdentity(
        application.name,
        str(said["device"]),
        f"{application.key}{said['certificate'].strip()}\n{said['chain'].strip()}\n",
        urlsplit(said["repository"]).path.rstrip("/"),
        urlsplit(said["assignment"]).path,
        float(said.get("poll_s") or POLL_DEFAULT_S),
    )
    return identity, said["root"]
