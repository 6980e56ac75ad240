"""Network addresses, and the groups of them that count as one caller."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

SUBNET_BITS = 64
"""Bits of an IPv6 address that a network assigns. A host chooses the others freely (RFC 4291, section 2.5.4)."""


NETWORK_BITS = 24
"""Bits of an IPv4 address that a host of a local network usually cannot choose; the other 256 addresses are free."""


KEPT_ADDRESSES = 4096
"""Parsed addresses that are kept: a new connection asks for its peer's seven times."""


@lru_cache(KEPT_ADDRESSES)
def plain_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address without its zone, and an IPv4 address behind an IPv6 socket as IPv4. Raises ValueError."""
    # Python's own `is_loopback` looks behind the mapping only from 3.13 on.
    parsed = ipaddress.ip_address(text.partition("%")[0])
    return (parsed.ipv4_mapped or parsed) if isinstance(parsed, ipaddress.IPv6Address) else parsed


def network_group(text: str) -> str:
    """Return the network of an address: "loopback" (127/8, ::1), an IPv4 /24 or IPv6 /64, any other text itself."""
    try:
        address = plain_address(text.partition("/")[0])
    except ValueError:
        return text
    if address.is_loopback:
        return "loopback"
    bits = NETWORK_BITS if isinstance(address, ipaddress.IPv4Address) else SUBNET_BITS
    return str(ipaddress.ip_network((address, bits), strict=False))


def address_group(text: str) -> str:
    """Return what counts as one caller with an address: the /64 of an IPv6 address, any other text itself."""
    try:
        address = plain_address(text)
    except ValueError:
        return text
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.ip_network((address, SUBNET_BITS), strict=False))
