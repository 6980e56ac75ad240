"""Headers of trusted proxies: the client's certificate and address. Pure.

`identity` checks first that the sender is trusted.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from gateway.common.domain.addresses import address_group, plain_address
from gateway.common.domain.errors import ConfigurationError

UNIX = "unix"
HOPS_LIMIT = 32
_BYTES = re.compile(r":([A-Za-z0-9+/]+={0,2}):")
_PAIR = re.compile(r'([A-Za-z]{1,16})=("(?:[^"\\]|\\.)*"|[^;,"]*)(;|,|$)')
"""Part of Envoy's header: `Key=value` or `Key="quoted value"`, separated by semicolons.

A comma begins the part that another proxy added.
"""


class ForwardedError(ValueError):
    """A trusted proxy's header cannot be parsed: its configuration differs from this controller's."""


@dataclass(frozen=True, slots=True)
class Proxies:
    """Proxies whose headers are trusted."""

    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    unix: bool = False

    def trusts(self, address: str) -> bool:
        """Return True if headers from `address` are trusted; "" stands for a UNIX socket."""
        if not address:
            return self.unix
        try:
            parsed = plain_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self.networks)

    def group(self, address: str) -> str:
        """Return the key by which connections of an address are counted; "" (proxies, UNIX sockets): they are not."""
        return "" if not address or self.trusts(address) else address_group(address)


def read_proxies(texts: Iterable[str]) -> Proxies:
    """Read addresses, networks (host bits 0), or "unix". Raises ConfigurationError."""
    networks, unix = [], False
    for text in texts:
        if text == UNIX:
            unix = True
            continue
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError as error:
            problem = f"{error}; write an address, a network such as 10.0.0.0/24, or {UNIX!r}"
            raise ConfigurationError(problem, table="serve.proxy", key="trusted") from None
    return Proxies(tuple(networks), unix)


def forwarded_certificate(values: Sequence[str], form: str) -> bytes | None:
    """Return the certificate (DER) in the headers, or None if they have none. Raises ForwardedError.

    Several values mean that the proxy appends to its clients' headers: the certificate's owner would be unknown.
    """
    filled = [value.strip() for value in values if value.strip()]
    if not filled:
        return None
    if len(filled) > 1:
        raise ForwardedError("it came more than once; the proxy must replace what its clients send")
    try:
        return {"pem": _pem, "rfc9440": _rfc9440, "xfcc": _xfcc}[form](filled[0])
    except ForwardedError:
        raise
    except ValueError as error:
        raise ForwardedError(f"it is no certificate of the form {form!r} ({error!s:.100})") from None


def forwarded_address(values: Sequence[str], proxies: Proxies) -> str | None:
    """Return the client of the first trusted proxy: the last address that is not trusted. None if there is none."""
    hops = [hop.strip() for hop in ",".join(values).split(",") if hop.strip()][-HOPS_LIMIT:]
    last = None
    for hop in reversed(hops):
        try:
            last = str(plain_address(hop.strip("[]")))
        except ValueError:
            return last  # from here on an untrusted sender wrote it
        if not proxies.trusts(last):
            return last
    return last


def _pem(value: str) -> bytes:
    found = x509.load_pem_x509_certificates(unquote_to_bytes(value))
    if len(found) != 1:
        raise ValueError(f"{len(found)} certificates")
    return found[0].public_bytes(Encoding.DER)


def _rfc9440(value: str) -> bytes:
    """Read a byte sequence of structured fields (RFC 9440, 2.2)."""
    found = _BYTES.fullmatch(value)
    if not found:
        raise ValueError("no :base64: sequence")
    try:
        return base64.b64decode(found[1], validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _xfcc(value: str) -> bytes | None:
    """Read Envoy's `Cert`. Return None if there is none, as for a client without a certificate."""
    pairs, place = {}, 0
    while place < len(value):
        found = _PAIR.match(value, place)
        if not found:
            raise ValueError("no Key=value pairs")
        if found[3] == ",":
            raise ForwardedError("it has several elements; set forward_client_cert_details to SANITIZE_SET")
        if found[1].lower() in pairs and found[1].lower() == "cert":
            raise ForwardedError("it names several certificates")
        pairs[found[1].lower()] = found[2].strip('"')
        place = found.end()
    return _pem(pairs["cert"]) if pairs.get("cert") else None
