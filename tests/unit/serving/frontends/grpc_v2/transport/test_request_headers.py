"""Meaning of a call's headers; what is remembered of them is one caller's alone."""

from __future__ import annotations

import os
import socket
from typing import Any

import h2.settings
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.access import Address, Security, Tokens, read_tokens
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.rights import DEFAULT_GRANTS, EVERYTHING
from gateway.common.domain.rights import INFER as INFERENCE
from gateway.serving.frontends.authentication import Authentication
from gateway.serving.frontends.grpc_v2.calls import INFER, CallInfo, Rpc, RpcKind
from gateway.serving.frontends.grpc_v2.http2.errors import StreamError
from gateway.serving.frontends.grpc_v2.http2.hpack import Decoder
from gateway.serving.frontends.grpc_v2.transport import replies
from gateway.serving.frontends.grpc_v2.transport.request_headers import (
    FIELDS,
    UNIT_NS,
    RequestHeaders,
    RequestHeadersReader,
    read_timeout,
)
from gateway.serving.frontends.peer import Peer
from tests.simulators.grpc_client import LIVE, STREAM, connected, framed, infer_request

from .conftest import Serve

TOKENS = read_tokens("ann first\nbob second\n", "tokens")
RPCS = {
    path.encode(): Rpc(path, kind, None, print, INFERENCE)
    for path, kind in ((INFER, RpcKind.UNARY), (STREAM, RpcKind.BIDIRECTIONAL))
}
PEER = Peer(address="192.0.2.7")
STRANGER = DEFAULT_GRANTS[-1].rights


def read(tokens: Tokens | None = None, peer: Peer = PEER, **changed: str | None) -> RequestHeaders | dict[bytes, bytes]:
    """Return the headers of a call, or the headers of its refusal; `_` in names is "-", a leading one ":"."""
    fields = {
        "_method": "POST",
        "_scheme": "http",
        "_path": INFER,
        "te": "trailers",
        "content_type": "application/grpc",
    }
    given_fields = {**fields, **changed}
    names = {name: (":" + name[1:] if name[0] == "_" else name).replace("_", "-") for name in given_fields}
    headers = tuple((names[key].encode(), value.encode()) for key, value in given_fields.items() if value is not None)
    said = RequestHeadersReader(RPCS, peer, Authentication("grpc", Security(tokens=tokens)), 0.1).read(headers)
    return said if isinstance(said, RequestHeaders) else dict(Decoder(16_384).decode(said) or ())


def refused(code: str, words: str = "", **changed: str | None) -> None:
    said = read(**changed)
    assert isinstance(said, dict)
    assert (said[b":status"], said[b"grpc-status"]) == (b"200", b"%d" % replies.CODES[code])
    assert words in said[b"grpc-message"].decode()
    assert said[b"grpc-accept-encoding"] == b"identity,deflate,gzip"


def request_headers(**changed: Any) -> RequestHeaders:
    said = read(**changed)
    assert isinstance(said, RequestHeaders), said
    return said


# ---- grpc-timeout ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "nanoseconds"),
    [
        ("0n", 0),
        ("1n", 1),
        ("1u", 1000),
        ("1m", 10**6),
        ("1S", 10**9),
        ("1M", 60 * 10**9),
        ("1H", 3600 * 10**9),
        ("00000001S", 10**9),
        ("99999999H", 99_999_999 * 3600 * 10**9),
    ],
)
def test_timeouts(value: str, nanoseconds: int) -> None:
    assert read_timeout(value.encode()) == nanoseconds
    assert request_headers(grpc_timeout=value).info_at(5) == CallInfo(
        "192.0.2.7", 5 + nanoseconds, local=False, rights=STRANGER, share_key="address:192.0.2.7"
    )


@pytest.mark.parametrize(
    "value", ["", "S", "1", "1s", "1h", "-1S", "+1S", "1.5S", "123456789S", "1 S", "1SS", "١S", "\n"]
)
def test_timeouts_that_are_none(value: str) -> None:
    with pytest.raises(RequestError, match="is no timeout") as caught:
        read_timeout(value.encode())
    assert caught.value.fault is Fault.INTERNAL


@given(st.binary(max_size=12))
def test_any_timeout(value: bytes) -> None:
    if value[:-1].isdigit() and len(value) <= 9 and value[-1:] in set(UNIT_NS):
        assert read_timeout(value) == int(value[:-1]) * UNIT_NS[value[-1:]]
    else:
        with pytest.raises(RequestError, match="is no timeout") as caught:
            read_timeout(value)
        assert len(caught.value.message) < 100


def test_no_timeout() -> None:
    assert read_timeout(None) is None
    assert request_headers().info_at(5).deadline_ns is None


# ---- what is no call -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["GET", "PUT", "post", "CONNECT"])
def test_other_methods(method: str) -> None:
    assert read(_method=method) == {b":status": b"405", b"allow": b"POST", b"content-length": b"0"}


@pytest.mark.parametrize(
    "kind", [None, "", "text/html", "application/json", "application/grpcx", "application/grpc-web"]
)
def test_other_content_types(kind: str | None) -> None:
    assert read(content_type=kind) == {b":status": b"415", b"content-length": b"0"}


