"""Identification of callers and exposure of listeners, decided on values before a socket exists."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timezone

from gateway.common.domain.addresses import plain_address
from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.python310 import from_iso
from gateway.common.domain.rights import DEFAULT_GRANTS, NOTHING, Caller, Grant, Scope, granted, read_rights

BEARER = "bearer "
HASHED = "sha256:"
UNIX_PATH_BYTES = 107
"""Longest path of a UNIX socket: `sun_path` has 108 bytes, the last is 0 (unix(7))."""
"""Prefix of the digest of a token that a tokens file holds hashed."""
_HOST_PORT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s:/\[\]]+)):(?P<port>[0-9]{1,5})")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_OPTIONS = ("scopes=", "models=", "expires=")
_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[Tt]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:[Zz]|[+-]\d\d:\d\d))?", re.ASCII)
"""Date or time by RFC 3339, section 5.6 ("full-date" and "date-time")."""


class AuthenticationError(RequestError):
    """An UNAUTHENTICATED refusal; `reason` is a label of metrics: missing, unknown or expired."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(Fault.UNAUTHENTICATED, message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Token:
    """A token's holder. `expires_s` is POSIX time; `expired` is set by `Tokens.at`.

    `hashed`: the file holds its digest, not the token itself.
    """

    holder: Caller
    expires_s: float | None = None
    expired: bool = False
    hashed: bool = field(default=True, compare=False)

    def at(self, now_s: float) -> Token:
        """Return the token with `expired` as of a POSIX time."""
        expired = self.expires_s is not None and self.expires_s <= now_s
        return self if expired == self.expired else replace(self, expired=expired)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens by their SHA-256 digest."""

    by_digest: Mapping[bytes, Token]

    def caller(self, authorization: str | None) -> Caller:
        """Return the holder of the token in an `Authorization: Bearer …` value. Raises AuthenticationError.

        The digest is looked up in a dictionary, which first compares a hash keyed by a secret of the process. The time
        of that reveals nothing of a known digest, and it does not grow with the number of tokens.
        """
        if authorization is None or not authorization.lower().startswith(BEARER):
            raise AuthenticationError("missing", "a token is required: send 'Authorization: Bearer TOKEN' (EG-501)")
        token = self.by_digest.get(token_digest(authorization[len(BEARER) :].strip()))
        if token is None:
            raise AuthenticationError("unknown", "unknown token; ask the operator for one of tokens_file (EG-502)")
        if token.expired:
            raise AuthenticationError(
                "expired",
                f"the token of '{token.holder.name:.200}' has expired; ask the operator for a new one (EG-502)",
            )
        return token.holder

    def at(self, now_s: float) -> Tokens:
        """Return the tokens with `expired` as of a POSIX time."""
        return Tokens({digest: token.at(now_s) for digest, token in self.by_digest.items()})

    @property
    def next_expiry_s(self) -> float | None:
        """Return the POSIX time at which the next token expires, or None if none will."""
        valid = (token.expires_s for token in self.by_digest.values() if not token.expired)
        return min((expires_s for expires_s in valid if expires_s is not None), default=None)


@dataclass(frozen=True, slots=True)
class FailureBounds:
    """Bounds of failed authentications that are answered as such, per address: `burst` at once, `per_s` on average.

    `addresses` (IPv6: /64) are remembered; a new one replaces the one idle longest.
    """

    burst: int = 10
    per_s: float = 1.0
    addresses: int = 1024


@dataclass(frozen=True, slots=True)
class Security:
    """Protection of the listeners, as contents of the files that `[tls]` and `[auth]` name.

    `certificate` (leaf first) and `key` are PEM and come together; with `client_ca` clients need a certificate of it.
    """

    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    client_ca: bytes | None = None
    tokens: Tokens | None = field(default=None, repr=False)
    grants: tuple[Grant, ...] = ()
    failures: FailureBounds = FailureBounds()

    def caller(self, name: str, identities: Sequence[str], authorization: str | None) -> Caller:
        """Identify the peer `name` by its token, else by the first grant that covers one of its `identities`.

        If tokens are configured, only a grant written by an operator exempts a caller from the token. Raises
        AuthenticationError.
        """
        rights = granted(self.grants, identities)
        if self.tokens is not None and (authorization is not None or rights is None):
            return self.tokens.caller(authorization)
        if rights is None:
            rights = granted(DEFAULT_GRANTS, identities)
        return Caller(name, rights or NOTHING)

    def at(self, now_s: float) -> Security:
        """Return the same security with tokens whose `expired` is as of a POSIX time."""
        return self if self.tokens is None else replace(self, tokens=self.tokens.at(now_s))


def check_replaceable(old: Security, new: Security) -> None:
    """Refuse a set that turns TLS or client certificates on or off: a listener is made for one or the other.

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
    """Name the differences, for the log: "tokens (1 added, 1 revoked)", "certificate and key", "client_ca"."""
    before, after = (each.tokens.by_digest if each.tokens else {} for each in (old, new))
    changed = sum(before[digest] != after[digest] for digest in before.keys() & after.keys())
    text = f"tokens ({len(after.keys() - before.keys())} added, {len(before.keys() - after.keys())} revoked"
    text += f", {changed} changed)" if changed else ")"
    differs = {
        text: old.tokens != new.tokens,
        "certificate and key": (old.certificate, old.key) != (new.certificate, new.key),
        "client_ca": old.client_ca != new.client_ca,
        "grants": old.grants != new.grants,
        "bounds of failures": old.failures != new.failures,
    }
    return tuple(name for name, different in differs.items() if different)


