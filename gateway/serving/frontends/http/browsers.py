"""Access of browsers: foreign origins and host names are refused; listed origins are answered by CORS."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.wire.asgi import Application, Message, Receive, Scope, Send, respond
from gateway.serving.frontends.http.bounds import Refuse

LOCAL_NAMES = ("localhost", "*.localhost")
"""Names that browsers resolve to loopback themselves (RFC 6761, section 6.3)."""
STAINLESS = b", ".join(
    b"x-stainless-" + name
    for name in (
        b"arch",
        b"lang",
        b"os",
        b"package-version",
        b"retry-count",
        b"runtime",
        b"runtime-version",
        b"timeout",
    )
)
"""Headers of OpenAI's JavaScript client, which a page that uses it sends."""
ALLOWED = (
    (b"access-control-allow-methods", b"GET, POST"),
    (
        b"access-control-allow-headers",
        b"authorization, content-type, content-encoding, inference-header-content-length, " + STAINLESS,
    ),
    (b"access-control-max-age", b"600"),
)
EXPOSED = (b"access-control-expose-headers", b"inference-header-content-length, retry-after, www-authenticate")
VARY = (b"vary", b"origin")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]/\s]+)(?::[0-9]{0,5})?")
_PATTERN = re.compile(r"\*|(?:\*\.)?[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")

Count = Callable[[str], None]
"""Counter of refusals for the metrics, by reason."""


class BrowserGuard:
    """ASGI application in front of `app`: it refuses pages of an origin that is not among `origins`.

    A browser names the page's origin in `Origin` (RFC 6454, section 7), on every request that changes something. Other
    programs send no such header. Pages of the gateway's own address are not foreign.
    """

    def __init__(self, app: Application, origins: Iterable[str], refuse: Refuse, count: Count) -> None:
        self._app, self._origins, self._refuse, self._count = app, frozenset(origins), refuse, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        origin = header(scope, b"origin")
        send = self._marked(send, origin if origin in self._origins else None)
        own = f"{scope['scheme']}://{header(scope, b'host') or ''}".lower()
        if origin is None or origin.lower() == own:
            await self._app(scope, receive, send)
        elif origin not in self._origins:
            self._count("origin")
            await respond(self._refuse.at(scope["path"]).error(foreign_origin(origin)), send)
        elif scope["method"] == "OPTIONS" and header(scope, b"access-control-request-method"):
            await send({"type": "http.response.start", "status": 204, "headers": list(ALLOWED)})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._app(scope, receive, send)

    def _marked(self, send: Send, origin: str | None) -> Send:
        """Return `send` that adds CORS' headers for a listed origin; caches must distinguish answers by it."""
        if not self._origins:
            return send
        more = [VARY] if origin is None else [VARY, (b"access-control-allow-origin", origin.encode("latin-1")), EXPOSED]

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        return marked


def header(scope: Scope, name: bytes) -> str | None:
    """Return the first header of that name, or None if there is none."""
    found = next((value for key, value in scope["headers"] if key == name), None)
    return None if found is None else found.decode("latin-1")


def own_names(hosts: Iterable[str]) -> tuple[str, ...]:
    """Return the valid host names of this gateway: loopback's, this machine's and the configured `hosts`."""
    machine = socket.gethostname().lower()
    label = machine.partition(".")[0]
    return (*LOCAL_NAMES, machine, label, f"{label}.local", *(host.lower() for host in hosts))


def check_host(host: str | None, names: Iterable[str]) -> None:
    """Refuse a request that names another host: a page whose own name resolves to this device (DNS rebinding).

    Addresses are not checked, because such a page uses its name. No browser omits the header. Raises RequestError
    DENIED.
    """
    if host is None:
        return
    found = _HOST.fullmatch(host)
    name = found[1].lower().rstrip(".") if found else ""
    if not (_is_address(name) or any(fnmatchcase(name, each) for each in names)):
        raise RequestError(
            Fault.DENIED,
            f"Host '{host:.200}' is no name of this gateway; ask by its address, bring a token, or add the name to "
            "[http] hosts (EG-508)",
        )


def foreign_origin(origin: str) -> RequestError:
    """Return the refusal of a page's request."""
    return RequestError(
        Fault.DENIED, f"pages of '{origin:.200}' may not ask this gateway; add it to [http] cors_origins to allow it"
    )


def check_host_pattern(text: str) -> None:
    """Refuse any text but a host's name, "*.suffix" or "*". Raises ConfigurationError (table http, key hosts)."""
    if not _PATTERN.fullmatch(text):
        raise ConfigurationError(
            f"must be names without a port, such as camera-7.lan or *.example.org, not {text!r:.120}",
            table="http",
            key="hosts",
        )


def check_origin_text(text: str) -> None:
    """Refuse any text but the origin of a page. Raises ConfigurationError (table http, key cors_origins)."""
    try:
        parts = urlsplit(text)
        is_origin = (
            parts.scheme in {"http", "https"} and bool(parts.hostname) and f"{parts.scheme}://{parts.netloc}" == text
        )
        is_origin = is_origin and text == text.lower() and text.isascii() and "@" not in text and parts.port != 0
    except ValueError:
        is_origin = False
    if not is_origin:
        raise ConfigurationError(
            f"must be origins as browsers send them, such as https://panel.example.org:8443, not {text!r:.120}",
            table="http",
            key="cors_origins",
        )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
