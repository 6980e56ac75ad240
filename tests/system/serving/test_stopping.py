"""The end: SIGTERM under load, two daemons on one port or one state, kill -9 and what is left behind."""

import contextlib
import http.client
import re
import signal
import socket
import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.simulators.daemon import LIVE, QUIET, SHORT_TRIALS, Daemon, golden, running, starting
from tests.simulators.hammer import hammering

GONE = re.compile(r"UNAVAILABLE|CANCELLED|RemoteDisconnected|ConnectionRefused|ConnectionReset|BrokenPipe|HTTP 503")


def test_sigterm_under_load(tmp_path, state):
    """Callers are answered, or told that the server goes; nothing else, and the exit code is 0."""
    with running(tmp_path, state=state) as daemon, hammering(daemon, "meter-reader") as hammer:
        assert daemon.stop() == 0
        hammer.wait(lambda one: len(one.failures) == 2)
    assert all(GONE.search(failure) for failure in hammer.failures), hammer.failures
    assert daemon.lines()[-1]["event"] == "stopped"


def test_requests_under_way_are_answered(tmp_path, state):
    """Five batches of 1024 rows are on their way, then SIGTERM. On a busy machine it may overtake all of them."""
    assert any(refused_by_a_stop(tmp_path / str(attempt), state) < 5 for attempt in range(3))


def refused_by_a_stop(folder, state):
    """Return how many requests were not admitted any more; all others are answered."""
    rows = np.repeat(golden("activity", 8).rows, 128, axis=0)
    tensor = triton.InferInput("motion", list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows)
    answers, done = [], threading.Semaphore(0)

    def keep(result, error):
        answers.append(error or result.as_numpy("scores").shape)
        done.release()

    with running(folder, state=state) as daemon, triton.InferenceServerClient(daemon.grpc) as client:
        for _ in range(5):
            client.async_infer("activity", [tensor], keep)
        daemon.signal(signal.SIGTERM)
        for _ in range(5):
            assert done.acquire(timeout=30)
        assert daemon.ended() == 0
    refused = [answer for answer in answers if answer != (1024, 4)]
    assert all(isinstance(one, InferenceServerException) and "UNAVAILABLE" in one.status() for one in refused), [
        str(one) for one in refused
    ]
    return len(refused)


def test_a_half_sent_request_does_not_hold_the_end_up(tmp_path, state):
    config = f"{QUIET}{SHORT_TRIALS}[limits]\ndrain_s = 1.0\n"
    with running(tmp_path, state=state, config=config) as daemon:
        host, port = daemon.http.split(":")
        with socket.create_connection((host, int(port))) as half:
            half.sendall(b"POST /v2/models/activity/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            with triton.InferenceServerClient(daemon.grpc) as client:
                assert client.is_server_ready()
            assert daemon.stop(timeout_s=15) == 0


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_second_daemon_on_the_same_address(tmp_path, state, protocol, kind):
    other = {"grpc": "http", "http": "grpc"}[protocol]
    address = "127.0.0.1:0" if kind == "tcp" else f"unix:{tmp_path}/s"
    with running(tmp_path / "first", state=state, **{protocol: [address], other: ["off"]}) as first:
        taken = first.addresses(protocol)[0]
        with starting(tmp_path / "second", state=state, **{protocol: [taken], other: ["off"]}) as second:
            assert second.ended() == 3
            last = second.log.strip().splitlines()[-1]
        assert last.startswith("edge-gateway: ")
        assert taken in last
        assert "listens there" in last or "in use" in last
        assert ready(first, protocol)


def ready(daemon, protocol):
    if protocol == "grpc":
        with triton.InferenceServerClient(daemon.grpc) as client:
            return client.is_server_ready()
    address = daemon.http.removeprefix("unix:")
    with socket.socket(socket.AF_UNIX if address.startswith("/") else socket.AF_INET) as one:
        one.connect(address if address.startswith("/") else (address.split(":")[0], int(address.split(":")[1])))
        one.sendall(b"GET /v2/health/ready HTTP/1.0\r\n\r\n")
        return b"200" in one.recv(4096)


def test_two_daemons_share_one_state(tmp_path):
    """Both start at once on an empty state; both serve, and the file is whole."""
    with (
        starting(tmp_path / "one", state=tmp_path / "s") as one,
        starting(tmp_path / "two", state=tmp_path / "s") as two,
    ):
        for daemon in (one, two):
            daemon.wait("READY=1")
            assert ready(daemon, "grpc")
    assert integrity(tmp_path / "s") == "ok"


def integrity(folder):
    with contextlib.closing(sqlite3.connect(folder / "state.sqlite")) as database:
        return database.execute("PRAGMA integrity_check").fetchone()[0]


def test_killed_under_load_it_starts_again(tmp_path):
    daemon = Daemon(tmp_path / "gateway", state=tmp_path / "s", grpc=[f"unix:{tmp_path}/g", "127.0.0.1:0"])
    for _ in range(2):
        daemon.start()
        with hammering(daemon, "meter-reader"):
            daemon.kill()
    daemon.start()
    try:
        assert ready(daemon, "grpc")
        trials = [line for line in daemon.lines() if line["event"] == "trial finished"]
        assert trials == [], "verdicts are kept over a kill"
        assert daemon.stop() == 0
    finally:
        if daemon in LIVE:
            daemon.kill()
    assert integrity(tmp_path / "s") == "ok"


def test_a_stopped_daemon_leaves_no_socket_behind(tmp_path, state):
    sockets = [tmp_path / "g", tmp_path / "h"]
    with running(tmp_path / "gateway", state=state, grpc=[f"unix:{tmp_path}/g"], http=[f"unix:{tmp_path}/h"]):
        assert all(path.is_socket() for path in sockets)
    assert not any(path.exists() for path in sockets)


def test_no_child_outlives_a_killed_daemon(tmp_path):
    """A trial that never ends dies with its parent."""
    import psutil

    from tests.simulators import models

    endless = tmp_path / "models" / "endless"
    endless.mkdir(parents=True)
    models.write_onnx_endless(endless / "model.onnx")
    with starting(tmp_path / "gateway", models=endless.parent) as daemon:
        daemon.wait_logged("listening", protocol="grpc")
        process = psutil.Process(daemon.pid)
        while not (children := process.children(recursive=True)):
            Path("/proc/self/stat").read_bytes()  # nothing tells when a child begins
        daemon.kill()
        gone, alive = psutil.wait_procs(children, timeout=10)
    assert gone
    assert alive == []


def test_a_stranger_on_the_http_port_is_told_so(gateway):
    """A gRPC client at the HTTP port, and the other way round: an error, and both go on serving."""
    host, port = gateway.grpc.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("GET", "/v2/health/live")
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        connection.getresponse()
    connection.close()
    with triton.InferenceServerClient(gateway.http) as client, pytest.raises(InferenceServerException):
        client.is_server_live(client_timeout=5)
    assert ready(gateway, "grpc")
    assert ready(gateway, "http")
