"""Limits of the controller's HTTP server, its addresses, and its trusted proxies."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import ClassVar

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.settings import check_above_zero

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
    """Table `[serve.proxy]`: proxies that terminate TLS and identify the client.

    Headers from other senders are ignored and counted.
    """

    trusted: tuple[str, ...] = ()  # their addresses or networks; "unix" for peers of the UNIX socket
    certificate_header: str = "Client-Cert"  # header with the device's certificate
    certificate_form: str = (
        "rfc9440"  # its encoding: rfc9440, pem (URL-encoded, as nginx's $ssl_client_escaped_cert), xfcc (Envoy)
    )
    address_header: str = "X-Forwarded-For"  # header to which they append the client's address

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        if self.certificate_form not in FORMS:
            problem = f"{self.certificate_form!r:.40} is none of {', '.join(FORMS)}"
            raise ConfigurationError(problem, table="serve.proxy", key="certificate_form")


@dataclass(frozen=True, slots=True)
class RateSettings:
    """Table `[serve.rates]`: requests per second, burst size, and concurrent requests. A rate of 0 is unlimited.

    The limits of concurrent requests keep a slow caller from using up `max_requests`. A handshake costs a controller
    three times what most requests do (`fleet/SIZING.md`), before it knows the client.
    """

    device_per_s: float = 5.0  # of one device, identified by its certificate
    address_per_s: float = 20.0  # of one valid API token; and of one address (IPv6: one /64) without valid credentials
    handshake_per_s: float = 100.0  # TLS, of one address that is no trusted proxy; further ones are closed
    device_burst: ClassVar[float] = 60.0  # the first fetch requests a few dozen files in a row
    address_burst: ClassVar[float] = 200.0  # of one API token or address
    handshake_burst: ClassVar[float] = 1_000.0  # all devices behind one router when it is back
    device_at_once: ClassVar[int] = 16  # concurrent requests of one device
    address_at_once: ClassVar[int] = 128  # concurrent requests of one API token or address
    refusal_cost: ClassVar[float] = 5.0  # a 401 or 403 counts as so many requests: it slows down guessing of tokens
    tracked_limit: ClassVar[int] = 100_000  # devices, tokens and addresses kept, each; the longest silent go first


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """Table `[listen]`: addresses of the controller and its certificate."""

    addresses: tuple[str, ...] = ("127.0.0.1:8443",)  # HOST:PORT, or unix: and an absolute path
    tls: bool = True  # false: behind a proxy, a UNIX socket, or on this machine alone
    names: tuple[str, ...] = ("localhost", "127.0.0.1")  # in the certificate that the device CA signs for this port
    certificate: str = ""  # PEM file of another authority's certificate, leaf first; empty: the device CA signs one
    key: str = ""  # PEM file of its key, not encrypted
    url: str = ""  # URL for devices; empty: the first of `names` and the first port
    stop_grace_s: ClassVar[float] = 10.0  # for requests in progress at shutdown

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
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
    """Table `[serve]`: everything that a peer sends is bounded."""

    max_connections: int = 8_192  # open at once; further ones are answered 503
    max_connections_per_address: int = 1_024  # from one address that is no trusted proxy
    threads: int = 8  # that process requests; further requests wait in order
    max_buffered_bytes: int = 268_435_456  # 256 MiB: bodies of all requests in progress
    write_timeout_s: float = 30.0  # longest time in which a peer reads nothing of a response
    keep_alive_s: int = 30  # longest time of an idle connection
    unix_socket_mode: int = 0o660  # of UNIX sockets; proxies must belong to the group
    rates: RateSettings = field(default_factory=RateSettings)
    proxy: ProxySettings = field(default_factory=ProxySettings)
    max_handshakes: ClassVar[int] = 1_024  # concurrent TLS handshakes; further connections wait in the backlog
    max_handshakes_per_address: ClassVar[int] = 256  # with one address that is no trusted proxy; others are closed
    max_requests: ClassVar[int] = 1_024  # in progress at once; further ones are answered 503
    max_header_bytes: ClassVar[int] = 32_768  # request line and headers, including a proxy's certificate header
    max_body_bytes: ClassVar[int] = 1_048_576  # 1 MiB: a request body, if its route has no limit of its own
    max_buffered_bytes_per_caller: ClassVar[int] = 33_554_432  # 32 MiB: of one device, API token or address
    backlog: ClassVar[int] = 1_024  # connections the kernel holds until they are accepted
    handshake_timeout_s: ClassVar[float] = 10.0  # for the TLS handshake, and for TLS shutdown
    header_timeout_s: ClassVar[float] = 10.0  # for request line and headers
    body_timeout_s: ClassVar[float] = 60.0  # for a body, if its route has no limit of its own
    send_piece_bytes: ClassVar[int] = 131_072  # 128 KiB: a piece of a file; a peer must read one in write_timeout_s
    retry_after_s: ClassVar[float] = 5.0  # Retry-After of a 503

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        bounds = ("max_connections", "max_connections_per_address", "threads", "max_buffered_bytes", "write_timeout_s")
        check_above_zero(self, "serve", *bounds)
