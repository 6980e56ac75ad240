"""Rules for a request's headers (RFC 9113, sections 8.2 and 8.3); a malformed request loses its stream."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.serving.frontends.grpc_v2.http2.errors import Code, StreamError
from gateway.serving.frontends.grpc_v2.http2.hpack import Header, Headers

PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
REQUIRED = (b":method", b":scheme", b":path")
CONNECTION_SPECIFIC = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
NAME_BYTES = bytes(byte for byte in range(0x21, 0x7F) if not 0x41 <= byte <= 0x5A and byte != ord(":"))
"""Bytes of a field's name: no controls, blanks, capitals or colon (section 8.2.1)."""
BAD_VALUE = re.compile(rb"[\0\r\n]|^[ \t]|[ \t]$")
"""Pattern that no field's value may contain (section 8.2.1)."""

LENGTH = re.compile(rb"[0-9]{1,18}")
"""Value of content-length (RFC 9110, section 8.6); no body is longer."""


def read_request(headers: Headers) -> Mapping[bytes, bytes]:
    """Return fields by name, the first if one is repeated. Raises StreamError PROTOCOL_ERROR."""
    fields: dict[bytes, bytes] = {}
    regular = False
    for name, value in headers:
        if name[:1] == b":":
            if regular or name not in PSEUDO or name in fields or BAD_VALUE.search(value):
                raise _malformed(f"the pseudo-header {name!r:.40} where it cannot be")
        else:
            regular = True
            _check_field(name, value)
        fields.setdefault(name, value)
    if not all(map(fields.get, REQUIRED)):
        raise _malformed("a request without method, scheme or path")
    return fields


def essential(headers: Headers, names: frozenset[bytes]) -> Headers | None:
    """Return the fields among `names` if the others in `headers` are well formed.

    Return None if `read_request` must examine them.
    """
    found: list[Header] = []
    regular = False
    for header in headers:
        name = header[0]
        if name[:1] != b":":
            regular = True
        elif regular:
            return None
        if name in names:
            found.append(header)
        elif (
            not name
            or name.translate(None, NAME_BYTES)
            or name in CONNECTION_SPECIFIC
            or name == b"te"
            or BAD_VALUE.search(header[1])
        ):
            return None
    return tuple(found)


def content_length(headers: Headers) -> int | None:
    """Return the length of the body that a request announces, or None if it announces none.

    Raises StreamError PROTOCOL_ERROR if the field is repeated or is no number (RFC 9113, section 8.1.1).
    """
    found = [value for name, value in headers if name == b"content-length"]
    if not found:
        return None
    if len(found) > 1 or not LENGTH.fullmatch(found[0]):
        raise _malformed(f"content-length {b', '.join(found)!r:.40}")
    return int(found[0])


def are_trailers(headers: Headers) -> bool:
    """Return True if a request can end with these fields (section 8.1)."""
    try:
        for name, value in headers:
            _check_field(name, value)
    except StreamError:
        return False
    return True


def _check_field(name: bytes, value: bytes) -> None:
    if not name or name.translate(None, NAME_BYTES):
        raise _malformed(f"the field name {name!r:.40}")
    if name in CONNECTION_SPECIFIC or (name == b"te" and value != b"trailers"):
        raise _malformed(f"the field {name!r:.40}, which HTTP/2 has not")
    if BAD_VALUE.search(value):
        raise _malformed(f"a value of {name!r:.40}")


def _malformed(what: str) -> StreamError:
    return StreamError(Code.PROTOCOL_ERROR, f"malformed: {what}")
