"""Shared connections: kept for a while, opened again where a server has closed them.

Each request has the timeout of its own caller.
"""

from __future__ import annotations

import ssl
import threading
from contextlib import closing

import pytest

from gateway.common.transfer import connection
from gateway.common.transfer.connection import ConnectionPool
from gateway.common.transfer.settings import FetchSettings
from gateway.common.transfer.source import FetchError
from gateway.common.transfer.web import WebSource
from gateway.device.agent.fetch.controller import ControllerClient
from tests.simulators.bad_server import BadServer, Behaviour, Exchange, answer, serve, silence, trickle
from tests.simulators.constants import settings_with

QUICK = settings_with(FetchSettings(connect_timeout_s=2, read_timeout_s=5, document_deadline_s=5), attempts=1)
OK = answer("204 No Content")


def hang_up(_exchange: Exchange) -> None:
    """Close the connection without an answer."""


def tell(server: BadServer, connections: ConnectionPool, deadline_s: float = 5.0) -> None:
    ControllerClient(server.url, connections, deadline_s).send("POST", "/v1/told", b"x", "text/plain")


def test_who_asks_the_same_server_shares_a_connection() -> None:
    with BadServer([serve(b"1"), OK, serve(b"2")]).running() as server, closing(ConnectionPool(QUICK)) as connections:
        source = WebSource(server.url, connections=connections)
        other = WebSource(f"{server.url}below", connections=connections)
        assert source.read("file", 9).content == b"1"
        tell(server, connections)
        assert other.read("file", 9).content == b"2"
        assert server.connections == 1


@pytest.mark.parametrize(("keep_alive_s", "made"), [(5.0, 1), (0.0, 2)])
def test_one_that_was_idle_for_too_long_is_not_used_again(keep_alive_s: float, made: int) -> None:
    settings = settings_with(QUICK, keep_alive_s=keep_alive_s)
    with BadServer([OK]).running() as server, closing(ConnectionPool(settings)) as connections:
        tell(server, connections)
        tell(server, connections)
        assert server.connections == made


def test_a_kept_one_that_the_server_closes_as_it_is_used_is_made_anew() -> None:
    with BadServer([OK, hang_up, OK]).running() as server, closing(ConnectionPool(QUICK)) as connections:
        tell(server, connections)
        tell(server, connections)
        assert (server.connections, len(server.exchanges)) == (2, 3)


def test_a_new_one_that_the_server_closes_is_an_error_and_not_tried_again() -> None:
    with BadServer([hang_up, OK]).running() as server, closing(ConnectionPool(QUICK)) as connections:
        with pytest.raises(FetchError, match="does not answer"):
            tell(server, connections)
        assert len(server.exchanges) == 1


def test_a_server_that_closes_every_time_is_asked_twice_at_most() -> None:
    with BadServer([OK, hang_up]).running() as server, closing(ConnectionPool(QUICK)) as connections:
        tell(server, connections)
        with pytest.raises(FetchError, match="does not answer"):
            tell(server, connections)
        assert len(server.exchanges) == 3


@pytest.mark.parametrize("slow", [silence, trickle(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", 0.05)])
def test_the_patience_is_that_of_who_asks(slow: Behaviour) -> None:
    with BadServer([serve(b"1"), slow]).running() as server, closing(ConnectionPool(QUICK)) as connections:
        WebSource(server.url, connections=connections).read("file", 9)
        with pytest.raises(FetchError, match=r"not finished within 0\.2 s"):
            tell(server, connections, deadline_s=0.2)
        assert server.connections == 1


def test_after_a_renewal_nothing_is_asked_on_what_was_open_before() -> None:
    with BadServer([OK]).running() as server, closing(ConnectionPool(QUICK)) as connections:
        tell(server, connections)
        connections.renew()
        tell(server, connections)
        assert server.connections == 2


def test_who_opens_a_connection_while_the_certificate_is_renewed_keeps_no_older_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does it go without any."""
    contexts = [ssl.create_default_context() for _ in range(2)]
    with closing(ConnectionPool(QUICK)) as connections:
        renewal = threading.Thread(target=connections.renew)

        def read(_settings: FetchSettings) -> ssl.SSLContext:
            if len(contexts) == 2:
                renewal.start()
                renewal.join(0.5)
            return contexts.pop(0)

        monkeypatch.setattr(connection, "tls_context", read)
        older, newer = contexts
        assert connections._tls_pool("a.example", 443).conn_kw["ssl_context"] is older
        renewal.join()
        assert connections._tls_pool("a.example", 443).conn_kw["ssl_context"] is newer