def read_tokens(text: str, file: str) -> Tokens:
    """Read a tokens file, one token per line.

    A line is `NAME TOKEN [scopes=a,b] [models=cam-*,door] [expires=2031-05-09]`, or `TOKEN` alone. TOKEN is the token
    itself or `sha256:` with the 64 hex digits of its digest. '#' at a word's start begins a comment. A line without
    scopes has every right. Raises ConfigurationError (file, line).
    """
    if "-----BEGIN" in text:
        raise ConfigurationError("holds PEM, not tokens; write one token a line", file=file)
    found: dict[bytes, Token] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = _COMMENT.sub("", line).split()
        if not words:
            continue
        try:
            digest, token = _token_line(words)
        except ConfigurationError as error:
            problem = f"{error.key}= {error.problem}" if error.key else error.problem
            raise ConfigurationError(problem, file=file, line=number) from None
        if found.setdefault(digest, token) != token:
            raise ConfigurationError("this token is on another line, too; keep one", file=file, line=number)
    if not found:
        raise ConfigurationError("holds no token; write one a line, or remove [auth] tokens_file", file=file)
    return Tokens(found)


def token_digest(token: str) -> bytes:
    """Return the SHA-256 digest that identifies a token."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def read_expiry(text: str) -> float:
    """Return the POSIX time of an RFC 3339 date (its beginning in UTC) or date-time. Raises ConfigurationError."""
    if _DATE.fullmatch(text):
        try:
            moment = from_iso(text.upper())
        except ValueError:
            pass
        else:
            return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    raise ConfigurationError(
        f"must be a date or time of RFC 3339, such as 2031-05-09 or 2031-05-09T12:00:00Z, not {text!r:.40}",
        key="expires",
    )


def _token_line(words: list[str]) -> tuple[bytes, Token]:
    """Return digest and holder. Raises ConfigurationError, which never quotes a word that may be a token."""
    if len(words) > 1 and words[1].startswith(_OPTIONS):
        raise ConfigurationError("a token with scopes, models or expires needs a name: write 'NAME TOKEN scopes=…'")
    if not all(word.startswith(_OPTIONS) for word in words[2:]):
        raise ConfigurationError("expected 'NAME TOKEN' or 'TOKEN', then scopes=…, models=… or expires=… (EG-111)")
    options = dict(word.split("=", 1) for word in words[2:])
    if len(options) < len(words[2:]):
        raise ConfigurationError("scopes=, models= and expires= may occur once each")
    digest, hashed = _read_token(words[min(1, len(words) - 1)])
    name = words[0] if len(words) > 1 else f"token-{digest.hex()[:8]}"
    scopes, models = options.get("scopes", Scope.ADMIN.value), options.get("models")
    rights = read_rights(scopes.split(","), () if models is None else models.split(","))
    expires_s = read_expiry(options["expires"]) if "expires" in options else None
    return digest, Token(Caller(name, rights, by_token=True), expires_s, hashed=hashed)


def _read_token(word: str) -> tuple[bytes, bool]:
    if not word.startswith(HASHED):
        return token_digest(word), False
    digits = word.removeprefix(HASHED)
    if not _SHA256.fullmatch(digits):
        raise ConfigurationError("sha256: must be followed by the 64 hex digits of the token's digest")
    return bytes.fromhex(digits), True


@dataclass(frozen=True, slots=True)
class Address:
    """Address at which a frontend listens: a TCP host and port, or the path of a UNIX socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def private(self) -> bool:
        """Return True for loopback or a UNIX socket: reachable only from this machine."""
        if self.path or self.host == "localhost":
            return True
        try:
            return plain_address(self.host).is_loopback
        except ValueError:
            return False


def read_address(text: str, table: str = "", key: str = "listen") -> Address | None:
    """Read `host:port`, `[v6]:port`, `unix:/path`, or `off` (None). Raises ConfigurationError."""
    if text == "off":
        return None
    if text.startswith("unix:"):
        path = re.sub("^//+", "/", text.removeprefix("unix:"))
        if not path.startswith("/") or len(path.encode()) > UNIX_PATH_BYTES:
            raise ConfigurationError(
                f"{text!r} is no UNIX socket address; write unix:/absolute/path of at most {UNIX_PATH_BYTES} bytes",
                table=table,
                key=key,
            )
        return Address(path=path)
    found = _HOST_PORT.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise ConfigurationError(
            f"{text!r:.120} is no address; write host:port, [v6]:port, unix:/path or off (EG-106)", table=table, key=key
        )
    return Address(found["v6"] or found["host"], int(found["port"]))


def check_exposure(address: Address, security: Security, *, anonymous: bool) -> None:
    """Refuse a listener beyond this machine that identifies no caller, unless `anonymous` is set.

    Raises ConfigurationError.
    """
    if is_open(address, security) and not anonymous:
        why = "[tls] cert and key identify the gateway, not its callers; " if security.certificate else ""
        raise ConfigurationError(
            f"listening on {address} would let anyone on the network in; {why}set "
            "[auth] tokens_file, or [tls] client_ca with cert and key; or listen on 127.0.0.1 or a UNIX socket; or "
            "allow it by [auth] anonymous = true (EG-105)"
        )


def is_open(address: Address, security: Security) -> bool:
    """Return True if callers on the network need neither token nor certificate."""
    return not (address.private or security.tokens or security.client_ca)
