"""curl and openssl on the gRPC port: nghttp2's and OpenSSL's view of our HTTP/2, on TCP, TLS and a UNIX socket."""

from __future__ import annotations

import gzip
import random
import subprocess
import time
import zlib

import pytest

from tests.system.framed import GRPC, INFER, curl, framed, is_right, question

PRIOR = "--http2-prior-knowledge"
OK, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, UNIMPLEMENTED, INTERNAL = "0", "3", "4", "5", "12", "13"
RESOURCE_EXHAUSTED = "8"
STREAM_ERROR = 92
"""curl's exit code where a stream was reset."""
ATTEMPTS = 50


@pytest.fixture(params=["tcp", "unix"])
def post(request, served, tmp_path):
    """Return a function that posts a body and returns what comes back."""
    tcp, unix = served.addresses("grpc")
    host, options = (
        (tcp, []) if request.param == "tcp" else ("localhost", ["--unix-socket", unix.removeprefix("unix:")])
    )

    def ask(body, *more, path=INFER, headers=GRPC):
        return curl(tmp_path, f"http://{host}{path}", PRIOR, *options, *headers, *more, body=body)

    return ask


@pytest.fixture
def refused(post):
    """Return `post` for requests that are refused before their body was read.

    Such an answer is complete, and RST_STREAM(NO_ERROR) follows it (RFC 9113, section 8.1); curl 7.88 takes that for an
    error where both come in one read.
    """

    def ask(*args, **options):
        heard = post(*args, **options)
        for attempt in range(ATTEMPTS):
            if heard.exit_code != STREAM_ERROR:
                break
            time.sleep(random.uniform(0, 0.002 * attempt))  # on a busy machine, equal attempts meet the same fate
            heard = post(*args, **options)
        return heard

    return ask


def test_a_framed_request_is_answered(post):
    heard = post(framed(question(rows=3)))
    assert (heard.exit_code, heard.status, heard.grpc_status) == (0, 200, OK)
    assert heard.headers["content-type"] == "application/grpc"
    assert is_right(heard.message, rows=3)


def test_what_is_refused_is_refused_in_the_trailers(post):
    heard = post(framed(question("grüß 100%")))
    assert (heard.exit_code, heard.status, heard.grpc_status, heard.body) == (0, 200, NOT_FOUND, b"")
    assert heard.headers["grpc-message"] == "request for unknown model: 'gr%c3%bc%c3%9f 100%25' is not found"


@pytest.mark.parametrize("name", ["gzip", "deflate"])
def test_a_compressed_message(post, name):
    compress = {"gzip": gzip.compress, "deflate": zlib.compress}[name]
    heard = post(framed(compress(question()), flag=1), "-H", f"grpc-encoding: {name}")
    assert heard.grpc_status == OK
    assert is_right(heard.message)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (framed(question(), flag=1), (), INTERNAL),
        (framed(question(), flag=1), ("-H", "grpc-encoding: gzip"), INTERNAL),
        (framed(b"\xff"), (), INVALID_ARGUMENT),
        (framed(b""), (), NOT_FOUND),
        (b"\0\xff\xff\xff\xff", (), RESOURCE_EXHAUSTED),
        (framed(question()), ("-H", "grpc-timeout: soon"), INTERNAL),
    ],
)
def test_bodies_and_headers_that_are_wrong(refused, body, headers, status):
    heard = refused(body, *headers)
    assert (heard.exit_code, heard.status, heard.grpc_status) == (0, 200, status), heard.headers


def test_a_deadline_of_a_nanosecond(refused):
    heard = refused(framed(question()), "-H", "grpc-timeout: 1n")
    assert heard.grpc_status == DEADLINE_EXCEEDED


def test_a_compression_that_nobody_knows(refused):
    """UNIMPLEMENTED says the specification, with what is accepted."""
    heard = refused(framed(question(), flag=1), "-H", "grpc-encoding: snappy")
    assert heard.grpc_status == UNIMPLEMENTED
    assert "gzip" in heard.headers["grpc-accept-encoding"]