@pytest.mark.parametrize("kind", ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"])
def test_content_types(kind: str) -> None:
    assert request_headers(content_type=kind).rpc is RPCS[INFER.encode()]


@pytest.mark.parametrize(("encoding", "window_bits"), [(None, 0), ("identity", 0), ("gzip", 31), ("deflate", 15)])
def test_encodings(encoding: str | None, window_bits: int) -> None:
    assert request_headers(grpc_encoding=encoding).window_bits == window_bits


def test_refusals() -> None:
    refused("UNIMPLEMENTED", "messages compressed with 'br' cannot be read", grpc_encoding="br")
    refused("UNIMPLEMENTED", "compressed with '" + "x" * 40 + "'", grpc_encoding="x" * 99)
    refused("UNIMPLEMENTED", "unknown method '/a/b'", _path="/a/b")
    refused("UNIMPLEMENTED", "unknown method '" + "x" * 200 + "'", _path="x" * 999)
    refused("INTERNAL", "grpc-timeout '1s' is no timeout", grpc_timeout="1s")


def test_malformed_requests_are_the_streams_end() -> None:
    for changed in ({"_path": None}, {"connection": "close"}, {"te": "gzip"}, {"Upper": "x"}):
        with pytest.raises(StreamError):
            read(**changed)


def test_kinds() -> None:
    assert request_headers().unary
    assert not request_headers(_path=STREAM).unary


# ---- callers ---------------------------------------------------------------------------------------------------------
def test_callers_without_tokens() -> None:
    stranger = CallInfo("192.0.2.7", None, local=False, rights=STRANGER, share_key="address:192.0.2.7")
    assert request_headers().info == stranger
    user = CallInfo("uid:1000", None, True, 1000, 5, EVERYTHING, "user:1000")
    assert request_headers(peer=Peer(uid=1000, pid=5)).info == user
    camera = CallInfo("camera", rights=EVERYTHING, share_key="certificate:camera")
    assert request_headers(peer=Peer("camera", address="::1")).info == camera
    assert request_headers(authorization="Bearer nonsense").info.caller == "192.0.2.7"


def test_callers_by_token() -> None:
    assert request_headers(tokens=TOKENS, authorization="Bearer first").info.caller == "ann"
    assert request_headers(tokens=TOKENS, authorization="bearer  second").info.caller == "bob"
    for value in (None, "", "first", "Bearer", "Bearer third", "Basic first", "Bearer first second"):
        refused("UNAUTHENTICATED", "token", tokens=TOKENS, authorization=value)


def test_whatever_a_head_depends_on_is_named() -> None:
    """Parsed headers are remembered by these fields."""
    for name, value in (("x-trace", "1"), ("user-agent", "x"), ("grpc-accept-encoding", "gzip"), ("x-caller", "ann")):
        assert name.encode() not in FIELDS
        assert request_headers(**{name.replace("-", "_"): value}) == request_headers()
    for changed in (
        {"_path": STREAM},
        {"grpc_timeout": "1S"},
        {"grpc_encoding": "gzip"},
        {"tokens": TOKENS, "authorization": "Bearer first"},
    ):
        assert {key.replace("_", "-") for key in changed if key not in {"tokens", "_path"}} <= {
            f.decode() for f in FIELDS
        }
        assert request_headers(**changed) != request_headers()


@pytest.mark.asyncio
async def test_a_token_is_one_connections_and_one_requests(served: Serve) -> None:
    """Blocks that h2's table makes alike mean what their own connection's table says."""
    async with (
        served(security=Security(tokens=TOKENS)) as gateway,
        connected(gateway.addresses[0]) as ann,
        connected(gateway.addresses[0]) as bob,
        connected(gateway.addresses[0]) as nobody,
    ):
        for _ in range(3):
            for client, name, token in ((ann, "ann", "first"), (bob, "bob", "second")):
                reply = await client.infer(authorization=f"Bearer {token}")
                assert (reply.status, gateway.inference.requests[-1].caller) == (0, name)
            assert (await nobody.infer(authorization="Bearer third_")).status == replies.CODES["UNAUTHENTICATED"]
            assert (await nobody.infer()).status == replies.CODES["UNAUTHENTICATED"]
        for token, name in (("second", "bob"), ("first", "ann"), ("second", "bob")):
            assert (await ann.infer(authorization=f"Bearer {token}")).status == 0
            assert gateway.inference.requests[-1].caller == name
        for wrong in ("Bearer firsT", "Bearer"):
            assert (await ann.infer(authorization=wrong)).status == replies.CODES["UNAUTHENTICATED"]
        assert (await ann.call(LIVE, framed(b""))).status == replies.CODES["UNAUTHENTICATED"]
        assert len(gateway.inference.requests) == 9


@pytest.mark.asyncio
async def test_the_user_behind_a_socket_calls(served: Serve, tmp_path: Any) -> None:
    address = Address(path=f"{tmp_path}/grpc.sock")
    async with served(addresses=[address]) as gateway, connected(address) as client:
        for _ in range(2):
            reply = await client.infer()
            assert (reply.status, gateway.inference.requests[-1].caller) == (0, f"uid:{os.getuid()}")
        assert client.writer.get_extra_info("socket").family == socket.AF_UNIX
        (reply,) = await client.over(client.ask(STREAM, infer_request()))
        assert gateway.inference.requests[-1].caller == f"uid:{os.getuid()}"


@pytest.mark.asyncio
async def test_deadlines_are_each_requests(served: Serve) -> None:
    """Also where the table is small, and blocks change from request to request."""
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        client.h2.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: 0})
        for timeout in ("1H", "2H", "1H"):
            assert (await client.infer(grpc_timeout=timeout)).status == 0
        first, second, third = (request.deadline_ns for request in gateway.inference.requests)
        assert first is not None
        assert second is not None
        assert third is not None
        assert first < third < second
        assert (await client.infer()).status == 0
        assert gateway.inference.requests[-1].deadline_ns is None
