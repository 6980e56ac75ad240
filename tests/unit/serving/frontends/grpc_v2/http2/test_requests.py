"""Malformed requests (RFC 9113, sections 8.2 and 8.3) cost their stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.frontends.grpc_v2.http2.errors import Code, StreamError
from gateway.serving.frontends.grpc_v2.http2.hpack import Header
from gateway.serving.frontends.grpc_v2.http2.requests import are_trailers, essential, read_request
from gateway.serving.frontends.grpc_v2.transport.request_headers import FIELDS
from tests.simulators.http2_peer import ASKED

METHOD, SCHEME, PATH, AUTHORITY, TE, CONTENT = ASKED


def test_a_request() -> None:
    assert read_request(ASKED) == dict(ASKED)
    assert read_request((*ASKED, (b"x", b"1"), (b"x", b"2"), (b"grpc-x-bin", b""))) == {
        **dict(ASKED),
        b"x": b"1",
        b"grpc-x-bin": b"",
    }


BAD_FIELDS: list[Header] = [
    (b"", b""),
    (b"X", b""),
    (b"a b", b""),
    (b"a\0", b""),
    (b"a\x7f", b""),
    (b"a\xff", b""),
    (b"a:", b""),
    (b"a\r\nb", b""),
    (b"a", b"\0"),
    (b"a", b"x\ry"),
    (b"a", b"x\ny"),
    (b"a", b"x\n"),
    (b"a", b" x"),
    (b"a", b"x\t"),
    (b"connection", b"close"),
    (b"proxy-connection", b"close"),
    (b"keep-alive", b"1"),
    (b"transfer-encoding", b"chunked"),
    (b"upgrade", b"h2c"),
    (b"te", b"gzip"),
]


@pytest.mark.parametrize("field", BAD_FIELDS, ids=repr)
def test_fields_that_http2_has_not(field: Header) -> None:
    with pytest.raises(StreamError) as caught:
        read_request((*ASKED, field))
    assert caught.value.code is Code.PROTOCOL_ERROR
    assert not are_trailers((field,))


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (SCHEME, PATH, AUTHORITY),
        (METHOD, PATH, AUTHORITY),
        (METHOD, SCHEME, AUTHORITY),
        (METHOD, SCHEME, (b":path", b"")),
        (METHOD, METHOD, SCHEME, PATH),
        (METHOD, SCHEME, SCHEME, PATH),
        (METHOD, SCHEME, PATH, PATH),
        (METHOD, SCHEME, PATH, AUTHORITY, AUTHORITY),
        (METHOD, SCHEME, TE, PATH),
        (METHOD, SCHEME, PATH, (b":status", b"200")),
        (METHOD, SCHEME, PATH, (b":unknown", b"")),
        (METHOD, SCHEME, (b":path", b"/a\r\nb")),
    ],
)
def test_pseudo_headers_where_they_cannot_be(headers: tuple[Header, ...]) -> None:
    with pytest.raises(StreamError) as caught:
        read_request(headers)
    assert caught.value.code is Code.PROTOCOL_ERROR


def test_trailers() -> None:
    assert are_trailers(())
    assert are_trailers(((b"x", b"y"), (b"grpc-tags-bin", b"AA")))
    assert not are_trailers((METHOD,))


POOL = st.sampled_from([*ASKED, *BAD_FIELDS, (b":status", b"200"), (b":x", b""), (b"traceparent", b"00"), (b"x", b"y")])


@given(st.permutations(ASKED), st.lists(st.tuples(st.integers(0, 9), POOL), max_size=4), st.booleans())
def test_fields_that_do_not_matter_hide_no_malformed_request(
    asked: list[Header], more: list[tuple[int, Header]], in_order: bool
) -> None:
    """The essence that is remembered of a request says the same as reading all of it."""
    headers = list(ASKED) if in_order else asked
    for place, field in more:
        headers.insert(place, field)
    essence = essential(tuple(headers), FIELDS)
    if essence is None:
        return
    try:
        read = read_request(essence)
    except StreamError:
        with pytest.raises(StreamError):
            read_request(tuple(headers))
    else:
        whole = read_request(tuple(headers))
        assert read == {name: value for name, value in whole.items() if name in FIELDS}
