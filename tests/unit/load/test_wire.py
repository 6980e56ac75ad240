"""Connections of simulated devices: their addresses, and the servers that they call."""

from __future__ import annotations

import asyncio

import pytest

from gateway.common.domain.errors import ConfigurationError
from tests.load.wire import Response, ServerAddress, device_context, find_server


def server(url: str, *, spread: bool = True) -> ServerAddress:
    return asyncio.run(find_server(url, 5.0, spread=spread))


def test_a_controller_here_sees_every_device_at_an_address_of_its_own() -> None:
    found = server("https://localhost:8443/fleet/")
    assert (found.host, found.address, found.port, found.base, found.tls) == (
        "localhost",
        "127.0.0.1",
        8443,
        "/fleet",
        True,
    )
    sources = [found.source(number) for number in range(100_000)]
    assert len(set(sources)) == len(sources)
    assert sources[0] == ("127.1.0.0", 0)
    assert server("https://127.0.0.1", spread=False).source(3) is None
    assert server("http://192.0.2.1").source(3) is None
    assert (server("http://192.0.2.1").port, server("https://192.0.2.1").port) == (80, 443)


@pytest.mark.parametrize("url", ["", "ftp://x", "https://", "controller"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="no http or https URL"):
        server(url)


def test_certificates_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot be used"):
        device_context("nonsense", b"")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        device_context("", b"nonsense")


def test_what_a_controller_asks_for_is_heard() -> None:
    assert Response(429, {"retry-after": "7"}, b"").retry_after_s == 7.0
    assert Response(429, {"retry-after": "soon"}, b"").retry_after_s == 0.0
    assert Response(429, {}, b"").retry_after_s == 0.0
