"""Pulls from Debian's docker-registry, with its token authentication, and from registries that misbehave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.transfer.connection import ConnectionPool
from gateway.common.transfer.source import FetchError
from gateway.serving.store.library import scan_version
from gateway.workshop.pull.archive_bounds import ArchiveError
from gateway.workshop.pull.credentials import PASSWORD as PASSWORD_VARIABLE
from gateway.workshop.pull.credentials import USER as USER_VARIABLE
from gateway.workshop.pull.reference import OciReference
from gateway.workshop.pull.registry import RegistrySource
from tests.simulators.authority import Authority
from tests.simulators.bad_server import BadServer, answer, cut, serve
from tests.simulators.pulling import MODEL, SETTINGS, digest, manifest, pull, release_tar
from tests.simulators.registry import PASSWORD, USER, Registry, TokenService, registry

LOGIN = {USER_VARIABLE: USER, PASSWORD_VARIABLE: PASSWORD}
TAR = "application/vnd.oci.image.layer.v1.tar+gzip"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


def test_a_release_folder_becomes_a_release(plain: Registry, tmp_path: Path) -> None:
    pinned = plain.push("team/meter", "v1", plain.layer("team/meter", release_tar(), kind=TAR))
    seen: list[int] = []
    pulled = pull(f"oci://{plain.host}/team/meter@{pinned}", tmp_path, progress=seen)
    assert (pulled.folder, pulled.is_new) == (tmp_path / "meter-reader" / "1", True)
    assert not scan_version(pulled.folder).problem
    assert seen == sorted(seen)
    assert seen[-1] == pulled.size_bytes == len(release_tar())
    assert sorted(path.name for path in (tmp_path / ".pull").iterdir()) == ["lock", "sha256"]
    assert list((tmp_path / ".pull" / "sha256").iterdir()) == []


def test_files_become_a_model_without_a_manifest(plain: Registry, tmp_path: Path) -> None:
    layers = plain.layer("files", MODEL, "model.onnx"), plain.layer("files", b"Terms", "LICENSE")
    pinned = plain.push("files", "v1", *layers)
    pulled = pull(f"oci://{plain.host}/files:v1@{pinned}", tmp_path, name="wrist", version="7")
    assert pulled.folder == tmp_path / "wrist" / "7"
    assert (pulled.folder / "model.onnx").read_bytes() == MODEL
    assert json.loads((pulled.folder / ".pulled.json").read_text())["digest"] == pinned.removeprefix("sha256:")


def test_what_is_there_is_not_pulled_again(plain: Registry, tmp_path: Path) -> None:
    pinned = plain.push("again", "v1", plain.layer("again", MODEL, "model.onnx"))
    first = pull(f"oci://{plain.host}/again@{pinned}", tmp_path)
    second = pull(f"oci://{plain.host}/again@{pinned}", tmp_path)
    assert (second.folder, second.is_new) == (first.folder, False)
    other = plain.push("again", "v2", plain.layer("again", MODEL, "other.onnx"))
    with pytest.raises(ConfigurationError, match="exists already"):
        pull(f"oci://{plain.host}/again@{other}", tmp_path)
    assert (first.folder / "model.onnx").is_file()


def test_a_tag_alone_is_refused_unless_it_is_accepted(plain: Registry, tmp_path: Path) -> None:
    pinned = plain.push("tagged", "v1", plain.layer("tagged", MODEL, "model.onnx"))
    with pytest.raises(ConfigurationError, match="--accept-tag"):
        pull(f"oci://{plain.host}/tagged:v1", tmp_path)
    assert f"sha256:{pull(f'oci://{plain.host}/tagged:v1', tmp_path, accept_tag=True).digest}" == pinned


def test_a_tag_that_moves_between_two_requests_changes_nothing(plain: Registry, tmp_path: Path) -> None:
    first = plain.push("moved", "v1", plain.layer("moved", MODEL, "model.onnx"))
    connections = ConnectionPool(SETTINGS.fetch)
    reference = OciReference(plain.host, "moved", "v1", "")
    source = RegistrySource(plain.url, reference, None, connections, SETTINGS)
    assert f"sha256:{source.resolve()}" == first
    assert plain.push("moved", "v1", plain.layer("moved", b"another", "model.onnx")) != first
    assert [part.digest for part in source.parts()] == [digest(MODEL)]
    assert f"sha256:{source.resolve()}" == first
    connections.close()


def test_a_registry_that_wants_tokens(plain: Registry, tmp_path: Path) -> None:
    """The registry verifies the token: service, scope, signature."""
    content = tmp_path / "content"
    with registry(content) as empty:
        pinned = empty.push("team/meter", "v1", empty.layer("team/meter", MODEL, "model.onnx"))
    tls = Authority().write(tmp_path / "tls")
    with (
        TokenService(tmp_path / "tokens").running(tls) as tokens,
        registry(content, tls=tls, tokens=tokens) as running,
    ):
        where = f"oci://{running.host}/team/meter@{pinned}"
        pulled = pull(where, tmp_path / "models", environ=LOGIN, ca=tls / "ca.pem")
        assert (pulled.folder / "model.onnx").read_bytes() == MODEL
        assert len(tokens.asked) == 1
        assert "scope=repository%3Ateam%2Fmeter%3Apull" in tokens.asked[0][0]
        for environ in ({}, {**LOGIN, PASSWORD_VARIABLE: "wrong"}):
            with pytest.raises(FetchError) as caught:
                pull(where, tmp_path / "others", environ=environ, ca=tls / "ca.pem")
            assert (caught.value.status, caught.value.final) == (401, True)
            assert "credentials" in str(caught.value)


def test_a_registry_with_an_authority_of_its_own(tmp_path: Path) -> None:
    tls = Authority().write(tmp_path / "tls")
    with registry(tmp_path / "registry", tls=tls) as running:
        pinned = running.push("meter", "v1", running.layer("meter", MODEL, "model.onnx"))
        where = f"oci://{running.host}/meter@{pinned}"
        assert pull(where, tmp_path / "models", ca=tls / "ca.pem").is_new
        other = Authority().write(tmp_path / "other")
        with pytest.raises(FetchError, match="--ca FILE"):
            pull(where, tmp_path / "others", ca=other / "ca.pem")


def test_what_is_not_there(plain: Registry, tmp_path: Path) -> None:
    with pytest.raises(FetchError) as caught:
        pull(f"oci://{plain.host}/nothing@sha256:{digest(b'')}", tmp_path)
    assert (caught.value.status, caught.value.final) == (404, True)


def test_a_manifest_with_another_digest_is_refused(tmp_path: Path) -> None:
    with BadServer([serve(manifest((b"evil", "model.onnx")))]).running() as server:
        with pytest.raises(FetchError, match="another digest"):
            pull(f"oci://{host(server)}/a@sha256:{digest(b'pinned')}", tmp_path)
        assert len(server.exchanges) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_blob_with_another_digest_is_refused(tmp_path: Path) -> None:
    document = manifest((MODEL, "model.onnx"))
    evil = bytes(len(MODEL))
    script = [serve(document), serve(evil)]
    with BadServer(script).running() as server, pytest.raises(FetchError, match="another digest"):
        pull(f"oci://{host(server)}/a@sha256:{digest(document)}", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".pull"]
    assert list((tmp_path / ".pull" / "sha256").iterdir()) == []


def test_a_manifest_that_never_ends_is_cut(tmp_path: Path) -> None:
    with BadServer([serve(b" " * (SETTINGS.manifest_limit_bytes + 1))]).running() as server:
        with pytest.raises(FetchError) as caught:
            pull(f"oci://{host(server)}/a@sha256:{digest(b'')}", tmp_path)
        assert caught.value.final


def test_a_blob_is_continued_and_the_token_renewed(tmp_path: Path) -> None:
    """The connection breaks in the middle of a blob, and the token is refused when it is continued."""
    document = manifest((MODEL, "model.onnx"))
    with BadServer([]).running() as server:
        want = f'WWW-Authenticate: Bearer realm="{server.url}token",service="s"'
        tokens = [answer("200 OK", body=json.dumps({"access_token": name}).encode()) for name in ("one", "two")]
        refused = answer("401 Unauthorized", want)
        server.script += [refused, tokens[0], serve(document), cut(MODEL, 10_000), refused, tokens[1], serve(MODEL)]
        pulled = pull(f"oci://{host(server)}/a@sha256:{digest(document)}", tmp_path)
        assert (pulled.folder / "model.onnx").read_bytes() == MODEL
        last = server.exchanges[-1].headers
        assert (last["authorization"], last["range"]) == ("Bearer two", "bytes=10000-")
        assert server.exchanges[1].path == "/token?scope=repository%3Aa%3Apull&service=s"


def test_credentials_do_not_follow_a_redirect_to_another_host(tmp_path: Path) -> None:
    document = manifest((MODEL, "model.onnx"))
    with BadServer([serve(MODEL)]).running() as store, BadServer([serve(document)]).running() as server:
        server.script[:0] = [answer("401 Unauthorized", 'WWW-Authenticate: Basic realm="r"')]
        server.script += [answer("307 Temporary Redirect", f"Location: {store.url}blob?signature=1")]
        assert pull(f"oci://{host(server)}/a@sha256:{digest(document)}", tmp_path, environ=LOGIN).is_new
        assert server.exchanges[-1].headers["authorization"].startswith("Basic ")
        assert "authorization" not in store.exchanges[0].headers


@pytest.mark.parametrize(
    "realm", ["http://token.example/", "ftp://localhost/", "", "https://[", "file:///etc/passwd", "//localhost/"]
)
def test_a_token_service_without_tls_gets_no_credentials(tmp_path: Path, realm: str) -> None:
    refused = answer("401 Unauthorized", f'WWW-Authenticate: Bearer realm="{realm}"')
    with BadServer([refused]).running() as server, pytest.raises(FetchError) as caught:
        pull(f"oci://{host(server)}/a@sha256:{digest(b'')}", tmp_path, environ=LOGIN)
    assert caught.value.final


def test_a_token_service_at_another_port_without_tls_gets_no_credentials(tmp_path: Path) -> None:
    with BadServer([]).running() as service, BadServer([]).running() as server:
        server.script += [answer("401 Unauthorized", f'WWW-Authenticate: Bearer realm="{service.url}token"')]
        with pytest.raises(FetchError, match="gets no credentials"):
            pull(f"oci://{host(server)}/a@sha256:{digest(b'')}", tmp_path, environ=LOGIN)
        assert not service.exchanges


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token": 1}', b'{"token": "a\\r\\nb"}', b"[" * 60_000])
def test_an_answer_without_a_token_is_refused(tmp_path: Path, body: bytes) -> None:
    with BadServer([]).running() as server:
        want = f'WWW-Authenticate: Bearer realm="{server.url}token"'
        server.script += [answer("401 Unauthorized", want), serve(body)]
        with pytest.raises(FetchError, match="sent no token"):
            pull(f"oci://{host(server)}/a@sha256:{digest(b'')}", tmp_path)


def test_a_busy_registry_is_asked_again(tmp_path: Path) -> None:
    document = manifest((MODEL, "model.onnx"))
    busy = answer("429 Too Many Requests", "Retry-After: 1")
    with BadServer([busy, serve(document), busy, busy, serve(MODEL)]).running() as server:
        assert pull(f"oci://{host(server)}/a@sha256:{digest(document)}", tmp_path).is_new
    with BadServer([busy]).running() as server, pytest.raises(FetchError) as caught:
        pull(f"oci://{host(server)}/a@sha256:{digest(b'')}", tmp_path)
    assert (caught.value.status, caught.value.final) == (429, False)
    assert "run the command again" in str(caught.value)


@pytest.mark.parametrize("name", ["../../evil.onnx", "/etc/evil.onnx", "a\\b.onnx", "model.onnx/x"])
def test_names_of_files_stay_inside(tmp_path: Path, name: str) -> None:
    document = manifest((MODEL, "model.onnx"), (MODEL, name))
    with BadServer([serve(document), serve(MODEL)]).running() as server, pytest.raises(ArchiveError):
        pull(f"oci://{host(server)}/a@sha256:{digest(document)}", tmp_path / "models")
    assert [path.name for path in tmp_path.iterdir()] == ["models"]
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".pull"]


def host(server: BadServer) -> str:
    """Return host and port of a server."""
    return server.url.split("/")[2]
