"""Header blocks of gRPC over HTTP/2 ("Responses" of its PROTOCOL-HTTP2.md): constants where they can be."""

from __future__ import annotations

from gateway.domain.errors import RequestError
from gateway.frontends.grpc_v2.http2.hpack import Headers, encode
from gateway.frontends.grpc_v2.http2.sender import Block
from gateway.frontends.status import STATUS, WAITING_HELPS, error_text

_NAMES = """
    OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED
    RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS
    UNAUTHENTICATED
"""
CODES = {name: code for code, name in enumerate(_NAMES.split())}
"""gRPC's status codes as they travel."""
ENCODINGS = b"identity,deflate,gzip"
PUSHBACK = b"grpc-retry-pushback-ms"
"""gRPC's own retry hint (gRFC A6), in the trailers."""

_RESPONSE: Headers = ((b":status", b"200"), (b"content-type", b"application/grpc"))
RESPONSE = Block(encode(_RESPONSE))
"""How every response begins."""
OK = Block(encode(((b"grpc-status", b"0"),)))
"""How a good one ends."""
NO_GRPC = encode(((b":status", b"415"), (b"content-length", b"0")))
"""For a content type that is not gRPC's."""
NO_POST = encode(((b":status", b"405"), (b"allow", b"POST"), (b"content-length", b"0")))


def trailers(error: RequestError, retry_after_s: float) -> Headers:
    """Status, words and, where waiting helps, the retry hint; `retry_after_s` where the error names none."""
    code = CODES[STATUS[error.fault].grpc]
    said: Headers = ((b"grpc-status", b"%d" % code), (b"grpc-message", percent_encoded(error_text(error.message))))
    if error.fault not in WAITING_HELPS:
        return said
    wait_s = retry_after_s if error.retry_after_s is None else error.retry_after_s
    return (*said, (PUSHBACK, b"%d" % round(wait_s * 1000)))


def ending(error: RequestError, retry_after_s: float) -> bytes:
    """The end of a response that has begun."""
    return encode(trailers(error, retry_after_s))


def refusal(error: RequestError, retry_after_s: float, extra: Headers = ()) -> bytes:
    """A response that is nothing but its end ("Trailers-Only")."""
    return encode((*_RESPONSE, *trailers(error, retry_after_s), *extra))


def percent_encoded(text: str) -> bytes:
    """Status-Message: UTF-8, all but printable ASCII (and "%") as %XX."""
    return "".join(
        chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}" for byte in text.encode()
    ).encode()
