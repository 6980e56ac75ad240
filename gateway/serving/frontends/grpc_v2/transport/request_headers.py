"""Headers of a call (gRPC's PROTOCOL-HTTP2.md, "Requests"): method, deadline, caller, or the reason to refuse it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.rights import Caller
from gateway.serving.frontends.authentication import Authentication
from gateway.serving.frontends.grpc_v2.calls import CallInfo, Rpc, RpcKind, rights_changed
from gateway.serving.frontends.grpc_v2.http2.hpack import Headers
from gateway.serving.frontends.grpc_v2.http2.requests import read_request
from gateway.serving.frontends.grpc_v2.transport import replies
from gateway.serving.frontends.peer import Peer

UNIT_NS = {
    b"n": 1, b"u": 1_000, b"m": 1_000_000, b"S": 1_000_000_000, b"M": 60_000_000_000, b"H": 3_600_000_000_000,
}  # fmt: skip
"""TimeoutUnit in nanoseconds."""
TIMEOUT = re.compile(rb"([0-9]{1,8})([numSMH])")
FIELDS = frozenset(
    {
        b":method",
        b":scheme",
        b":path",
        b":authority",
        b"te",
        b"content-type",
        b"grpc-timeout",
        b"grpc-encoding",
        b"authorization",
    }
)
"""Header fields on which `RequestHeaders` depend."""
GRPC = re.compile(rb"application/grpc(?:[+;].*)?")
INFLATED = {b"identity": 0, b"gzip": 31, b"deflate": 15}
"""Encodings of messages as zlib's window bits (0: none)."""


@dataclass(slots=True)
class RequestHeaders:
    """An accepted call.

    `window_bits` inflate its messages (0: not compressed). `info` is that of every such call, without its deadline.
    `authorization` is the header that identified its caller.
    """

    rpc: Rpc
    info: CallInfo
    authorization: bytes | None
    timeout_ns: int | None
    window_bits: int
    unary: bool

    def ends_ns(self, opened_ns: int) -> int | None:
        """Return the deadline of a call that came at `opened_ns`, or None."""
        return None if self.timeout_ns is None else opened_ns + self.timeout_ns

    def info_at(self, now_ns: int) -> CallInfo:
        """Return caller and deadline of a call that came at `now_ns`."""
        if self.timeout_ns is None:
            return self.info
        info = self.info
        return CallInfo(
            info.caller, now_ns + self.timeout_ns, info.local, info.uid, info.pid, info.rights, info.share_key
        )


class RequestHeadersReader:
    """Reader of the headers of one connection's calls. Those read before do not change when authentication does."""

    def __init__(
        self, rpcs: Mapping[bytes, Rpc], peer: Peer, authentication: Authentication, retry_after_s: float
    ) -> None:
        self._rpcs, self._peer, self._authentication = rpcs, peer, authentication
        self._retry_after_s = retry_after_s

    def read(self, headers: Headers) -> RequestHeaders | bytes:
        """Return the headers, or the whole response of a refused call. Raises StreamError if it is malformed."""
        fields = read_request(headers)
        if fields[b":method"] != b"POST":
            return replies.NO_POST
        if not GRPC.fullmatch(fields.get(b"content-type", b"")):
            return replies.NO_GRPC
        try:
            return self._parse(fields)
        except RequestError as error:
            return replies.refusal(error, self._retry_after_s, ((b"grpc-accept-encoding", replies.ENCODINGS),))

    def _parse(self, fields: Mapping[bytes, bytes]) -> RequestHeaders:
        rpc = self._rpcs.get(fields[b":path"])
        if rpc is None:
            raise RequestError(Fault.UNSUPPORTED, f"unknown method '{_text(fields[b':path']):.200}'")
        authorization = fields.get(b"authorization")
        caller, peer = self._caller(rpc, authorization), self._peer
        info = CallInfo(caller.name, None, peer.local, peer.uid, peer.pid, caller.rights, peer.share_of(caller))
        encoding = fields.get(b"grpc-encoding", b"identity")
        if (window_bits := INFLATED.get(encoding)) is None:
            raise RequestError(
                Fault.UNSUPPORTED,
                f"messages compressed with '{_text(encoding):.40}' cannot be read; use gzip, deflate or identity",
            )
        timeout_ns = read_timeout(fields.get(b"grpc-timeout"))
        return RequestHeaders(rpc, info, authorization, timeout_ns, window_bits, rpc.kind is RpcKind.UNARY)

    def check_again(self, headers: RequestHeaders) -> None:
        """Refuse a call in progress whose caller is no longer the same.

        Raises as `Authentication.admit` does, and UNAVAILABLE if its rights have changed: a method must not continue
        with the old rights.
        """
        caller = self._caller(headers.rpc, headers.authorization)
        if (caller.name, caller.rights) != (headers.info.caller, headers.info.rights):
            raise rights_changed()

    def _caller(self, rpc: Rpc, authorization: bytes | None) -> Caller:
        sent = None if authorization is None else _text(authorization)
        return self._authentication.admit(self._peer, sent, rpc.needs)


def read_timeout(value: bytes | None) -> int | None:
    """Return a timeout in nanoseconds, or None if there is none. Raises RequestError INTERNAL, as other servers do."""
    if value is None:
        return None
    found = TIMEOUT.fullmatch(value)
    if found is None:
        raise RequestError(Fault.INTERNAL, f"grpc-timeout {value.decode(errors='replace')!r:.40} is no timeout")
    return int(found[1]) * UNIT_NS[found[2]]


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
