"""Keys of people and publishers: files (encrypted PKCS#8, Ed25519) or PKCS#11 tokens, and their public parts.

`NAME.pem` is secret and stays where it was created. `NAME.pub` (JSON) goes to the publisher; for a token's key it also
holds the `hsm:` URI of securesystemslib with which the holder signs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from securesystemslib.exceptions import UnsupportedLibraryError
from securesystemslib.signer import CryptoSigner, HSMSigner, Key, Signer, SSlibKey

from fleet.disk import read_bounded, write_durably
from fleet.publisher.roles import NAME_FIELD
from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.common.domain.manifest_toml import NAME_PATTERN

SCHEMA = 1
KEY_LIMIT_BYTES = 65_536
PASSPHRASE_MINIMUM_CHARS = 12
"""PKCS#8 as `cryptography` writes it uses only 2,048 rounds of PBKDF2, so the passphrase must be long."""
SECRET_SUFFIX, PUBLIC_SUFFIX = ".pem", ".pub"
HSM_LIBRARY = "PYKCS11LIB"
"""Environment variable with which securesystemslib finds the token's PKCS#11 library."""

Ask = Callable[[str], str]
"""Return the passphrase or PIN for a purpose, which is given in words."""


def refuse_to_ask(what: str) -> str:
    """Raise ConfigurationError: a program that runs unattended has no terminal to ask on."""
    problem = f"the {what} is needed while the controller runs; start it again with --passphrase-file FILE"
    raise ConfigurationError(problem)


@dataclass(frozen=True, slots=True)
class PublicKey:
    """Public part of a key. `uri` is set if a token holds the secret part."""

    name: str
    key: SSlibKey
    uri: str = ""


def make_key(folder: Path, name: str, passphrase: str | None) -> PublicKey:
    """Create a key in `folder`; passphrase None: not encrypted. Raise ConfigurationError, or OSError.

    Keys that exist are not overwritten; that is a ConfigurationError.
    """
    return keep_key(folder, name, Ed25519PrivateKey.generate(), passphrase)


def keep_key(folder: Path, name: str, private: Ed25519PrivateKey, passphrase: str | None) -> PublicKey:
    """Write a key's two files. Raise the same errors as `make_key`."""
    secret = _free(folder, name, SECRET_SUFFIX)
    if passphrase is not None and len(passphrase) < PASSPHRASE_MINIMUM_CHARS:
        raise ConfigurationError(f"a passphrase needs {PASSPHRASE_MINIMUM_CHARS} characters at least; choose another")
    encryption = (
        serialization.NoEncryption()
        if passphrase is None
        else serialization.BestAvailableEncryption(passphrase.encode())
    )
    encoding = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    write_durably(secret, private.private_bytes(*encoding, encryption), mode=0o600)
    public = PublicKey(name, SSlibKey.from_crypto(private.public_key()))
    _write_public(folder, public)
    return public


def import_token_key(folder: Path, name: str, uri: str, ask: Ask) -> PublicKey:
    """Write the public part of a token's PKCS#11 key to `folder`. `uri` has securesystemslib's form.

    Raise ConfigurationError, UnreachableError if the token or its library is not available, or OSError.
    """
    _free(folder, name, PUBLIC_SUFFIX)
    from urllib.parse import parse_qsl, urlparse

    parsed = urlparse(uri)
    if parsed.scheme != "hsm" or not (parsed.path.isdecimal() or not parsed.path):
        raise ConfigurationError(f"{uri!r:.150} is no token's key; write hsm:NUMBER?label=TOKEN, for example hsm:2")
    number, label = (int(parsed.path) if parsed.path else None, dict(parse_qsl(parsed.query)).get("label"))
    try:
        uri, key = HSMSigner.import_(number, label, lambda secret: ask(f"{secret} of {uri}"))
    except Exception as error:  # a token's library raises errors of its own, which no import names here
        raise _token_problem(uri, error) from error
    public = PublicKey(name, key, uri)
    _write_public(folder, public)
    return public


def read_public(file: Path) -> PublicKey:
    """Read a `.pub` file. Raise ConfigurationError."""
    content = read_bounded(file, KEY_LIMIT_BYTES)
    if b"PRIVATE KEY" in content:
        problem = f"is a secret key; name its public part, {file.with_suffix(PUBLIC_SUFFIX).name}"
        raise ConfigurationError(problem, file=str(file))
    try:
        document = json.loads(content)
        return _read_public_document(document)
    except (ValueError, KeyError, TypeError, AttributeError, UnsupportedAlgorithm) as error:
        problem = f"is no public key of edge-fleet keys new ({type(error).__name__}: {error!s:.100})"
        raise ConfigurationError(problem, file=str(file)) from None


