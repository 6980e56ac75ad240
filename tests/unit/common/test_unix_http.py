"""HTTP over a UNIX socket: the deadline of an exchange, on a connection that is kept."""

import socket
import threading
from contextlib import suppress

import pytest

from gateway.common import unix_http
from gateway.common.unix_http import UnixConnection

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture
def path(tmp_path):
    """Lend the path of a server that answers each request of one connection."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "http.sock"))
    listener.listen()

    def serve():
        connection, _ = listener.accept()
        with connection, suppress(ConnectionError):
            while connection.recv(65536):
                connection.sendall(ANSWER)

    thread = threading.Thread(target=serve)
    thread.start()
    yield str(tmp_path / "http.sock")
    thread.join()
    listener.close()


def test_each_exchange_of_a_connection_that_is_kept_has_its_own_deadline(path, monkeypatch):
    now_s = 1000.0
    monkeypatch.setattr(unix_http.time, "monotonic", lambda: now_s)
    connection = UnixConnection(path, 20.0, 30.0)
    try:
        for _ in range(3):
            connection.request("GET", "/")
            assert connection.getresponse().read() == b"ok"
            now_s += 31.0
        connection.request("GET", "/")
        now_s += 31.0
        with pytest.raises(TimeoutError):
            connection.getresponse()
    finally:
        connection.close()
