"""One connection to a gateway over HTTP: TCP, TLS or a UNIX socket. Every error names its remedy."""

from __future__ import annotations

import errno
import http.client
import os
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.common.domain.access import read_address
from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.common.unix_http import UnixConnection
from gateway.serving.cli.files import read_file

TIMEOUT_S = 60.0
"""Timeout of each step of an exchange: connecting, sending, receiving the next bytes of the answer."""
PART_S = 600.0
"""Longest wait for the next part of a text: a long prompt, or others before it in the queue, take minutes."""
EXCHANGE_STEPS = 3
"""Timeout of a whole exchange, in steps: each byte of a slow answer begins a new step."""
ANSWER_LIMIT_BYTES = 256 * 1_048_576
EVENTS, DATA = "text/event-stream", b"data: "
"""Media type of Server-Sent Events, and the beginning of a line with the content of one."""
PORTS = {"http": 80, "https": 443}
NOWHERE = {errno.EADDRNOTAVAIL, errno.EHOSTUNREACH, errno.ENETUNREACH}
"""Connection errors of an address at which no gateway of this device can listen."""
HOST = re.compile(r"[^\s\x00-\x20\x7f]+")
"""Pattern of the hosts that http.client accepts."""


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """Address of a gateway: the path of a UNIX socket, else host and port. `prefix` precedes each path."""

    host: str = "localhost"
    port: int = 0
    unix: str = ""
    tls: bool = False
    prefix: str = ""

    def __str__(self) -> str:
        if self.unix:
            return f"unix:{self.unix}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.prefix}"


@dataclass(frozen=True, slots=True)
class Keys:
    """Files by which client and server authenticate each other. `pinned`: the certificate that the server must have."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    token_file: str | None = None
    pinned: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers with the caller's token, if any. Raises ConfigurationError for a file without one."""
        if not self.token_file:
            return {}
        words = read_file(self.token_file).decode("utf-8", "replace").split()
        if not words or not words[-1].isascii():
            raise ConfigurationError("holds no token; write the token into it, and nothing else", file=self.token_file)
        return {"Authorization": f"Bearer {words[-1]}"}

    def context(self) -> ssl.SSLContext:
        """Return a TLS client context with the system's authorities, or `ca`. Raises ConfigurationError if no PEM."""
        context = ssl.create_default_context()
        try:
            if self.ca or self.pinned:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.load_verify_locations(self.ca or self.pinned)
            if self.pinned and not self.ca:  # it is this device's own: the names in it do not matter
                context.check_hostname = False
                context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            if self.cert:
                context.load_cert_chain(self.cert, self.key, password="")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            named = ", ".join(filter(None, (self.ca or self.pinned, self.cert, self.key)))
            cause = str(getattr(error, "strerror", None) or error).partition(" (_ssl.c")[0]
            problem = f"cannot be used ({cause}); --ca, --cert and --key take PEM files, and no encrypted key"
            raise ConfigurationError(problem, file=named) from None
        return context


def read_url(text: str) -> GatewayAddress:
    """Read host:port, http(s)://host[:port][/prefix] or unix:/path. Raises ConfigurationError."""
    if "://" not in text:
        address = read_address(text, "--url", "")
        if address is None:
            raise ConfigurationError("takes host:port, http://…, https://… or unix:/path", table="--url")
        return GatewayAddress(address.host or "localhost", address.port, address.path)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigurationError(f"{text!r:.120} is no address: {error}", table="--url") from None
    if parts.scheme not in PORTS or not HOST.fullmatch(host) or parts.username or parts.query or parts.fragment:
        raise ConfigurationError(
            f"{text!r:.120} is no gateway's address; write http://host:port or https://host", table="--url"
        )
    tls = parts.scheme == "https"
    return GatewayAddress(host, port or PORTS[parts.scheme], tls=tls, prefix=parts.path.rstrip("/"))


class NoListenerError(UnreachableError):
    """An UnreachableError: nothing listens at the address."""


