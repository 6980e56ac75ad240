"""Who is calling, and whether a listener may be open: decided on values, before a socket exists."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.domain.errors import ConfigurationError, Fault, RequestError

BEARER = "bearer "
_HOST_PORT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s:/\[\]]+)):(?P<port>[0-9]{1,5})")
_COMMENT = re.compile(r"(?:^|\s)#.*")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Caller names by the SHA-256 of their token; empty: no token is asked for."""

    names: Mapping[bytes, str]

    def caller(self, authorization: str | None) -> str:
        """The name behind an `Authorization: Bearer …` value. UNAUTHENTICATED where it is missing or unknown.

        Digests are compared, so that timing says nothing about a token's bytes.
        """
        if authorization is None or not authorization.lower().startswith(BEARER):
            raise RequestError(Fault.UNAUTHENTICATED, "a token is required: send 'Authorization: Bearer TOKEN'")
        digest = _digest(authorization[len(BEARER) :].strip())
        for known, name in self.names.items():
            if hmac.compare_digest(known, digest):
                return name
        raise RequestError(Fault.UNAUTHENTICATED, "unknown token; ask the operator for one of tokens_file")


@dataclass(frozen=True, slots=True)
class Security:
    """What guards the listeners, as contents of the files that `[tls]` and `[auth]` name.

    `certificate` (leaf first) and `key` are PEM and come together; with `client_ca` clients need a certificate of it.
    """

    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    client_ca: bytes | None = None
    tokens: Tokens | None = field(default=None, repr=False)


def check_replaceable(old: Security, new: Security) -> None:
    """Refuse a set that turns TLS or client certificates on or off: listeners are made for one or the other.

    Raises ConfigurationError (table tls).
    """
    for key in ("certificate", "client_ca"):
        if (getattr(old, key) is None) != (getattr(new, key) is None):
            setting = "cert" if key == "certificate" else key
            word = "off" if getattr(new, key) is None else "on"
            raise ConfigurationError(
                f"turning this {word} needs a restart; restart the gateway, or write the setting as it was",
                table="tls",
                key=setting,
            )


def changes(old: Security, new: Security) -> tuple[str, ...]:
    """Name what differs, for the log: "tokens (1 added, 1 revoked)", "certificate and key", "client_ca"."""
    before, after = (set(each.tokens.names if each.tokens else ()) for each in (old, new))
    said = f"tokens ({len(after - before)} added, {len(before - after)} revoked)"
    differs = {
        said: old.tokens != new.tokens,
        "certificate and key": (old.certificate, old.key) != (new.certificate, new.key),
        "client_ca": old.client_ca != new.client_ca,
    }
    return tuple(name for name, different in differs.items() if different)


def read_tokens(text: str, file: str) -> Tokens:
    """One token a line, `NAME TOKEN` or `TOKEN`; '#' at a word's start begins a comment.

    Raises ConfigurationError (file, line).
    """
    if "-----BEGIN" in text:
        raise ConfigurationError("holds PEM, not tokens; write one token a line", file=file)
    names: dict[bytes, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = _COMMENT.sub("", line).split()
        if len(words) > 2:
            raise ConfigurationError("expected 'NAME TOKEN' or 'TOKEN'", file=file, line=number)
        if words:
            digest = _digest(words[-1])
            names[digest] = words[0] if len(words) == 2 else f"token-{digest.hex()[:8]}"
    if not names:
        raise ConfigurationError("holds no token; write one a line, or remove [auth] tokens_file", file=file)
    return Tokens(names)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a frontend listens: a TCP host and port, or the path of a UNIX socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def private(self) -> bool:
        """Loopback or a UNIX socket: reachable only from this machine."""
        if self.path or self.host == "localhost":
            return True
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return (mapped or address).is_loopback  # Python looks behind the mapping only from 3.13 on


def read_address(text: str, table: str = "", key: str = "listen") -> Address | None:
    """`host:port`, `[v6]:port`, `unix:/path`, or `off` (None). Raises ConfigurationError."""
    if text == "off":
        return None
    if text.startswith("unix:"):
        return _unix_address(text, table, key)
    found = _HOST_PORT.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise ConfigurationError(
            f"{text!r:.120} is no address; write host:port, [v6]:port, unix:/path or off", table=table, key=key
        )
    return Address(found["v6"] or found["host"], int(found["port"]))


def check_exposure(address: Address, *, tls: bool, tokens: bool) -> None:
    """Refuse a listener beyond this machine that has neither TLS nor tokens. Raises ConfigurationError."""
    if not (address.private or tls or tokens):
        raise ConfigurationError(
            f"listening on {address} would let anyone on the network in; set [auth] tokens_file, or [tls] cert "
            "and key, or listen on 127.0.0.1 or a UNIX socket"
        )


def _unix_address(text: str, table: str, key: str) -> Address:
    path = text.removeprefix("unix:")
    path = "/" + path.lstrip("/") if path.startswith("//") else path
    if not path.startswith("/") or len(path.encode()) > 107:
        raise ConfigurationError(
            f"{text!r} is no UNIX socket address; write unix:/absolute/path of at most 107 bytes",
            table=table,
            key=key,
        )
    return Address(path=path)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