@pytest.mark.parametrize("path", ["/", "/nothing", "/inference.GRPCInferenceService/Nothing", f"{INFER}/more"])
def test_an_unknown_path(refused, path):
    heard = refused(framed(question()), path=path)
    assert (heard.exit_code, heard.status, heard.grpc_status) == (0, 200, UNIMPLEMENTED)


@pytest.mark.parametrize("kind", ["application/grpc+proto", "application/grpc;charset=utf-8"])
def test_content_types_that_begin_like_grpc(post, kind):
    heard = post(framed(question()), headers=("-H", f"content-type: {kind}", "-H", "te: trailers"))
    assert (heard.status, heard.grpc_status) == (200, OK)


@pytest.mark.parametrize("kind", ["application/json", "text/plain", ""])
def test_another_content_type(refused, kind):
    heard = refused(
        framed(question()), headers=("-H", f"content-type:{' ' if kind else ''}{kind}", "-H", "te: trailers")
    )
    assert (heard.exit_code, heard.status) == (0, 415)


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "OPTIONS"])
def test_another_method(post, method):
    heard = post(None, *(["-I"] if method == "HEAD" else ["-X", method]))
    assert heard.grpc_status == ""
    assert (heard.exit_code, heard.status) == (0, 405)
    assert is_right(post(framed(question())).message)


def test_a_connection_that_does_not_speak_http_2(served, tmp_path):
    """HTTP/1.1, with and without an upgrade: no answer that could be taken for one, and the next caller is served."""
    url = f"http://{served.grpc}{INFER}"
    for options in (("--http1.1",), ("--http2",)):
        heard = curl(tmp_path, url, *options, *GRPC, body=framed(question()))
        assert heard.exit_code != 0 or heard.status >= 400
        assert heard.grpc_status == ""
    assert curl(tmp_path, url, PRIOR, *GRPC, body=framed(question())).grpc_status == OK


def test_a_question_longer_than_the_first_windows(post):
    """360 rows are 92 KB, in a connection's window of 64 KiB."""
    assert is_right(post(framed(question(rows=360))).message, rows=360)


# ---- TLS -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def port(served_tls):
    return served_tls.grpc.rpartition(":")[2]


def test_over_tls_by_alpn(port, authority, tmp_path):
    options = ("--http2", "--ipv4", "--cacert", str(authority / "ca.pem"), *GRPC)
    heard = curl(tmp_path, f"https://localhost:{port}{INFER}", *options, body=framed(question()))
    assert (heard.exit_code, heard.status, heard.grpc_status) == (0, 200, OK)
    assert is_right(heard.message)


def test_curl_refuses_an_authority_it_does_not_know(port, authority, tmp_path):
    options = ("--http2", "--ipv4", "--cacert", str(authority / "other-ca.pem"), *GRPC)
    assert curl(tmp_path, f"https://localhost:{port}{INFER}", *options, body=framed(question())).exit_code == 60


def handshake(port, authority, *options, said=""):
    """Return what openssl's client tells of its connection, and what it was answered."""
    command = ["/usr/bin/env", "openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-CAfile", authority / "ca.pem"]
    command += ["-servername", "localhost", *options]
    done = subprocess.run(command, input=said.encode(), capture_output=True, timeout=20, check=False)
    return (done.stdout + done.stderr).decode(errors="replace")


def test_h2_is_agreed_on(port, authority):
    said = handshake(port, authority, "-alpn", "h2")
    assert "ALPN protocol: h2" in said
    assert "Verify return code: 0 (ok)" in said


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_both_versions_of_tls(port, authority, version):
    assert "ALPN protocol: h2" in handshake(port, authority, "-alpn", "http/1.1,h2", version)


def test_old_tls_is_refused(port, authority):
    said = handshake(port, authority, "-alpn", "h2", "-tls1_1", "-cipher", "ALL@SECLEVEL=0")
    assert "ALPN protocol: h2" not in said


@pytest.mark.parametrize("options", [("-alpn", "http/1.1"), ()])
def test_without_h2_nothing_is_spoken(port, authority, tmp_path, options):
    said = handshake(port, authority, *options, said=f"GET {INFER} HTTP/1.1\r\nHost: x\r\n\r\n")
    assert "ALPN protocol" not in said
    assert "HTTP/1.1 200" not in said
    test_over_tls_by_alpn(port, authority, tmp_path)
