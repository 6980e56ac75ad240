"""Which URLs a pull may request, and with which headers: credentials go to the origin they are for, and to no other."""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Callable, Mapping

from gateway.common.transfer.answers import RequestRules, without_secrets
from gateway.common.transfer.source import FetchError

PORTS = {"http": 80, "https": 443}
REMEDIES = {
    401: "give credentials by environment or file (docs/pages/howto/pull.md); programs that keep them are not run",
    403: "these credentials, or none, may not read it; check name and rights",
    404: "check the reference; some servers answer so to callers without rights",
}
RETRIED = frozenset({408, 425, 429})
"""Statuses below 500 that ask for another attempt (RFC 9110, 15.5.9; RFC 8470, 5.2; RFC 6585, 4)."""


def rules(headers: Callable[[str], Mapping[str, str]]) -> RequestRules:
    """Return the rules of a pull, with the headers that `headers` gives for a URL that may be requested."""

    def admitted(url: str) -> Mapping[str, str]:
        check_url(url)
        return headers(url)

    again = "what came is kept: run the command again"
    return RequestRules(admitted, RETRIED, again, REMEDIES, "name the authority with --ca FILE, and check the clock")


def check_url(url: str) -> None:
    """Raise FetchError for HTTP without TLS, unless it stays on this device."""
    scheme, host, _ = origin(url)
    if scheme != "https" and not (scheme == "http" and is_loopback(host)):
        raise FetchError(f"{without_secrets(url)} is not asked: only this device may be without TLS", final=True)


def is_loopback(host: str) -> bool:
    """Return True if a host is this device: a loopback address, or a name of it (RFC 6761, 6.3)."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port (RFC 6454, 4). Raise FetchError if it is no URL."""
    try:
        parts = urllib.parse.urlsplit(url)
        scheme = parts.scheme.lower()
        return scheme, (parts.hostname or "").lower(), parts.port or PORTS.get(scheme, 0)
    except ValueError as error:
        raise FetchError(f"{without_secrets(url)} is no URL: {error!s:.100}", final=True) from error


def split_url(url: str) -> tuple[str, str]:
    """Return the root of a URL's server, and the rest: path and query. Raise FetchError if it is no URL."""
    origin(url)
    parts = urllib.parse.urlsplit(url)
    rest = urllib.parse.urlunsplit(("", "", parts.path, parts.query, ""))
    return f"{parts.scheme}://{parts.netloc}/", rest.removeprefix("/")
