"""Changes as programs of other authors follow them, while controllers are killed, and through a proxy."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet.controller.database import devices, events
from fleet.controller.database.engine import Database
from fleet.controller.database.errors import AwayError
from fleet.controller.database.events import Event
from tests.simulators import databases
from tests.simulators.controller import free_port
from tests.simulators.following import following
from tests.simulators.postgres import own_cluster
from tests.simulators.served_fleet import ROOT, ServedFleet, answered, served_fleet, wait_until

pytestmark = pytest.mark.timeout(600)
TABLES = {"changes": {"read_every_s": 0.05, "reconnect_s": 0.2, "heartbeat_s": 1.0}}
PACKAGES = ROOT / ".venv" / "eventsource" / "node_modules"
KILLS = 3
PATIENCE_S = 120
NGINX = """
user root;
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass {url};
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
    }}
}}
"""
HAPROXY = """
defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
listen fleet
    bind 127.0.0.1:{port}
    server controller {server} ssl verify none
"""
PROXIES = {
    "nginx": (NGINX, ("-p", "{folder}", "-c", "{file}")),
    "haproxy": (HAPROXY, ("-db", "-f", "{file}")),
}


@contextmanager
def happening(database: Database) -> Iterator[list[int]]:
    """Record one event after the other; yield how many there are, so far."""
    with database.write() as connection:
        devices.enrol(connection, "camera", datetime.now(UTC))
    run, count, ended = uuid.uuid4().hex, [0], threading.Event()

    def record() -> None:
        while not ended.wait(0.01):
            now = datetime.now(UTC)
            with database.write() as connection:
                count[0] += events.record(
                    connection, [Event("camera", f"{run} {count[0]}", now, "x")], now, database.settings
                )

    thread = threading.Thread(target=record)
    thread.start()
    try:
        yield count
    finally:
        ended.set()
        thread.join()


class Follower:
    """A process that prints what it hears."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.heard = process, list[dict[str, Any]]()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.heard.append(json.loads(line))

    def numbers(self) -> list[int]:
        return [one["data"]["id"] for one in list(self.heard) if one["event"] == "device.event"]

    def count(self, event: str) -> int:
        return sum(one["event"] == event for one in list(self.heard))


@contextmanager
def node(fleet: ServedFleet, url: str) -> Iterator[Follower]:
    """Follow the changes with npm's EventSource."""
    assert PACKAGES.is_dir(), "npm's EventSource is not installed; make .venv/.npm"
    script = ROOT / "tests" / "system" / "peers" / "eventsource" / "follow.js"
    certificate = {"NODE_EXTRA_CA_CERTS": str(fleet.ca_file)}
    environment = {**os.environ, **certificate, "NODE_PATH": str(PACKAGES), "TOKEN": fleet.token}
    command = ["/usr/bin/env", "node", str(script), f"{url}/v1/changes"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Follower(process)
        finally:
            process.kill()


@contextmanager
def behind(proxy: str, folder: Path, url: str) -> Iterator[str]:
    """Start a proxy; yield its address. Nothing of it is set for streams."""
    port, file, (told, words) = free_port(), folder / f"{proxy}.conf", PROXIES[proxy]
    file.write_text(told.format(folder=folder, port=port, url=url, server=url.removeprefix("https://")))
    program = shutil.which(proxy, path="/usr/sbin:/usr/bin")
    assert program, f"{proxy} is one of the programs that make test installs"
    with subprocess.Popen([program, *(word.format(folder=folder, file=file) for word in words)]) as process:
        try:
            wait_until(lambda: _answers(port), PATIENCE_S)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}/health/live", trust_env=False)
    except httpx.TransportError:
        return False
    return True


