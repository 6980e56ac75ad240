"""Pulls of files from web servers: pinned, continued, bounded; and from servers that misbehave."""

from __future__ import annotations

import base64
import errno
import gzip
import io
import json
import ssl
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.store.errors import StoreError
from gateway.common.transfer.source import FetchError
from gateway.serving.store.library import scan_version
from gateway.workshop.pull.archive_bounds import ArchiveError
from gateway.workshop.pull.credentials import PASSWORD, TOKEN, USER
from gateway.workshop.pull.staging import LOCK, NAME, staging
from tests.simulators.authority import Authority
from tests.simulators.bad_server import BadServer, Behaviour, Exchange, answer, endless, serve, silence, trickle
from tests.simulators.constants import settings_with
from tests.simulators.pulling import MODEL, QUICK, SETTINGS, digest, pull, release_tar

HALF = len(MODEL) // 2
LOGIN = {USER: "me", PASSWORD: "secret"}


def tagged(content: bytes, tag: str, count: int | None = None) -> Behaviour:
    """Respond as a server with ranges and an ETag; close the connection after `count` bytes of the body."""

    def behave(exchange: Exchange) -> None:
        if exchange.headers.get("if-match", f'"{tag}"') != f'"{tag}"':
            exchange.head("412 Precondition Failed", "Content-Length: 0")
            return
        first, _, last = exchange.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = content[int(first) : int(last) + 1 if last else None]
        span = f"Content-Range: bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
        status = "206 Partial Content" if "range" in exchange.headers else "200 OK"
        exchange.head(
            status, f"Content-Length: {len(part)}", f'ETag: "{tag}"', *([span] if status[0:3] == "206" else [])
        )
        exchange.body(part[:count] if not last else part)
        exchange.keep_alive = count is None

    return behave


def test_a_model_file(tmp_path: Path) -> None:
    with BadServer([tagged(MODEL, "a")]).running() as server:
        pulled = pull(f"{server.url}files/wrist.onnx#sha256={digest(MODEL)}", tmp_path)
    assert pulled.folder == tmp_path / "wrist" / "1"
    assert (pulled.folder / "wrist.onnx").read_bytes() == MODEL
    record = json.loads((pulled.folder / ".pulled.json").read_text())
    assert record["source"].endswith(f"/files/wrist.onnx#sha256={digest(MODEL)}")


def as_zip() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(release_tar())) as tar, zipfile.ZipFile(buffer, "w") as made:
        for member in tar.getmembers():
            if member.isfile() and (content := tar.extractfile(member)):
                made.writestr(member.name, content.read())
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("suffix", "make"),
    [("tar.gz", release_tar), ("tgz", release_tar), ("tar", lambda: gzip.decompress(release_tar())), ("zip", as_zip)],
)
def test_an_archive_of_a_release(tmp_path: Path, suffix: str, make: Callable[[], bytes]) -> None:
    content = make()
    with BadServer([serve(content)]).running() as server:
        pulled = pull(f"{server.url}meter.{suffix}", tmp_path, pin=digest(content))
    assert pulled.folder == tmp_path / "meter-reader" / "1"
    assert not scan_version(pulled.folder).problem


def test_over_tls_with_an_authority_of_its_own(tmp_path: Path) -> None:
    files = Authority().write(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "cert.pem", files / "key.pem")
    with BadServer([serve(MODEL)]).running(context) as server:
        where = f"{server.url}model.onnx"
        with pytest.raises(FetchError, match="--ca FILE"):
            pull(where, tmp_path / "models", pin=digest(MODEL))
        assert pull(where, tmp_path / "models", pin=digest(MODEL), ca=files / "ca.pem").is_new


