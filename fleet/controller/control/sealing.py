"""Encryption by a caller's secret: AES-256-GCM with a key of HKDF-SHA256 (RFC 5869)."""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.domain.errors import Fault, RequestError

SALT_BYTES, NONCE_BYTES, KEY_BYTES = 32, 12, 32
PURPOSE = b"edge-fleet: answer to an Idempotency-Key"


def seal(plain: bytes, secret: str, about: str) -> bytes:
    """Encrypt `plain`. `secret` has at least 128 random bits; `about` is bound to the result and not stored in it."""
    salt, nonce = secrets.token_bytes(SALT_BYTES), secrets.token_bytes(NONCE_BYTES)
    return salt + nonce + _cipher(secret, salt).encrypt(nonce, plain, about.encode())


def unseal(sealed: bytes, secret: str, about: str) -> bytes:
    """Decrypt what `seal` returned. Raise RequestError INTERNAL if a byte or `about` differs."""
    salt, nonce, rest = sealed[:SALT_BYTES], sealed[SALT_BYTES:][:NONCE_BYTES], sealed[SALT_BYTES + NONCE_BYTES :]
    try:
        return _cipher(secret, salt).decrypt(nonce, rest, about.encode())
    except (InvalidTag, ValueError):
        problem = "the stored answer to this Idempotency-Key cannot be read; use a new key after checking what was done"
        raise RequestError(Fault.INTERNAL, problem) from None


def _cipher(secret: str, salt: bytes) -> AESGCM:
    return AESGCM(HKDF(hashes.SHA256(), KEY_BYTES, salt, PURPOSE).derive(secret.encode()))
