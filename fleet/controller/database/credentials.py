"""Secrets that are shown once and stored as digests: enrolment and API tokens."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

SECRET_BYTES = 32
PREFIX_CHARACTERS = 10
"""Characters stored in the clear, to tell tokens apart: the kind, and 36 of 256 random bits."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A token. `text` is shown once; `prefix` and `digest` (SHA-256, hex) are stored. 256 random bits need no salt."""

    text: str = field(repr=False)
    prefix: str
    digest: str


def new_credential(kind: str) -> Credential:
    """Generate a token. `kind` identifies it to people and secret scanners.

    "efe_": enrolment token, "eft_": API token.
    """
    return read_credential(kind + secrets.token_urlsafe(SECRET_BYTES))


def read_credential(text: str) -> Credential:
    """Return the credential for a token that a caller presents."""
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return Credential(text, text[:PREFIX_CHARACTERS], digest)