class GatewayClient:
    """One HTTP connection, closed at the end of `with`. Every method raises UnreachableError with the remedy.

    It is a NoListenerError if nothing listens at the address.
    """

    def __init__(self, place: GatewayAddress, keys: Keys, timeout_s: float = TIMEOUT_S) -> None:
        self.place, self._headers = place, keys.headers
        self._limit_s, self._late = timeout_s * EXCHANGE_STEPS, False
        if place.unix:
            self._connection: http.client.HTTPConnection = UnixConnection(place.unix, timeout_s, self._limit_s)
        elif place.tls:
            self._connection = http.client.HTTPSConnection(
                place.host, place.port, timeout=timeout_s, context=keys.context()
            )
        else:
            self._connection = http.client.HTTPConnection(place.host, place.port, timeout=timeout_s)

    def __enter__(self) -> GatewayClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; another exchange opens it again."""
        self._connection.close()

    def exchange(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        """Send one request; return status and content of its answer."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        with self._named(), self._bounded():
            self._connection.request(method, self.place.prefix + path, body, {**named, **self._headers})
            response = self._connection.getresponse()
            content = response.read(ANSWER_LIMIT_BYTES + 1)
        if len(content) > ANSWER_LIMIT_BYTES:
            raise UnreachableError(
                f"the answer of {self.place} has more than {ANSWER_LIMIT_BYTES} bytes; ask for fewer outputs or rows"
            )
        return response.status, content

    def events(self, path: str, body: bytes) -> Iterator[tuple[int, bytes]]:
        """Send a POST request; yield status and data of each Server-Sent Event, or of the answer if it has none.

        Between two events `PART_S` may pass, the whole exchange has no limit.
        """
        with self._named():
            self._connection.request("POST", self.place.prefix + path, body, self._headers)
            if self._connection.sock is not None:
                self._connection.sock.settimeout(PART_S)
            response = self._connection.getresponse()
            if not (response.getheader("content-type") or "").startswith(EVENTS):
                yield response.status, response.read(ANSWER_LIMIT_BYTES)
                return
            while line := response.readline(ANSWER_LIMIT_BYTES):
                if line.startswith(DATA):
                    yield response.status, line.removeprefix(DATA)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Raise UnreachableError with the remedy for every failure of the connection."""
        try:
            yield
            if self._late:
                raise TimeoutError
        except (OSError, http.client.HTTPException, UnicodeError) as error:  # UnicodeError: an impossible host name
            found = TimeoutError() if self._late else error
            kind = NoListenerError if _is_nowhere(error) else UnreachableError
            raise kind(f"no gateway answers at {self.place}: {_words(found, self.place)}") from error

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """Close the connection if the exchange exceeds its timeout."""
        timer = threading.Timer(self._limit_s, self._cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _cut(self) -> None:
        self._late = True
        if self._connection.sock is not None:
            with suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)


def _is_nowhere(error: Exception) -> bool:
    """Return True if the error means that nothing listens at the address."""
    if isinstance(error, FileNotFoundError | NotADirectoryError | ConnectionRefusedError | socket.gaierror):
        return True
    return isinstance(error, OSError) and error.errno in NOWHERE


def _words(error: Exception, place: GatewayAddress) -> str:
    """Return the problem with its remedy."""
    text = str(error) or type(error).__name__
    match error:
        case ssl.SSLError():
            return _tls_words(error, text)
        case PermissionError():
            return f"{text}; run this as a user that may connect: root, or a member of group edge-gateway"
        case TimeoutError():
            return "it did not answer in time; see its log, or try again"
        case http.client.HTTPException() if not place.unix and not place.tls:
            return f"{text}; write https:// where it speaks TLS, and check that it is a gateway"
        case ConnectionResetError() if place.tls:
            return f"{text}; it may want a certificate: --cert FILE --key FILE"
        case _:
            return f"{text}; is edge-gateway run up, with HTTP on? (EG-204)"


def _tls_words(error: ssl.SSLError, text: str) -> str:
    match error:
        case ssl.SSLCertVerificationError(verify_code=62 | 64):  # X509_V_ERR_HOSTNAME_MISMATCH, IP_ADDRESS_MISMATCH
            return f"{error.verify_message}; ask it by a name that its certificate lists"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted ({error.verify_message}); name its authority with --ca FILE"
        case _ if "ALERT" in text.upper():
            return f"it ended the handshake ({text}); it may want a certificate: --cert FILE --key FILE"
        case _:
            return f"it does not speak TLS ({text}); write http:// where it is meant to be in the clear"


def pem_exists(name: str | None) -> bool:
    """Return True if `name` is a file, in a folder that this process may search."""
    return name is not None and os.path.isfile(name)  # noqa: PTH113  Path.is_file raises for an inaccessible folder