def test_a_cut_connection_is_continued_within_a_pull(tmp_path: Path) -> None:
    with BadServer([tagged(MODEL, "a"), tagged(MODEL, "a", HALF), tagged(MODEL, "a")]).running() as server:
        assert pull(f"{server.url}model.onnx", tmp_path, pin=digest(MODEL)).is_new
        last = server.exchanges[-1].headers
        assert (last["range"], last["if-match"]) == (f"bytes={HALF}-", '"a"')


def test_the_next_pull_continues(tmp_path: Path) -> None:
    lost = answer("500 Lost")
    with BadServer([tagged(MODEL, "a"), tagged(MODEL, "a", HALF), lost]).running() as server:
        where = f"{server.url}model.onnx"
        with pytest.raises(FetchError, match="run the command again") as caught:
            pull(where, tmp_path, pin=digest(MODEL))
        assert not caught.value.final
        assert [path.name for path in tmp_path.iterdir()] == [NAME]
        before = server.body_bytes
        server.script[:] = [tagged(MODEL, "a")]
        assert pull(where, tmp_path, pin=digest(MODEL)).is_new
        assert server.body_bytes - before == 1 + len(MODEL) - HALF


def test_a_source_that_changed_between_two_pulls_begins_again(tmp_path: Path) -> None:
    other = bytes(len(MODEL))
    with BadServer([tagged(other, "a"), tagged(other, "a", HALF), answer("500 Lost")]).running() as server:
        where = f"{server.url}model.onnx"
        with pytest.raises(FetchError):
            pull(where, tmp_path, pin=digest(MODEL))
        server.script[:] = [tagged(MODEL, "b")]
        assert pull(where, tmp_path, pin=digest(MODEL)).is_new
        assert "range" not in server.exchanges[-1].headers


def test_a_source_that_changes_in_the_middle_begins_again(tmp_path: Path) -> None:
    other = bytes(len(MODEL))
    script = [tagged(other, "a"), tagged(other, "a", HALF), tagged(MODEL, "b")]
    with BadServer(script).running() as server:
        assert pull(f"{server.url}model.onnx", tmp_path, pin=digest(MODEL)).is_new


def test_a_source_that_always_changes_is_given_up(tmp_path: Path) -> None:
    count = [0]

    def changing(exchange: Exchange) -> None:
        count[0] += 1
        tagged(MODEL, f"{count[0]}", HALF)(exchange)

    with BadServer([changing]).running() as server, pytest.raises(FetchError) as caught:
        pull(f"{server.url}model.onnx", tmp_path, pin=digest(MODEL))
    assert caught.value.status == 412


@pytest.mark.parametrize("ranges", [True, False])
def test_a_server_without_tags(tmp_path: Path, *, ranges: bool) -> None:
    with BadServer([serve(MODEL, ranges=ranges)]).running() as server:
        assert pull(f"{server.url}model.onnx", tmp_path, pin=digest(MODEL)).is_new


def test_another_digest_is_refused(tmp_path: Path) -> None:
    with BadServer([serve(bytes(1000))]).running() as server, pytest.raises(FetchError, match="not what was pinned"):
        pull(f"{server.url}model.onnx", tmp_path, pin=digest(MODEL))
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert list((tmp_path / NAME / "sha256").iterdir()) == []


def test_damaged_bytes_of_an_earlier_pull_are_replaced(tmp_path: Path) -> None:
    with BadServer([tagged(MODEL, "a"), tagged(MODEL, "a", HALF), answer("500 Lost")]).running() as server:
        where = f"{server.url}model.onnx"
        with pytest.raises(FetchError):
            pull(where, tmp_path, pin=digest(MODEL))
        part = tmp_path / NAME / "sha256" / f"{digest(MODEL)}.part"
        part.write_bytes(bytes(HALF))
        server.script[:] = [tagged(MODEL, "a")]
        assert pull(where, tmp_path, pin=digest(MODEL)).is_new


def test_more_than_the_limit_is_refused_before_it_comes(tmp_path: Path) -> None:
    with BadServer([serve(MODEL)]).running() as server, pytest.raises(FetchError, match="--limit-bytes"):
        pull(f"{server.url}model.onnx", tmp_path, pin=digest(MODEL), settings=replace(SETTINGS, bytes_limit=1000))