def load_signer(file: Path, ask: Ask) -> Signer:
    """Return the signer of `NAME.pem`, or of a token's `NAME.pub`. Raise ConfigurationError, UnreachableError."""
    if file.suffix != PUBLIC_SUFFIX:
        return _load_file(file, ask)
    public = read_public(file)
    if not public.uri:
        secret = file.with_suffix(SECRET_SUFFIX)
        if not secret.exists():
            raise ConfigurationError(f"is the public part; the secret one, {secret.name}, is not here", file=str(file))
        return _load_file(secret, ask)
    try:
        inner = Signer.from_priv_key_uri(public.uri, public.key, lambda secret: ask(f"{secret} of {public.name}"))
    except (ValueError, UnsupportedLibraryError) as error:
        raise _token_problem(public.uri, error) from error
    return TokenSigner(inner, public.uri)


def has_secret(file: Path) -> bool:
    """Return whether the secret part of a `.pub` file is here or in a token. Raise ConfigurationError."""
    return file.with_suffix(SECRET_SUFFIX).exists() or bool(read_public(file).uri)


class TokenSigner(Signer):
    """Signer with a token's key. It explains failures such as no library, no token, or a wrong PIN."""

    def __init__(self, inner: Signer, uri: str) -> None:
        self._inner, self._uri = inner, uri

    @property
    def public_key(self) -> Key:
        """The key in the token's `.pub` file."""
        return self._inner.public_key

    @classmethod
    def from_priv_key_uri(cls, priv_key_uri: str, public_key: Key, secrets_handler: Ask | None = None) -> TokenSigner:
        """Return a signer for the URI of a token's key."""
        return cls(Signer.from_priv_key_uri(priv_key_uri, public_key, secrets_handler), priv_key_uri)

    def sign(self, payload: bytes) -> Any:
        """Sign `payload`. Raise UnreachableError."""
        try:
            return self._inner.sign(payload)
        except Exception as error:  # as above: any error of the token's library
            raise _token_problem(self._uri, error) from error


def _load_file(file: Path, ask: Ask) -> CryptoSigner:
    content = read_bounded(file, KEY_LIMIT_BYTES)
    passphrase: bytes | None = None
    if b"ENCRYPTED" in content:
        passphrase = ask(f"passphrase of {file.name}").encode()
    elif file.stat().st_mode & 0o077:
        raise ConfigurationError("is not encrypted and others may read it; chmod 600 it", file=str(file))
    try:
        private = serialization.load_pem_private_key(content, passphrase)
        key = SSlibKey.from_crypto(private.public_key())
        _name_key(key, file.stem)
        return CryptoSigner(private, key)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        what = "the passphrase is wrong, or it" if passphrase else "it"
        problem = f"{what} is no key of edge-fleet keys new ({error!s:.100})"
        raise ConfigurationError(problem, file=str(file)) from None


def _free(folder: Path, name: str, suffix: str) -> Path:
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigurationError(f"{name!r:.150} cannot name a key; letters, digits, '.', '_' and '-' can")
    for taken in (folder / f"{name}{SECRET_SUFFIX}", folder / f"{name}{PUBLIC_SUFFIX}"):
        if taken.exists():
            raise ConfigurationError("exists; keys are never overwritten, choose another name", file=str(taken))
    return folder / f"{name}{suffix}"


def _write_public(folder: Path, public: PublicKey) -> None:
    key = public.key
    document = {"schema": SCHEMA, "name": public.name, "keyid": key.keyid, "scheme": key.scheme, "public": _pem(key)}
    if public.uri:
        document["uri"] = public.uri
    write_durably(folder / f"{public.name}{PUBLIC_SUFFIX}", (json.dumps(document, indent=1) + "\n").encode())


def _read_public_document(document: Any) -> PublicKey:
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']!r:.40}")
    name = document["name"]
    if not (isinstance(name, str) and NAME_PATTERN.fullmatch(name)):
        raise ValueError(f"name {name!r:.80}")
    public = serialization.load_pem_public_key(document["public"].encode())
    key = SSlibKey.from_crypto(public, scheme=str(document["scheme"]))
    _name_key(key, name)
    return PublicKey(name, key, str(document.get("uri", "")))


def _pem(key: SSlibKey) -> str:
    public = key.keyval["public"]
    if key.keytype != "ed25519":
        return str(public)
    encoding = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).public_bytes(*encoding).decode()


def _name_key(key: SSlibKey, name: str) -> None:
    key.unrecognized_fields[NAME_FIELD] = name


def _token_problem(uri: str, error: Exception) -> UnreachableError:
    text = str(error) or type(error).__name__
    remedy = f"insert the token, set {HSM_LIBRARY} to its PKCS#11 library, and check number, label and PIN"
    return UnreachableError(f"the key {uri} cannot be used: {text:.200}; {remedy}")
