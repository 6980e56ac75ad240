"""Bounds of the controller's HTTP server, and whom it believes about who asks."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field

from gateway.domain.errors import ConfigurationError
from gateway.domain.settings import check_above_zero

FORMS = ("pem", "xfcc", "rfc9440")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")
_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """`[serve.proxy]`: servers in front that end TLS and say who asks. Others' headers are ignored and counted."""

    trusted: tuple[str, ...] = ()  # their addresses or networks; "unix" for whoever may open the UNIX socket
    certificate_header: str = "Client-Cert"  # in which they hand on the device's certificate
    certificate_form: str = (
        "rfc9440"  # how: rfc9440, pem (URL-encoded, as nginx's $ssl_client_escaped_cert), xfcc (Envoy)
    )
    address_header: str = "X-Forwarded-For"  # in which they append the address of who asked them

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        if self.certificate_form not in FORMS:
            problem = f"{self.certificate_form!r:.40} is none of {', '.join(FORMS)}"
            raise ConfigurationError(problem, table="serve.proxy", key="certificate_form")


@dataclass(frozen=True, slots=True)
class RateSettings:
    """`[serve.rates]`: requests in a second, and how many at once after a pause; 0 a second: as many as come. And how
    many may be in progress: who drags his out takes no more of `max_requests`. A handshake costs a controller three
    times what most requests do (`fleet/SIZING.md`), before it knows who it is."""

    device_per_s: float = 5.0  # of one device, known by its certificate
    device_burst: float = 60.0  # a first fetch asks for a few dozen files in a row
    address_per_s: float = 20.0  # of one address (IPv6: one /64) without a certificate: enrolment, operators
    address_burst: float = 200.0  # likewise
    handshake_per_s: float = 100.0  # of TLS, begun by one address that is no trusted proxy; further ones are closed
    handshake_burst: float = 1_000.0  # all devices behind one router, when it comes back
    device_at_once: int = 16  # requests of one device that are in progress
    address_at_once: int = 128  # likewise of one address
    refusal_cost: float = 5.0  # a 401 or 403 counts as so many requests: who guesses tokens is soon slow
    tracked_limit: int = 100_000  # devices and addresses remembered, each; the longest silent are forgotten first

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        check_above_zero(self, "serve.rates", "device_burst", "address_burst", "handshake_burst", "tracked_limit")
        check_above_zero(self, "serve.rates", "device_at_once", "address_at_once")


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """`[listen]`: where the controller is asked, and what it shows there."""

    addresses: tuple[str, ...] = ("127.0.0.1:8443",)  # HOST:PORT, or unix: and an absolute path
    tls: bool = True  # false: behind a proxy, a UNIX socket, or on this machine alone
    names: tuple[str, ...] = ("localhost", "127.0.0.1")  # in the certificate that the device CA signs for this port
    certificate: str = ""  # PEM file of another authority's certificate, leaf first; empty: the device CA signs one
    key: str = ""  # PEM file of its key, not encrypted
    url: str = ""  # how devices reach this controller; empty: the first of `names` and the first port
    stop_grace_s: float = 10.0  # for requests in progress when it is told to stop

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        if not self.addresses:
            raise ConfigurationError("names no address", table="listen", key="addresses")
        if bool(self.certificate) != bool(self.key):
            raise ConfigurationError("certificate and key come together", table="listen", key="certificate")
        for name in self.names:
            if not (_HOST.fullmatch(name) or _is_address(name)):
                problem = f"{name!r:.80} is no host name in ASCII (IDNA: xn--…) and no address"
                raise ConfigurationError(problem, table="listen", key="names")
        if self.url and not _URL.fullmatch(self.url):
            raise ConfigurationError(f"must be https://HOST[:PORT], not {self.url!r:.80}", table="listen", key="url")


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """`[serve]`: nothing from a peer is unbounded."""

    max_connections: int = 8_192  # open at once; further ones are answered 503
    max_connections_per_address: int = 1_024  # of them from one address that is no trusted proxy
    max_handshakes: int = 1_024  # of TLS at one time; who comes then waits in the backlog
    max_handshakes_per_address: int = 256  # of them with one address that is no trusted proxy; further ones are closed
    max_requests: int = 1_024  # in progress at once; further ones are answered 503
    threads: int = 8  # that answer requests; whoever finds none free waits for one, in the order in which all came
    max_header_bytes: int = 32_768  # request line and headers; a proxy's certificate header lies in it
    max_body_bytes: int = 1_048_576  # 1 MiB: a request body, where its route has no bound of its own
    max_buffered_bytes: int = 268_435_456  # 256 MiB: bodies of all requests in progress
    max_buffered_bytes_per_caller: int = 33_554_432  # 32 MiB: of them of one device, or of one address
    backlog: int = 1_024  # connections the kernel holds until they are accepted
    handshake_timeout_s: float = 10.0  # for TLS, and for its end
    header_timeout_s: float = 10.0  # for request line and headers
    body_timeout_s: float = 60.0  # for a body, where its route has no bound of its own
    write_timeout_s: float = 30.0  # how long a peer may take nothing of its answer
    keep_alive_s: int = 30  # how long an idle connection is kept
    send_piece_bytes: int = 131_072  # of a file at a time: a peer takes one in write_timeout_s, or is cut off
    retry_after_s: float = 5.0  # told with a 503
    unix_socket_mode: int = 0o660  # of UNIX sockets; proxies need to be of the group
    rates: RateSettings = field(default_factory=RateSettings)
    proxy: ProxySettings = field(default_factory=ProxySettings)

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        bounds = ("max_connections", "max_connections_per_address", "max_requests", "threads", "max_header_bytes")
        check_above_zero(self, "serve", *bounds, "max_handshakes", "max_handshakes_per_address")
        check_above_zero(self, "serve", "max_body_bytes", "max_buffered_bytes", "send_piece_bytes")
        check_above_zero(self, "serve", "max_buffered_bytes_per_caller")
        check_above_zero(self, "serve", "handshake_timeout_s", "header_timeout_s", "body_timeout_s", "write_timeout_s")