ENDLESS = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("behaviour", "word"),
    [
        (silence, "nothing came for"),
        (trickle(b"HTTP/1.1 200 OK\r\n", 0.05), "came in"),
        (endless(b"HTTP/1.1 200 OK\r\nX: "), "got more than|headers have more than"),
        (endless(ENDLESS), "--limit-bytes"),
        (endless(CHUNKED), "whose length the server states"),
        (answer("302 Found", "Location: /again"), "redirected more than"),
        (answer("302 Found", "Location: http://files.example/"), "without TLS"),
    ],
)
def test_servers_that_take_their_time_or_send_too_much(tmp_path: Path, behaviour: Behaviour, word: str) -> None:
    slow = replace(SETTINGS, fetch=settings_with(QUICK, attempts=1))
    with BadServer([behaviour]).running() as server, pytest.raises(FetchError, match=word):
        pull(f"{server.url}model.onnx", tmp_path, pin=digest(MODEL), settings=slow)
    assert not (tmp_path / "model").exists()


def test_a_body_that_trickles_ends(tmp_path: Path) -> None:
    slow = replace(SETTINGS, fetch=settings_with(QUICK, attempts=1))
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(MODEL)}\r\n\r\n".encode()
    script = [tagged(MODEL, "a"), trickle(head, 0.05)]
    with BadServer(script).running() as server, pytest.raises(FetchError, match="bytes came in"):
        pull(f"{server.url}model.onnx", tmp_path, pin=digest(MODEL), settings=slow)


def test_more_than_announced_is_not_read(tmp_path: Path) -> None:
    whole = f"HTTP/1.1 200 OK\r\nContent-Length: {len(MODEL)}\r\n\r\n".encode() + MODEL
    with BadServer([tagged(MODEL, "a"), endless(whole)]).running() as server:
        pulled = pull(f"{server.url}model.onnx", tmp_path, pin=digest(MODEL))
    assert (pulled.folder / "model.onnx").read_bytes() == MODEL


@pytest.mark.parametrize(
    ("status", "word"),
    [("401 Unauthorized", "credentials"), ("403 Forbidden", "rights"), ("404 Not Found", "reference")],
)
def test_refusals_are_final_and_name_their_remedy(tmp_path: Path, status: str, word: str) -> None:
    with BadServer([answer(status)]).running() as server:
        with pytest.raises(FetchError, match=word) as caught:
            pull(f"{server.url}model.onnx", tmp_path, pin=digest(MODEL))
        assert (caught.value.final, len(server.exchanges)) == (True, 1)


def test_a_busy_server_is_asked_again(tmp_path: Path) -> None:
    busy = answer("429 Too Many Requests", "Retry-After: 1")
    with BadServer([busy, tagged(MODEL, "a"), busy, tagged(MODEL, "a")]).running() as server:
        assert pull(f"{server.url}model.onnx", tmp_path, pin=digest(MODEL)).is_new


@pytest.mark.parametrize(
    ("environ", "sent"),
    [({TOKEN: "t"}, "Bearer t"), (LOGIN, "Basic " + base64.b64encode(b"me:secret").decode()), ({}, None)],
)
def test_credentials_do_not_follow_a_redirect_to_another_host(
    tmp_path: Path, environ: dict[str, str], sent: str | None
) -> None:
    with BadServer([serve(MODEL)]).running() as other:
        with BadServer([answer("302 Found", f"Location: {other.url}there.onnx")]).running() as server:
            assert pull(f"{server.url}model.onnx", tmp_path, pin=digest(MODEL), environ=environ).is_new
        assert {exchange.headers.get("authorization") for exchange in server.exchanges} == {sent}
        assert {exchange.headers.get("authorization") for exchange in other.exchanges} == {None}


