"""HTTP/1.1 as a peer may write it (RFC 9112): what is served, and what is refused and ends the connection."""

import json

import pytest

from gateway.common.wire.parser import MOST_FIELDS, MOST_PIECES
from gateway.serving.frontends.rest_v2.settings import RestSettings
from tests.simulators.rest_gateway import infer_body, serving

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("rest_way")]
BODY = json.dumps(infer_body(1)).encode()
HOST = b"Host: gateway\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
EIGHTHS = range(0, len(BODY), 8)
MOST_BYTES = RestSettings().max_header_bytes


def post(*fields, body=BODY, target=b"/v2/models/identity_fp32/infer", version=b"1.1"):
    return b"POST " + target + b" HTTP/" + version + b"\r\n" + b"".join(fields) + b"\r\n" + body


def chunk(content, extension=b""):
    return b"%x" % len(content) + extension + b"\r\n" + content + b"\r\n"


def whole_chunked(*chunks, trailers=b""):
    return b"".join(chunks) + b"0\r\n" + trailers + b"\r\n"


def sized(size):
    """Return a request whose head has so many bytes."""
    return post(HOST, LENGTH, b"X: " + b"x" * (size - len(post(HOST, LENGTH, b"X: \r\n", body=b""))) + b"\r\n")


SERVED = {
    "a length": post(HOST, LENGTH),
    "chunks": post(HOST, CHUNKED, body=whole_chunked(chunk(BODY[:5]), chunk(BODY[5:]))),
    "a chunk extension": post(HOST, CHUNKED, body=whole_chunked(chunk(BODY, b';name="value"'))),
    "trailers": post(HOST, CHUNKED, body=whole_chunked(chunk(BODY), trailers=b"X: y\r\n")),
    "small chunks": post(HOST, CHUNKED, body=whole_chunked(*(chunk(BODY[at : at + 8]) for at in EIGHTHS))),
    "chunks in hundreds": post(HOST, CHUNKED, body=whole_chunked(chunk(BODY), *[chunk(b" " * 100)] * 300)),
    "an absolute target": post(HOST, LENGTH, target=b"http://gateway:80/v2/models/identity_fp32/infer"),
    "white space around a value": post(HOST, LENGTH, b"X: \t y \t\r\n"),
    "a head at its bound": sized(MOST_BYTES),
    "fields at their bound": post(HOST, LENGTH, *[b"X: y\r\n"] * (MOST_FIELDS - 2)),
    "the same length twice": post(HOST, LENGTH, LENGTH),
}  # fmt: skip
REFUSED = {
    "length and chunks": post(HOST, LENGTH, CHUNKED, body=whole_chunked(chunk(BODY))),
    "chunks and length": post(HOST, CHUNKED, LENGTH, body=whole_chunked(chunk(BODY))),
    "chunks in HTTP/1.0": post(HOST, CHUNKED, version=b"1.0", body=whole_chunked(chunk(BODY))),
    "two lengths": post(HOST, LENGTH, b"Content-Length: 1\r\n"),
    "two lengths in one field": post(HOST, b"Content-Length: 1, 2\r\n"),
    "a length that is no number": post(HOST, b"Content-Length: +9\r\n"),
    "an unknown transfer coding": post(HOST, b"Transfer-Encoding: gzip, chunked\r\n", body=whole_chunked(chunk(BODY))),
    "chunked twice": post(HOST, CHUNKED, CHUNKED, body=whole_chunked(chunk(BODY))),
    "no Host": post(LENGTH),
    "two Host": post(HOST, HOST, LENGTH),
    "a folded field": post(HOST, LENGTH, b"X: y\r\n z\r\n"),
    "LF alone": post(HOST, LENGTH).replace(b"\r\n", b"\n"),
    "LF alone behind one field": post(HOST, LENGTH, b"X: y\n"),
    "CR alone": post(HOST, LENGTH, b"X: y\rZ: z\r\n"),
    "NUL in a value": post(HOST, LENGTH, b"X: \0\r\n"),
    "a blank before a colon": post(HOST, b"Content-Length : 5\r\n"),
    "a blank before the first field": post(b" ", HOST, LENGTH),
    "no name": post(HOST, LENGTH, b": y\r\n"),
    "a head beyond its bound": sized(MOST_BYTES + 1),
    "fields beyond their bound": post(HOST, LENGTH, *[b"X: y\r\n"] * (MOST_FIELDS - 1)),
    "two blanks in the request line": post(HOST, LENGTH).replace(b"POST ", b"POST  ", 1),
    "a chunk size that is no number": post(HOST, CHUNKED, body=b"+5\r\nhello\r\n0\r\n\r\n"),
    "a chunk that is too long": post(HOST, CHUNKED, body=b"5\r\nhelloX\r\n0\r\n\r\n"),
    "LF alone behind a chunk": post(HOST, CHUNKED, body=b"5\r\nhello\n0\r\n\r\n"),
    "chunk extensions without end": post(HOST, CHUNKED, body=b"1;" + b"x" * MOST_BYTES),
    "chunk extensions in masses": post(HOST, CHUNKED, body=chunk(b"xx", b";" + b"x" * 1000) * 20),
    "chunks of one byte": post(HOST, CHUNKED, body=chunk(b"x") * 2 * MOST_PIECES),
}  # fmt: skip


async def answered(gateway, words):
    """Return status of the first answer, and all that came until the server hung up, which a second request proves."""
    reader, writer = await gateway.connect()
    writer.write(words)
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n")
    try:
        rest = await reader.read(-1)
    except ConnectionResetError:  # the second request came when the connection was closed
        rest = b""
    writer.close()
    return int(head.split()[1]), rest


@pytest.mark.parametrize("name", SERVED)
async def test_a_request_is_served_and_the_connection_goes_on(name):
    async with serving() as gateway:
        status, rest = await answered(gateway, SERVED[name])
    assert status == 200
    assert b"HTTP/1.1 200" in rest


@pytest.mark.parametrize("name", REFUSED)
async def test_a_request_is_refused_and_the_connection_ends(name):
    async with serving() as gateway:
        status, rest = await answered(gateway, REFUSED[name])
    assert status == 400
    assert b"HTTP/1.1 200" not in rest


async def test_requests_that_do_not_wait_are_answered_in_order():
    """Each has its turn, whatever one read brought."""
    async with serving() as gateway:
        reader, writer = await gateway.connect()
        writer.write(b"".join(post(HOST, LENGTH, target=b"/v2/models/identity_fp32/%d" % turn) for turn in range(20)))
        for turn in range(20):
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            assert b"%d" % turn in await reader.readexactly(size)
        writer.close()


async def test_each_request_of_a_pipeline_is_parsed_alike():
    """The bytes after a request's body are a head again."""
    async with serving() as gateway:
        reader, writer = await gateway.connect()
        writer.write(post(HOST, LENGTH) + REFUSED["length and chunks"])
        said = await reader.read(-1)
        writer.close()
    assert b"HTTP/1.1 200" in said
    assert b"HTTP/1.1 400" in said
