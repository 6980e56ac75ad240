"""Answers in the verbs' HTTP client: values, pages, timeouts, and errors that say what to do."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.client.client import Access, Client, ClientSettings, path_of
from gateway.common.domain.errors import ConfigurationError, RequestError, UnreachableError
from tests.simulators.controller import free_port
from tests.simulators.fleet_http import AUTHORITY, now
from tests.simulators.scripted_server import LOST, TOKEN, Scripted, good, problem, scripted


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted() as running:
        yield running


def test_a_request_carries_token_query_and_body(server) -> None:
    server.replies = [good({"ok": True}), (204, {}, b"")]
    client = server.client()
    query = {"tag": ["a b", "c"], "site": "", "state": None, "last": True, "all": False, "wave": 0, "limit": 5}
    assert client.ask("POST", path_of("devices", "a ü"), query, {"x": "ü"}) == {"ok": True}
    assert client.ask("DELETE", "/v1/x") == {}
    method, path, headers, body = server.asked[0]
    assert (method, path) == ("POST", "/v1/devices/a%20%C3%BC?tag=a+b&tag=c&last=true&wave=0&limit=5")
    assert (headers["authorization"], headers["content-type"]) == (f"Bearer {TOKEN}", "application/json")
    assert json.loads(body) == {"x": "ü"}
    assert "content-type" not in server.asked[1][2]


def test_pages_follow_their_cursor_to_the_end(server) -> None:
    server.replies = [good({"items": [{"n": 1}], "next": "a&b"}), good({"items": [{"n": 2}], "next": None})]
    assert [item["n"] for item in server.client().pages("/v1/x", {"q": 1}, cursor="before")] == [1, 2]
    assert [path for _, path, _, _ in server.asked] == ["/v1/x?limit=500&q=1", "/v1/x?limit=500&q=1&before=a%26b"]


@pytest.mark.parametrize("status", [429, 503])
def test_later_is_waited_for_as_long_as_it_says(server, status) -> None:
    later = problem(status, "busy", **{"retry-after": "7"})
    server.replies = [
        later,
        problem(status, "busy"),
        problem(status, "busy", **{"retry-after": "3600"}),
        good({"n": 1}),
    ]
    assert server.client().ask("GET", "/v1/x") == {"n": 1}
    assert server.slept == [7.0, 1.0, ClientSettings().wait_limit_s]


def test_patience_ends(server) -> None:
    server.replies = [problem(503, "the database is away")]
    with pytest.raises(UnreachableError, match="the database is away"):
        server.client(ClientSettings(attempts=3)).ask("GET", "/v1/x")
    assert (len(server.asked), len(server.slept)) == (3, 2)


def _keys(server: Scripted) -> list[str]:
    return [headers.get("idempotency-key", "") for _, _, headers, _ in server.asked]


def test_a_post_whose_connection_breaks_is_sent_again_with_its_key(server) -> None:
    in_progress = problem(409, "not ended", **{"retry-after": "2"})
    in_progress = (409, in_progress[1], in_progress[2].replace(b"/problems/conflict", b"/problems/request-in-progress"))
    server.replies = [LOST, LOST, in_progress, problem(503, "busy"), good({"n": 1})]
    assert server.client().ask("POST", "/v1/x", body={}) == {"n": 1}
    (key,) = set(_keys(server))
    assert len(key.strip('"')) == 36
    assert server.slept == [1.0, 2.0, 2.0, 1.0]
    server.client().ask("POST", "/v1/x", body={})
    assert _keys(server)[-1] != key


def test_a_conflict_is_not_asked_again(server) -> None:
    server.replies = [problem(409, "is there already")]
    with pytest.raises(RequestError, match="is there already"):
        server.client().ask("POST", "/v1/x")
    assert len(server.asked) == 1


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_what_has_no_key_is_not_sent_again(server, method) -> None:
    server.replies = [LOST, good({})]
    with pytest.raises(UnreachableError, match="does not answer"):
        server.client().ask(method, "/v1/x")
    assert (_keys(server), server.slept) == ([""], [])


def test_a_state_that_was_read_is_named(server) -> None:
    server.replies = [(200, {"etag": '"abc"'}, b'{"n": 1}'), good({})]
    document, state = server.client().read("/v1/x")
    server.client().ask("POST", "/v1/x", if_match=state)
    assert (document, state, server.asked[1][2]["if-match"]) == ({"n": 1}, '"abc"', '"abc"')


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        (problem(400, "limit: no number"), ConfigurationError, "limit: no number"),
        (problem(401, "unknown token"), RequestError, "unknown token"),
        (problem(403, "needs the role admin"), RequestError, "needs the role admin"),
        (problem(404, "no device"), RequestError, "no device"),
        (problem(409, "is there already"), RequestError, "is there already"),
        (problem(500, "a defect"), RequestError, "a defect"),
        ((200, {}, b"<html>"), UnreachableError, "is this an edge-fleet controller?"),
        ((200, {}, b"\xff"), UnreachableError, "is this an edge-fleet controller?"),
        ((404, {}, b"<html>"), UnreachableError, "answers 404; is this an edge-fleet controller?"),
        ((302, {"location": "http://elsewhere/"}, b""), UnreachableError, "answers 302"),
        ((200, {}, b"[" * 200_000), UnreachableError, "does not answer with a JSON object"),
        (good("x" * 2000), UnreachableError, "larger than 1000 bytes"),
        ((200, {"content-length": "999"}, b"{"), UnreachableError, "does not answer"),
    ],
)
def test_refusals_are_told_by_what_one_can_do(server, reply, kind, said) -> None:
    server.replies = [reply]
    limit_bytes = 1000 if said == "larger than 1000 bytes" else 1_000_000
    with pytest.raises(kind) as caught:
        server.client(ClientSettings(answer_limit_bytes=limit_bytes, read_timeout_s=0.5)).ask("GET", "/v1/x")
    assert type(caught.value) is kind
    assert said in str(caught.value)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("name", ["camera-1/inventory", "", ".", ".."])
def test_a_name_is_one_part_of_a_path(name) -> None:
    with pytest.raises(ConfigurationError, match="is not a name"):
        path_of("devices", name, "labels")


@pytest.mark.parametrize("document", [[], 7, None, "edge-fleet"])
def test_what_is_no_document(server, document) -> None:
    server.replies = [good(document)]
    with pytest.raises(UnreachableError, match="does not answer with a JSON object"):
        server.client().ask("GET", "/v1/x")


def test_a_document_of_somebody_else(server) -> None:
    server.replies = [good({"id": "camera-1", "certificates": [{"name": "x"}]})]
    device = server.client().ask("GET", "/v1/devices/camera-1")
    assert (device["id"], device.get("state")) == ("camera-1", None)
    with pytest.raises(UnreachableError, match=r"without 'state'; is this an edge-fleet controller"):
        device["state"]
    with pytest.raises(UnreachableError, match="without 'serial'"):
        device["certificates"][0]["serial"]


@pytest.mark.parametrize("document", [{}, {"status": "ok"}, {"items": []}])
def test_a_page_of_something_else(server, document) -> None:
    server.replies = [good(document)]
    with pytest.raises(UnreachableError, match=r"/v1/x does not answer a list; is this"):
        list(server.client().pages("/v1/x"))


@pytest.mark.parametrize(
    "line", ["retry: " + "9" * 400, "data: " + "[" * 200_000 + "\n", "data: " + "9" * 5_000 + "\n", "data: []\n"]
)
def test_a_stream_of_something_else(server, line) -> None:
    server.replies = [(200, {"content-type": "text/event-stream"}, f"{line}\n".encode())]
    with pytest.raises(UnreachableError):
        list(server.client().changes({}))


def test_nobody_listens() -> None:
    with pytest.raises(UnreachableError, match=r"does not answer.*refused"):
        Client(Access(f"http://127.0.0.1:{free_port()}", TOKEN)).ask("GET", "/v1/x")


@pytest.mark.parametrize(
    "url", ["", "fleet.example.org", "ftp://fleet", "https://", "http://fleet.example.org", "http://127.0.0.1.evil"]
)
def test_a_token_goes_nowhere_in_the_clear(url) -> None:
    with pytest.raises(ConfigurationError, match=r"not a controller's address|in the clear"):
        Client(Access(url, TOKEN))


def test_a_file_of_no_certificates(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nonsense")
    for name in ("ca.pem", "nothere.pem"):
        with pytest.raises(ConfigurationError, match=f"{name}: holds no readable certificates"):
            Client(Access("https://localhost", TOKEN, str(tmp_path / name)))


def test_a_certificate_is_believed_from_the_named_authority_only(tmp_path: Path) -> None:
    """The token is not sent to a server with a certificate of another authority."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate, key = AUTHORITY.issue_server(["localhost"], now())
    (tmp_path / "server.pem").write_bytes(certificate + key)
    (tmp_path / "ca.pem").write_bytes(AUTHORITY.pem)
    tls.load_cert_chain(tmp_path / "server.pem")
    ca_file = str(tmp_path / "ca.pem")
    with scripted(tls) as server:
        server.replies = [good({"said": "hello"})]
        port = server.url.rpartition(":")[2]
        assert Client(Access(f"https://localhost:{port}", TOKEN, ca_file)).ask("GET", "/v1/x")["said"] == "hello"
        for host, believed in (("localhost", ""), ("127.0.0.1", ca_file)):
            with pytest.raises(UnreachableError, match=r"certificate is not trusted.*--ca"):
                Client(Access(f"https://{host}:{port}", TOKEN, believed)).ask("GET", "/v1/x")
        assert len(server.asked) == 1