def test_http_without_tls_is_for_this_device_only(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="without TLS"):
        pull("http://files.example/model.onnx", tmp_path, pin=digest(MODEL))


def test_a_proxy_is_asked_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with BadServer([serve(MODEL)]).running() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert pull("http://a.localhost:1/model.onnx", tmp_path, pin=digest(MODEL)).is_new
        assert {exchange.path for exchange in proxy.exchanges} == {"http://a.localhost:1/model.onnx"}


def bomb() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        member = tarfile.TarInfo("model.onnx")
        member.size = 5_000_000
        tar.addfile(member, io.BytesIO(bytes(member.size)))
    return buffer.getvalue()


def slip(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        made.writestr(name, b"x")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("file", "content"),
    [("b.tar.gz", bomb()), ("s.zip", slip("../../evil")), ("s.zip", slip("/evil")), ("e.tgz", b"text"), ("e.zip", b"")],
)
def test_hostile_archives_leave_nothing(tmp_path: Path, file: str, content: bytes) -> None:
    models = tmp_path / "models"
    small, script = replace(SETTINGS, bytes_limit=100_000), [serve(content) if content else answer("200 OK")]
    with BadServer(script).running() as server, pytest.raises(ArchiveError):
        pull(f"{server.url}{file}", models, pin=digest(content), settings=small)
    assert [path.name for path in tmp_path.iterdir()] == ["models"]
    assert [path.name for path in models.iterdir()] == [NAME]
    assert {path.name for path in (models / NAME).iterdir() if not path.name.endswith(".etag")} == {LOCK, "sha256"}


def test_a_release_whose_files_are_not_those_of_its_manifest_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(release_tar())) as tar, zipfile.ZipFile(buffer, "w") as made:
        for member in tar.getmembers():
            if member.isfile() and (content := tar.extractfile(member)):
                made.writestr(member.name, content.read() + (b"x" if member.name.endswith("model.onnx") else b""))
    with BadServer([serve(buffer.getvalue())]).running() as server, pytest.raises(ArchiveError, match="manifest says"):
        pull(f"{server.url}m.zip", tmp_path, pin=digest(buffer.getvalue()))
    assert not (tmp_path / "meter-reader").exists()


def test_options_that_contradict_the_manifest_are_refused(tmp_path: Path) -> None:
    content = release_tar()
    with BadServer([serve(content)]).running() as server:
        for options in ({"name": "other"}, {"version": "2"}):
            with pytest.raises(ConfigurationError, match="leave the option out"):
                pull(f"{server.url}m.tar.gz", tmp_path, pin=digest(content), **options)


@pytest.mark.parametrize("name", ["a b", "../x", ".hidden", "x" * 200])
def test_names_that_no_model_has_are_refused(tmp_path: Path, name: str) -> None:
    with BadServer([serve(MODEL)]).running() as server, pytest.raises(ConfigurationError, match="--name"):
        pull(f"{server.url}m.onnx", tmp_path, pin=digest(MODEL), name=name)


def test_two_pulls_into_one_folder_exclude_each_other(tmp_path: Path) -> None:
    running = BadServer([serve(MODEL)]).running()
    with staging(tmp_path, SETTINGS), running as server, pytest.raises(ConfigurationError, match="under way"):
        pull(f"{server.url}m.onnx", tmp_path, pin=digest(MODEL))


def test_a_disk_without_links_gets_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_self: Path, _target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    with BadServer([serve(MODEL)]).running() as server:
        pulled = pull(f"{server.url}m.onnx", tmp_path, pin=digest(MODEL))
    assert (pulled.folder / "m.onnx").read_bytes() == MODEL


def test_a_folder_that_cannot_be_made_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with BadServer([serve(MODEL)]).running() as server, pytest.raises(StoreError):
        pull(f"{server.url}m.onnx", tmp_path / "file", pin=digest(MODEL))
