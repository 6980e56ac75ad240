"""The device's own certificate: a key made here, that never leaves, and what the fleet signed for it.

Key, certificate and chain lie in one file, so that they are replaced together: power may fail at any moment. A key that
waits for its certificate lies beside it; where the answer was lost it is presented again, and the fleet can tell that
it is the same device.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.agent.settings import FetchSettings
from gateway.agent.source import FetchError
from gateway.store.durable import remove_file, write_file
from gateway.store.errors import told_as_store_error

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

    from gateway.agent.controller import Controller

FILE = "device.pem"
PENDING_FILE = "device-next.key"
CA_FILE = "ca.pem"
"""Who may sign the controller's certificate, where that was named at enrolment."""
KEY_MODE = 0o600
RENEW_AT_SHARE = 2 / 3
"""Of its life: what is left is for controllers that are away."""
PEM_LIMIT_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Held:
    """The certificate that this device has. `serial`: lower-case hex, as the controller lists it."""

    device: str
    serial: str
    begins: datetime
    expires: datetime

    @property
    def renew_from(self) -> datetime:
        """From then on another one is asked for."""
        return self.begins + (self.expires - self.begins) * RENEW_AT_SHARE


def with_certificate(settings: FetchSettings, folder: Path) -> FetchSettings:
    """What the settings leave open, from the store: the device's certificate, and who may sign the controller's."""
    own, authority = folder / FILE, folder / CA_FILE
    if settings.certificate_file is None and own.is_file():
        settings = replace(settings, certificate_file=str(own), key_file=None)
    if settings.ca_file is None and authority.is_file():
        settings = replace(settings, ca_file=str(authority))
    return settings


def read_held(folder: Path) -> Held | None:
    """The certificate in the store; None where there is none, or none that can be read: enrol the device again."""
    try:
        certificate = _certificate((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return None
    from cryptography.x509.oid import NameOID

    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    device = str(names[0].value) if names else ""
    begins, expires = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return Held(device, f"{certificate.serial_number:x}", begins, expires)


def pending_key(folder: Path) -> EllipticCurvePrivateKey:
    """The key that waits for its certificate, made where there is none; on the disk when this returns. Raises
    StoreError."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    file = folder / PENDING_FILE
    try:
        found = serialization.load_pem_private_key(file.read_bytes(), None)
        if isinstance(found, ec.EllipticCurvePrivateKey):
            return found
    except (OSError, ValueError):  # none there, or half of one: nobody has signed anything for it
        pass
    key = ec.generate_private_key(ec.SECP256R1())
    with told_as_store_error(file):
        write_file(file, _key_pem(key), KEY_MODE)
    return key


def signing_request(key: EllipticCurvePrivateKey, name: str) -> str:
    """A PKCS #10 request in PEM; which name the device gets is the fleet's to say."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])] if name else [])
    request = x509.CertificateSigningRequestBuilder(subject).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()


def keep(folder: Path, key: EllipticCurvePrivateKey, certificate: str, chain: str) -> None:
    """Let this be the device's certificate from now on. Raises ValueError where it is none, or not for this key;
    StoreError."""
    if len(certificate) + len(chain) > PEM_LIMIT_BYTES:
        raise ValueError(f"the certificate and its chain have more than {PEM_LIMIT_BYTES} bytes")
    found = _certificate(certificate.encode())
    if found.public_key() != key.public_key():
        raise ValueError("the certificate is not for this device's key")
    for line in chain.splitlines():
        if "PRIVATE" in line:
            raise ValueError("the chain holds a key")
    content = _key_pem(key) + b"\n".join(part.strip().encode() for part in (certificate, chain) if part) + b"\n"
    with told_as_store_error(folder / FILE):
        write_file(folder / FILE, content, KEY_MODE)


def forget_pending(folder: Path) -> None:
    """The key has its certificate, and all that goes with it is on the disk. Raises StoreError."""
    with told_as_store_error(folder / PENDING_FILE):
        remove_file(folder / PENDING_FILE)


def renew(folder: Path, controller: Controller, device: str) -> Held | None:
    """Another certificate for another key, in place of the one that is held. Raises FetchError, StoreError."""
    key = pending_key(folder)
    if _is_held(folder, key):  # power failed before it was forgotten: its certificate came
        forget_pending(folder)
        key = pending_key(folder)
    body = json.dumps({"csr": signing_request(key, device)}).encode()
    answer = controller.send("POST", "/v1/self/certificate", body, "application/json")
    try:
        keep(folder, key, *texts(answer, "certificate", "chain"))
    except ValueError as error:
        raise FetchError(f"the controller's answer is no certificate: {error!s:.200}", final=True) from error
    forget_pending(folder)
    return read_held(folder)


def _is_held(folder: Path, key: EllipticCurvePrivateKey) -> bool:
    try:
        return _certificate((folder / FILE).read_bytes()).public_key() == key.public_key()
    except (OSError, ValueError):
        return False


def texts(answer: dict[str, Any], *keys: str) -> list[str]:
    """Values of an answer. Raises ValueError for one that is no text."""
    found = [answer.get(key, "") for key in keys]
    for key, value in zip(keys, found, strict=True):
        if not isinstance(value, str):
            raise ValueError(f"{key} is {value!r:.80}, no text")  # noqa: TRY004  not a caller's type
    return found


def _certificate(content: bytes) -> Certificate:
    from cryptography import x509

    return x509.load_pem_x509_certificate(content)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    kinds = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*kinds)