@pytest.mark.parametrize("kind", [pytest.param("sqlite", marks=pytest.mark.long), "postgresql"])
def test_npms_eventsource_hears_each_change_once_while_the_controller_is_killed(tmp_path: Path, kind: str) -> None:
    with (
        databases.url(kind, tmp_path) as url,
        served_fleet(tmp_path / "fleet", database=url, tables=TABLES) as fleet,
    ):
        replica = fleet.replicas[0]
        replica.start()
        with node(fleet, replica.url) as follower:
            wait_until(lambda: follower.count("position"), PATIENCE_S)
            with happening(fleet.database) as count:
                for _ in range(KILLS):
                    heard = len(follower.numbers())
                    wait_until(lambda heard=heard: len(follower.numbers()) > heard + 5, PATIENCE_S)
                    replica.end(signal.SIGKILL)
                    replica.start()
            wait_until(lambda: len(follower.numbers()) >= count[0], PATIENCE_S)
            assert follower.numbers() == [*range(1, count[0] + 1)]
            assert (follower.count("gap"), follower.count("error") >= KILLS) == (0, True)


@pytest.mark.parametrize("proxy", PROXIES)
def test_through_a_proxy_as_it_is(tmp_path: Path, proxy: str) -> None:
    """It holds nothing back, and answers 502 or 503 while the controller is away."""
    with served_fleet(tmp_path / "fleet", tables=TABLES) as fleet:
        replica = fleet.replicas[0]
        replica.start()
        with behind(proxy, tmp_path, replica.url) as url, node(fleet, url) as follower:
            wait_until(lambda: follower.count("position"), PATIENCE_S)
            with happening(fleet.database) as count:
                wait_until(lambda: len(follower.numbers()) > 5, PATIENCE_S)
                replica.end(signal.SIGKILL)
                wait_until(lambda: any(one.get("closed") for one in list(follower.heard)), PATIENCE_S)
                replica.start()
                heard = len(follower.numbers())
                wait_until(lambda: len(follower.numbers()) > heard + 5, PATIENCE_S)
            wait_until(lambda: len(follower.numbers()) >= count[0], PATIENCE_S)
            assert follower.numbers() == [*range(1, count[0] + 1)]


def test_curl_prints_messages_as_they_come(tmp_path: Path) -> None:
    with served_fleet(tmp_path / "fleet", tables=TABLES) as fleet:
        fleet.replicas[0].start()
        headers = ["-H", f"Authorization: Bearer {fleet.token}"]
        command = ["curl", "-sSN", "--cacert", str(fleet.ca_file), *headers, f"{fleet.replicas[0].url}/v1/changes"]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as curl,
            happening(fleet.database),
        ):
            assert curl.stdout
            assert any(line == "event: device.event\n" for line in curl.stdout)
            curl.kill()


def test_another_replica_goes_on_where_the_first_was(tmp_path: Path) -> None:
    """Each finds what the other one, or any program, wrote."""
    with (
        databases.url("postgresql", tmp_path) as url,
        served_fleet(tmp_path / "fleet", database=url, replicas=2, tables=TABLES) as fleet,
    ):
        for replica in fleet.replicas:
            replica.start()
        found, last_id = list[int](), "0"
        with happening(fleet.database) as count:
            for turn in range(6):
                with following(fleet.operator(turn % 2), last_id=last_id) as stream:
                    found += [stream.next("device.event").data["id"] for _ in range(10)]
                    last_id = stream.last_id
        assert found == [*range(1, 61)]
        assert count[0] >= 60


def test_a_stream_lasts_while_its_database_is_away(tmp_path: Path) -> None:
    """Nothing comes meanwhile, and nothing is missed."""
    with (
        own_cluster() as cluster,
        served_fleet(tmp_path / "fleet", database=cluster.url("postgres"), tables=TABLES) as fleet,
    ):
        fleet.replicas[0].start()
        with following(fleet.operator()) as stream:
            stream.next()
            with happening(fleet.database) as count:
                found = [stream.next("device.event").data]
            found += [stream.next("device.event").data for _ in range(count[0] - 1)]
            cluster.halt()
            assert any(line.startswith(":") for line in stream.lines)
            cluster.start()
            with pytest.raises(AwayError), fleet.database.read() as connection:  # as the first statement after that is
                connection.exec_driver_sql("SELECT 1")
            with happening(fleet.database):
                found += [stream.next("device.event").data for _ in range(5)]
        known = answered(fleet.operator().get("/v1/events?limit=1000"))["items"]
    assert found == known[::-1][: len(found)]
