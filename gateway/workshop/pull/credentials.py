"""Credentials for a pull: environment variables, or files that only their user can read. No program is run for them.

Files: Docker's config.json (`auths`), as docker, podman and oras write it; Amazon's credentials file for buckets.
"""

from __future__ import annotations

import base64
import binascii
import configparser
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.common.store.plain import open_plain
from gateway.workshop.pull.bucket import S3Keys
from gateway.workshop.pull.settings import PullSettings

USER, PASSWORD, TOKEN = "EDGE_GATEWAY_PULL_USER", "EDGE_GATEWAY_PULL_PASSWORD", "EDGE_GATEWAY_PULL_TOKEN"
"""Environment variables with a name and a password, or with a bearer token."""


@dataclass(frozen=True, slots=True)
class PullLogin:
    """Name and password, or a bearer `token`."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)

    @property
    def authorization(self) -> str:
        """Value of the header (RFC 7617, RFC 6750)."""
        if self.token:
            return f"Bearer {self.token}"
        return f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}"


def read_login(
    host: str, file: str | None, settings: PullSettings, environ: Mapping[str, str] = os.environ
) -> PullLogin | None:
    """Return the login for `host` from the environment, `file`, or the usual files. Raise ConfigurationError."""
    token, user = _header_text(environ.get(TOKEN, ""), TOKEN), environ.get(USER, "")
    if token or user:
        return PullLogin(user, environ.get(PASSWORD, ""), token)
    for path in [Path(file)] if file else _auth_files(environ):
        if file or path.is_file():
            content, unsafe = _read_secret(path, settings.credentials_limit_bytes)
            login = _login(content, host, path)
            if login and unsafe:
                raise ConfigurationError(unsafe, file=str(path))
            if login:
                return login
    return None


def read_keys(file: str | None, settings: PullSettings, environ: Mapping[str, str] = os.environ) -> S3Keys | None:
    """Return the keys for buckets from the environment, `file`, or the usual file. Raise ConfigurationError."""
    access, secret = environ.get("AWS_ACCESS_KEY_ID", ""), environ.get("AWS_SECRET_ACCESS_KEY", "")
    if access and secret and not file:
        return _s3_keys(access, secret, environ.get("AWS_SESSION_TOKEN", ""), "AWS_ACCESS_KEY_ID")
    path = Path(file or environ.get("AWS_SHARED_CREDENTIALS_FILE") or Path.home() / ".aws" / "credentials")
    if not file and not path.is_file():
        return None
    content, unsafe = _read_secret(path, settings.credentials_limit_bytes)
    keys = _keys(content, environ.get("AWS_PROFILE", "default"), path)
    if keys and unsafe:
        raise ConfigurationError(unsafe, file=str(path))
    return keys


def _auth_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the places in which docker and podman keep logins."""
    if environ.get("REGISTRY_AUTH_FILE"):
        yield Path(environ["REGISTRY_AUTH_FILE"])
    if environ.get("XDG_RUNTIME_DIR"):
        yield Path(environ["XDG_RUNTIME_DIR"], "containers", "auth.json")
    yield Path(environ.get("DOCKER_CONFIG") or Path.home() / ".docker", "config.json")


def _read_secret(path: Path, limit_bytes: int) -> tuple[str, str]:
    """Return the text of a file, and why its secrets are not safe there ("": they are)."""
    try:
        with open_plain(path) as file:
            found = os.fstat(file.fileno())
            content = file.read(limit_bytes + 1)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}; name a file of this user"
        raise ConfigurationError(problem, file=str(path)) from error
    if len(content) > limit_bytes:
        raise ConfigurationError(f"has more than {limit_bytes} bytes; name a file of credentials", file=str(path))
    return content.decode("utf-8", "replace"), unsafe_mode(found.st_mode, found.st_uid, os.geteuid())


def unsafe_mode(mode: int, owner: int, user: int) -> str:
    """Return why a file with this mode and owner is not safe for the secrets of `user`, or ""."""
    if stat.S_IMODE(mode) & 0o077:
        return "other users may read or change its secrets; run chmod 600 on it"
    return "" if owner in {0, user} else "belongs to another user; copy it, as a file of this user with mode 600"


def _login(content: str, host: str, path: Path) -> PullLogin | None:
    try:
        document = json.loads(content)
        entries = document.get("auths", {})
        found = next((entry for key, entry in entries.items() if _host(key) == host and entry.get("auth")), None)
        user, _, password = (
            base64.b64decode(found["auth"], validate=True).decode().partition(":") if found else ("",) * 3
        )
    except (ValueError, AttributeError, TypeError, RecursionError, binascii.Error) as error:
        raise ConfigurationError("is no file of logins; docker login writes one", file=str(path)) from error
    return PullLogin(user, password) if found else None


def _host(key: str) -> str:
    return key.removeprefix("https://").removeprefix("http://").partition("/")[0]


def _keys(content: str, profile: str, path: Path) -> S3Keys | None:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(content)
    except configparser.Error as error:
        raise ConfigurationError(
            "is no file of credentials with [profiles]; aws configure writes one", file=str(path)
        ) from error
    if profile not in parser:
        return None
    section = parser[profile]
    access, secret = section.get("aws_access_key_id", ""), section.get("aws_secret_access_key", "")
    if not access or not secret:
        return None
    return _s3_keys(access, secret, section.get("aws_session_token", ""), str(path))


def _s3_keys(access: str, secret: str, token: str, named: str) -> S3Keys:
    return S3Keys(_header_text(access, named), secret, _header_text(token, named))


def _header_text(value: str, named: str) -> str:
    """Return a value that goes into a header. Raise ConfigurationError if it may not (RFC 9110, 5.5)."""
    if not value.isascii() or not value.isprintable():
        raise ConfigurationError("holds a key or token with line ends or characters beyond ASCII", file=named)
    return value
