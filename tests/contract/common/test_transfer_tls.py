"""TLS: which servers the agent trusts, and how it identifies itself."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.transfer.settings import FetchSettings
from gateway.common.transfer.source import FetchError
from gateway.common.transfer.web import WebSource
from tests.simulators.authority import Authority
from tests.simulators.bad_server import BadServer, answer, serve, silence
from tests.simulators.constants import settings_with


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return Authority().write(tmp_path / "own")


def server_context(folder: Path, *, clients: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    if clients:
        context.load_verify_locations(clients / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def settings(folder: Path, *, certificate: bool = False) -> FetchSettings:
    return settings_with(
        FetchSettings(
            ca_file=str(folder / "ca.pem"),
            certificate_file=str(folder / "cert.pem") if certificate else None,
            key_file=str(folder / "key.pem") if certificate else None,
            connect_timeout_s=1,
            read_timeout_s=5,
        ),
        attempts=1,
    )


def test_an_authority_of_ones_own_is_trusted_and_the_connection_kept(own: Path) -> None:
    with BadServer([serve(b"content")]).running(server_context(own)) as server:
        source = WebSource(server.url, settings(own))
        assert source.read("1", 10).content == b"content"
        assert source.read("2", 10).content == b"content"
        source.close()
        assert server.connections == 1


@pytest.mark.parametrize("who", ["another authority", "another name", "the system's authorities"])
def test_a_server_that_cannot_prove_who_it_is_hears_nothing(own: Path, tmp_path: Path, who: str) -> None:
    other = Authority().write(tmp_path / "other", "example.org" if who == "another name" else "localhost")
    shown, trusted = (other, other) if who == "another name" else (other, own)
    chosen = settings_with(FetchSettings(), attempts=1) if who.startswith("the system") else settings(trusted)
    with BadServer([serve(b"content")]).running(server_context(shown)) as server:
        source = WebSource(server.url, chosen)
        with pytest.raises(FetchError, match="see ca_file") as caught:
            source.read("file", 10)
        source.close()
        assert caught.value.final
        assert server.exchanges == []


def test_a_server_may_ask_who_the_device_is(own: Path, tmp_path: Path) -> None:
    fleet = Authority().write(tmp_path / "fleet")
    with BadServer([serve(b"content")]).running(server_context(own, clients=own)) as server:
        source = WebSource(server.url, settings(own, certificate=True))
        assert source.read("file", 10).content == b"content"
        source.close()
    with BadServer([serve(b"content")]).running(server_context(own, clients=fleet)) as server:
        stranger = WebSource(server.url, settings(own, certificate=True))
        with pytest.raises(FetchError):
            stranger.read("file", 10)
        stranger.close()
        assert server.exchanges == []


def test_a_redirect_never_leaves_tls(own: Path) -> None:
    with BadServer([serve(b"plain")]).running() as plain:
        with BadServer([answer("302 Found", f"Location: {plain.url}")]).running(server_context(own)) as server:
            source = WebSource(server.url, settings(own))
            with pytest.raises(FetchError, match="not followed") as caught:
                source.read("file", 10)
            source.close()
        assert caught.value.final
        assert plain.exchanges == []


def test_a_redirect_may_lead_to_tls_with_the_same_authority(own: Path) -> None:
    plain = BadServer([])
    with BadServer([serve(b"content")]).running(server_context(own)) as secure, plain.running():
        plain.script.append(answer("302 Found", f"Location: {secure.url}x"))
        source = WebSource(plain.url, settings(own))
        assert source.read("file", 10).content == b"content"
        source.close()


def test_a_silent_server_is_hung_up_on_in_the_middle_of_tls_too(own: Path) -> None:
    chosen = settings_with(FetchSettings(ca_file=str(own / "ca.pem"), read_timeout_s=0.2), attempts=1)
    with BadServer([silence]).running(server_context(own)) as server:
        source = WebSource(server.url, chosen)
        with pytest.raises(FetchError, match=r"nothing came for 0\.2 s"):
            source.read("file", 10)
        source.close()


def test_a_server_without_tls_is_no_server(own: Path) -> None:
    with BadServer([serve(b"content")]).running() as server:
        source = WebSource(server.url.replace("http://127.0.0.1", "https://localhost"), settings(own))
        with pytest.raises(FetchError):
            source.read("file", 10)
        source.close()


@pytest.mark.parametrize("key", ["ca_file", "certificate_file"])
@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_certificates_that_cannot_be_read_are_named(tmp_path: Path, key: str, content: bytes | None) -> None:
    file = tmp_path / "file.pem"
    if content is not None:
        file.write_bytes(content)
    chosen = FetchSettings(ca_file=str(file)) if key == "ca_file" else FetchSettings(certificate_file=str(file))
    with pytest.raises(ConfigurationError, match=rf"fetch\.{key}: .*file\.pem cannot be used.*PEM"):
        WebSource("http://127.0.0.1:1/", chosen)


def test_a_proxy_that_is_none_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"fetch\.proxy"):
        WebSource("http://127.0.0.1:1/", FetchSettings(proxy="ftp://proxy:1"))
