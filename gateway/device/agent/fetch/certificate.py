"""The device's certificate, which the fleet signed, and its private key, which never leaves the device.

Key, certificate and chain are in one file, so that one rename replaces them together even if power fails. A key without
a certificate yet has a file of its own. If the controller's answer was lost, the same key is presented again, so that
the fleet recognises the device.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.common.files.durable import remove_file, write_file
from gateway.common.store.errors import store_errors
from gateway.common.transfer.settings import FetchSettings
from gateway.common.transfer.source import FetchError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

    from gateway.device.agent.fetch.controller import ControllerClient

FILE = "device.pem"
PENDING_FILE = "device-next.key"
CA_FILE = "ca.pem"
"""Certificates that may sign the controller's certificate, if they were given at enrolment. They follow the fleet's."""
KEY_MODE = 0o600
RENEW_AT_SHARE = 2 / 3
"""Share of the certificate's validity after which it is renewed. The rest is a reserve for controller outages."""
PEM_LIMIT_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class HeldCertificate:
    """Certificate of this device. `serial`: lower-case hex, as the controller lists it."""

    device: str
    serial: str
    begins: datetime
    expires: datetime

    @property
    def renew_from(self) -> datetime:
        """Time from which a new certificate is requested."""
        return self.begins + (self.expires - self.begins) * RENEW_AT_SHARE


def with_certificate(settings: FetchSettings, folder: Path) -> FetchSettings:
    """Return `settings`, with the device's certificate and the controller's CA from the store if they are not set."""
    own, authority = folder / FILE, folder / CA_FILE
    if settings.certificate_file is None and own.is_file():
        settings = replace(settings, certificate_file=str(own), key_file=None)
    if settings.ca_file is None and authority.is_file():
        settings = replace(settings, ca_file=str(authority))
    return settings


def read_held(folder: Path) -> HeldCertificate | None:
    """Return the certificate in the store. None if it is absent or not readable: the device must be enrolled again."""
    try:
        certificate = _certificate((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return None
    from cryptography.x509.oid import NameOID

    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    device = str(names[0].value) if names else ""
    begins, expires = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return HeldCertificate(device, f"{certificate.serial_number:x}", begins, expires)


def expiry_text(settings: FetchSettings, folder: Path, now: datetime) -> str:
    """Return words to put before a connection's failure if the certificate in the store has expired, else "".

    A server ends the handshake with an expired certificate, which looks like a broken connection.
    """
    held = read_held(folder) if settings.certificate_file is None else None
    if held is None or now < held.expires:
        return ""
    times = f"expired at {held.expires:%FT%TZ}; the time here is {now:%FT%TZ}"
    return f"this device's certificate {times}; enrol it again with a token for it (edge-agent enrol): "


def pending_key(folder: Path) -> EllipticCurvePrivateKey:
    """Return the key that has no certificate yet; make it and write it to disk if there is none.

    Raise StoreError.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    file = folder / PENDING_FILE
    try:
        found = serialization.load_pem_private_key(file.read_bytes(), None)
        if isinstance(found, ec.EllipticCurvePrivateKey):
            return found
    except (OSError, ValueError):  # absent or incomplete: no certificate can exist for it
        pass
    key = ec.generate_private_key(ec.SECP256R1())
    with store_errors(file):
        write_file(file, _key_pem(key), KEY_MODE)
    return key


def signing_request(key: EllipticCurvePrivateKey, name: str) -> str:
    """Return a PKCS #10 request in PEM. `name` is a proposal; the fleet decides on the device's name."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])] if name else [])
    request = x509.CertificateSigningRequestBuilder(subject).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()


def keep(folder: Path, key: EllipticCurvePrivateKey, certificate: str, chain: str) -> None:
    """Replace the device's certificate.

    Raise ValueError if `certificate` is not a certificate or does not belong to `key`, StoreError.
    """
    if len(certificate) + len(chain) > PEM_LIMIT_BYTES:
        raise ValueError(f"the certificate and its chain have more than {PEM_LIMIT_BYTES} bytes")
    found = _certificate(certificate.encode())
    if found.public_key() != key.public_key():
        raise ValueError("the certificate is not for this device's key")
    for line in chain.splitlines():
        if "PRIVATE" in line:
            raise ValueError("the chain holds a key")
    content = _key_pem(key) + b"\n".join(part.strip().encode() for part in (certificate, chain) if part) + b"\n"
    with store_errors(folder / FILE):
        write_file(folder / FILE, content, KEY_MODE)


def forget_pending(folder: Path) -> None:
    """Remove the pending key after its certificate is on disk. Raise StoreError."""
    with store_errors(folder / PENDING_FILE):
        remove_file(folder / PENDING_FILE)


def renew(folder: Path, controller: ControllerClient, device: str) -> HeldCertificate | None:
    """Request a certificate for a new key and replace the current one. Raise FetchError, StoreError."""
    key = pending_key(folder)
    if _is_held(folder, key):  # power failed after its certificate was kept and before the key was removed
        forget_pending(folder)
        key = pending_key(folder)
    body = json.dumps({"csr": signing_request(key, device)}).encode()
    answer = controller.send("POST", "/v1/self/certificate", body, "application/json")
    try:
        certificate, chain = texts(answer, "certificate", "chain")
        _trust(folder, chain)
        keep(folder, key, certificate, chain)
    except ValueError as error:
        raise FetchError(f"the controller's answer is no certificate: {error!s:.200}", final=True) from error
    forget_pending(folder)
    return read_held(folder)


def _trust(folder: Path, chain: str) -> None:
    """Let `CA_FILE` follow the fleet's CAs, if they are in it: those of `chain` replace those of the last answer.

    Raise ValueError if `chain` holds no certificates, StoreError.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    file = folder / CA_FILE
    if not chain or not file.is_file():
        return
    before = x509.load_pem_x509_certificates((folder / FILE).read_bytes())[1:]
    given, now = (x509.load_pem_x509_certificates(content) for content in (file.read_bytes(), chain.encode()))
    others = [one for one in given if one not in before and one not in now]
    if len(others) < len(given) and given != [*now, *others]:
        with store_errors(file):
            write_file(file, b"".join(one.public_bytes(Encoding.PEM) for one in [*now, *others]))


def _is_held(folder: Path, key: EllipticCurvePrivateKey) -> bool:
    try:
        return _certificate((folder / FILE).read_bytes()).public_key() == key.public_key()
    except (OSError, ValueError):
        return False


def texts(answer: dict[str, Any], *keys: str) -> list[str]:
    """Return values of an answer. Raise ValueError if one is not a string."""
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
