"""Files of the authority: `ca.key` (0600) and `ca.pem`, created by the controller's first start or by the operator."""

from __future__ import annotations

import fcntl
import os
import stat
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fleet.controller.authority.ca import Authority, new_authority
from fleet.controller.authority.settings import AuthoritySettings
from fleet.disk import read_bounded, write_durably
from gateway.common.domain.errors import ConfigurationError

KEY_FILE = "ca.key"
CERTIFICATE_FILE = "ca.pem"
LOCK_FILE = ".ca.lock"
FILE_LIMIT_BYTES = 262_144
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def open_authority(folder: Path, now: datetime, settings: AuthoritySettings | None = None) -> Authority:
    """Open the authority of a folder, or create it if there is none.

    `ca.pem` holds its certificate, then those of earlier CAs. If several processes start at once, one creates it. Raise
    ConfigurationError, OSError.
    """
    settings = settings or AuthoritySettings()
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK_FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        files = folder / KEY_FILE, folder / CERTIFICATE_FILE
        if not files[1].exists():
            if files[0].exists():
                made = new_authority(now, settings, _read_key(files[0]))  # the process ended between the two files
            else:
                made = new_authority(now, settings)
                write_durably(files[0], made.key_pem, mode=0o600)
            write_durably(files[1], made.pem)  # last: if it exists, both are complete
        return read_authority(*files, settings)
    finally:
        os.close(descriptor)


def read_authority(key_file: Path, certificate_file: Path, settings: AuthoritySettings | None = None) -> Authority:
    """Read an authority that was made elsewhere. Raise ConfigurationError."""
    key = _read_key(key_file)
    try:
        certificates = x509.load_pem_x509_certificates(read_bounded(certificate_file, FILE_LIMIT_BYTES))
    except ValueError as error:
        raise ConfigurationError(f"holds no PEM certificate ({error!s:.200})", file=str(certificate_file)) from None
    if certificates[0].public_key() != key.public_key():
        problem = f"its first certificate is not that of the key in {key_file}; both must be of the same CA"
        raise ConfigurationError(problem, file=str(certificate_file))
    for certificate in certificates:
        _check_authority(certificate, str(certificate_file))
    return Authority(key, certificates[0], tuple(certificates[1:]), settings or AuthoritySettings())


def _read_key(file: Path) -> ec.EllipticCurvePrivateKey:
    content = read_bounded(file, FILE_LIMIT_BYTES)
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & _OTHERS:
        raise ConfigurationError(f"others may read it (mode {mode:04o}); chmod 600 it", file=str(file))
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        problem = f"is no private key that can be used ({error!s:.200}); it must be PEM and not encrypted"
        raise ConfigurationError(problem, file=str(file)) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1):
        raise ConfigurationError("the CA's key must be EC P-256 or P-384", file=str(file))
    return key


def _check_authority(certificate: x509.Certificate, file: str) -> None:
    try:
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
        fits = basic.ca and usage.key_cert_sign
    except (x509.ExtensionNotFound, ValueError):
        fits = False
    if not fits:
        subject = certificate.subject.rfc4514_string()
        problem = f"{subject:.200} is no CA's certificate (basicConstraints CA, keyUsage keyCertSign)"
        raise ConfigurationError(problem, file=file)
