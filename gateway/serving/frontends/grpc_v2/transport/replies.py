"""Field blocks of gRPC over HTTP/2 ("Responses" of its PROTOCOL-HTTP2.md): constants if possible."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import quote

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.problem import WAITING_HELPS, error_text
from gateway.serving.frontends.grpc_v2.http2.hpack import Headers, encode
from gateway.serving.frontends.grpc_v2.http2.sender import FieldBlock

_NAMES = """
    OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED
    RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS
    UNAUTHENTICATED
"""
CODES = {name: code for code, name in enumerate(_NAMES.split())}
"""Status codes of gRPC, as they are sent."""
GRPC_STATUS: Mapping[Fault, str] = {
    Fault.INVALID: "INVALID_ARGUMENT",
    Fault.UNAUTHENTICATED: "UNAUTHENTICATED",
    Fault.DENIED: "PERMISSION_DENIED",
    Fault.NOT_FOUND: "NOT_FOUND",
    Fault.TOO_LARGE: "RESOURCE_EXHAUSTED",
    Fault.THROTTLED: "RESOURCE_EXHAUSTED",
    Fault.OVERLOADED: "UNAVAILABLE",
    Fault.EXPIRED: "DEADLINE_EXCEEDED",
    Fault.UNAVAILABLE: "UNAVAILABLE",
    Fault.UNSUPPORTED: "UNIMPLEMENTED",
    Fault.INTERNAL: "INTERNAL",
}
"""Status of gRPC, by name, for each fault."""
ENCODINGS = b"identity,deflate,gzip"
PUSHBACK = b"grpc-retry-pushback-ms"
"""gRPC's own retry hint (gRFC A6), in the trailers."""
KNOWN_BLOCKS = 64
"""Field blocks of errors that are kept: under overload the same one is sent thousands of times per second."""

_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
_RESPONSE: Headers = ((b":status", b"200"), (b"content-type", b"application/grpc"))
RESPONSE = FieldBlock(encode(_RESPONSE))
"""Beginning of every response."""
OK = FieldBlock(encode(((b"grpc-status", b"0"),)))
"""End of a successful response."""
NO_GRPC = encode(((b":status", b"415"), (b"content-length", b"0")))
"""Response to a content type other than gRPC's."""
NO_POST = encode(((b":status", b"405"), (b"allow", b"POST"), (b"content-length", b"0")))


def trailers(error: RequestError, retry_after_s: float) -> Headers:
    """Return status, message and, if waiting helps, the retry hint; `retry_after_s` if the error has none."""
    return _trailers(error.fault, error.message, _wait_ms(error, retry_after_s))


def ending(error: RequestError, retry_after_s: float) -> bytes:
    """Return the block that ends a response that has begun."""
    return _block((), error.fault, error.message, _wait_ms(error, retry_after_s))


def refusal(error: RequestError, retry_after_s: float, extra: Headers = ()) -> bytes:
    """Return the block of a response without a body ("Trailers-Only"), followed by `extra`."""
    return _block(_RESPONSE, error.fault, error.message, _wait_ms(error, retry_after_s)) + encode(extra)


def percent_encoded(text: str) -> bytes:
    """Return a Status-Message: UTF-8, with every byte other than printable ASCII (and "%") as %XX."""
    return quote(text, safe=_PRINTABLE).encode()


def _wait_ms(error: RequestError, retry_after_s: float) -> int | None:
    if error.fault not in WAITING_HELPS:
        return None
    return round(1000 * (retry_after_s if error.retry_after_s is None else error.retry_after_s))


@lru_cache(KNOWN_BLOCKS)
def _block(before: Headers, fault: Fault, message: str, wait_ms: int | None) -> bytes:
    return encode((*before, *_trailers(fault, message, wait_ms)))


def _trailers(fault: Fault, message: str, wait_ms: int | None) -> Headers:
    code = CODES[GRPC_STATUS[fault]]
    status: Headers = ((b"grpc-status", b"%d" % code), (b"grpc-message", percent_encoded(error_text(message))))
    return status if wait_ms is None else (*status, (PUSHBACK, b"%d" % wait_ms))
