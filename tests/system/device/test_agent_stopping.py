"""`edge-agent run` is told to stop while it waits for a peer that is not there: it ends at once, and nothing is lost.

Its unit allows 20 s; every wait here would last longer.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.device.agent.config import SECTIONS
from gateway.device.agent.state.identity import bootstrap, read_identity
from tests.simulators import constants
from tests.simulators.bad_server import BadServer, silence, trickle
from tests.simulators.daemon import ROOT, WAIT_S
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.fleet_server import FleetServer

STOP_S = 15.0
"""Ten times what it takes, and less than the unit allows."""
DEVICE, SLOT = "door-1", "meter"
CONFIG = """
[control]
socket = "{folder}/control.sock"
timeout_s = 600.0
[fetch]
attempts = 1
connect_timeout_s = 600.0
read_timeout_s = 600.0
document_deadline_s = 600.0
minimum_rate_window_s = 600.0
[wake]
connect_timeout_s = 600.0
{wake}
"""
NOBODY = "http://127.0.0.1:1/"
AGENT = ("gateway.device.agent",)


@dataclass
class Wait:
    """Wait of the agent: for which peer, by what command it is run, and how it is known that it waits."""

    waits: Callable[[], bool]
    repository: str = NOBODY
    broker: str = ""
    module: tuple[str, ...] = AGENT
    codes: set[int] = field(default_factory=lambda: {0})


Waiting = Callable[[ExitStack, Path, FleetRepository], Wait]


def black_hole(stack: ExitStack) -> tuple[int, Callable[[], bool]]:
    """Return a port that answers no SYN, because its backlog is full, and whether another client waits for it."""
    port = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0)).getsockname()[1]
    mine = set[int]()
    for _ in range(4):
        peer = stack.enter_context(socket.socket())
        peer.setblocking(False)
        peer.connect_ex(("127.0.0.1", port))
        mine.add(peer.getsockname()[1])
    return port, lambda: not syn_sent(port) <= mine


def syn_sent(port: int) -> set[int]:
    """Return the ports of the sockets that wait for this port to answer, as proc(5) has it.

    Some may be missing: the kernel writes the list in pieces, and others open and close sockets meanwhile.
    """
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1][-4:], 16) for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "02"}


def unreachable(stack: ExitStack, *_: object) -> Wait:
    port, waits = black_hole(stack)
    return Wait(waits, f"http://127.0.0.1:{port}/")


def silent(stack: ExitStack, *_: object) -> Wait:
    server = stack.enter_context(BadServer([silence]).running())
    return Wait(lambda: bool(server.exchanges), server.url)


def slow_body(stack: ExitStack, *_: object) -> Wait:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n"
    server = stack.enter_context(BadServer([trickle(head, 0.05)]).running())
    return Wait(lambda: server.body_bytes > 2, server.url)


def nameless(_stack: ExitStack, folder: Path, *_: object) -> Wait:
    module = ("tests.simulators.slow_names", str(folder / "asked"))
    return Wait((folder / "asked").exists, "https://fleet.example/", module=module)


def silent_daemon(stack: ExitStack, folder: Path, repository: FleetRepository) -> Wait:
    """Return a wait for a daemon that accepts, and never answers what the agent asks of an assigned release."""
    repository.assign(DEVICE, {SLOT: repository.add_release(SLOT, "1")})
    server = stack.enter_context(FleetServer(repository).running())
    daemon = stack.enter_context(socket.socket(socket.AF_UNIX))
    daemon.bind(str(folder / "control.sock"))
    daemon.listen()
    daemon.setblocking(False)
    return Wait(lambda: has_peer(daemon, stack), server.url)


def has_peer(listener: socket.socket, stack: ExitStack) -> bool:
    try:
        stack.enter_context(listener.accept()[0])
    except BlockingIOError:
        return False
    return True


def unreachable_broker(stack: ExitStack, *_: object) -> Wait:
    port, waits = black_hole(stack)
    return Wait(waits, broker=f"mqtt://127.0.0.1:{port}", codes={0, -signal.SIGTERM})


def silent_broker(stack: ExitStack, *_: object) -> Wait:
    broker = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    broker.setblocking(False)
    return Wait(lambda: has_peer(broker, stack), broker=f"mqtt://127.0.0.1:{broker.getsockname()[1]}")


def nameless_broker(_stack: ExitStack, folder: Path, *_: object) -> Wait:
    module = ("tests.simulators.slow_names", str(folder / "asked"))
    (folder / "empty").mkdir()
    where = f"file://{folder}/empty"
    return Wait((folder / "asked").exists, where, "mqtt://broker.example", module, {0, -signal.SIGTERM})


def store_of(folder: Path, repository: FleetRepository, url: str) -> Path:
    """Return the store of a device that was bootstrapped."""
    source = folder / "bootstrap"
    source.mkdir()
    (source / "root.json").write_bytes(repository.root_bytes(1))
    urls = {"repository": url, "assignment": f"{url}assignments/{DEVICE}.json"}
    (source / "device.json").write_text(json.dumps({"schema": 1, "device": DEVICE, **urls}))
    bootstrap(read_identity(source), folder / "store")
    return folder / "store"


@pytest.mark.parametrize(
    "waiting",
    [unreachable, silent, slow_body, nameless, silent_daemon, unreachable_broker, silent_broker, nameless_broker],
)
def test_it_ends_at_once(tmp_path: Path, waiting: Waiting) -> None:
    with ExitStack() as stack:
        repository = FleetRepository(tmp_path / "fleet")
        wait = waiting(stack, tmp_path, repository)
        config, store = tmp_path / "edge-agent.toml", store_of(tmp_path, repository, wait.repository)
        broker = f'url = "{wait.broker}"' if wait.broker else ""
        settings, given = constants.take(CONFIG.format(folder=tmp_path, wake=broker), SECTIONS)
        config.write_text(settings)
        common = ["--config", str(config), "--state", str(store)]
        program = constants.command((sys.executable, "-m", wait.module[0]), given)
        command = [*program, *wait.module[1:], "run", *common]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True) as agent:
            try:
                until(wait.waits, agent)
                agent.send_signal(signal.SIGTERM)
                said = agent.communicate(timeout=STOP_S)[1]
            finally:
                with suppress(ProcessLookupError):  # all of it has ended, as it should
                    os.killpg(agent.pid, signal.SIGKILL)
        assert agent.returncode in wait.codes, said
        assert "Traceback" not in said, said
    told = subprocess.run(
        [sys.executable, "-m", *AGENT, "status", "--json", *common], cwd=ROOT, capture_output=True, check=True
    )
    assert json.loads(told.stdout)["device"] == DEVICE


def until(waits: Callable[[], bool], agent: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not waits():
        assert agent.poll() is None, agent.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
