"""Users who may connect to the control socket and not command: told so, and never in the way of the agent."""

import subprocess
import sys
from contextlib import contextmanager

import pytest

from gateway.device.agent.control import DaemonClient
from gateway.device.agent.settings import ControlClientSettings
from tests.simulators.daemon import Daemon

HOLD = """
import contextlib, os, socket, sys
held = [socket.socket(socket.AF_UNIX) for _ in range(60)]
os.setgroups([])
os.setgid(65534)
os.seteuid(65534)
os.fchdir(3)
for one in held:
    one.connect("control.sock")
    with contextlib.suppress(BrokenPipeError):  # turned away already
        one.sendall(b"GET /v1/status HTTP/1.1\\r\\n")
print(len(held), flush=True)
sys.stdin.read()
"""
ASK = """
import os, socket
os.setgid(65534)
os.seteuid(65534)
os.fchdir(3)
one = socket.socket(socket.AF_UNIX)
one.connect("control.sock")
one.sendall(b"GET /v1/status HTTP/1.1\\r\\nhost: x\\r\\nconnection: close\\r\\n\\r\\n")
print(one.makefile("rb").read().decode())
"""
"""Both enter the socket's folder by a descriptor: the user `nobody` may not walk there."""


@pytest.fixture(scope="module")
def device(tmp_path_factory, state):
    folder = tmp_path_factory.mktemp("strangers")
    path = folder / "sockets" / "control.sock"
    path.parent.mkdir()
    (folder / "models").mkdir()
    config = f'[control]\nlisten = "unix:{path}"\nunix_socket_mode = 0o666\n'
    daemon = Daemon(folder, models=folder / "models", state=state, config=config).start()
    yield path
    assert daemon.stop() == 0


@contextmanager
def stranger(path, program):
    path.parent.chmod(0o711)
    folder = f"exec {sys.executable} -c '{program}' 3< {path.parent}"
    command, pipe = ["/bin/sh", "-c", folder], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.stdin.close()


def test_connections_of_others_leave_room_for_the_agent(device):
    control = DaemonClient(ControlClientSettings(str(device)))
    before = control.status()["pid"]
    for _ in range(2):
        with stranger(device, HOLD) as holding:
            assert holding.stdout.readline() == "60\n"
            assert control.status()["pid"] == before


def test_a_stranger_is_told(device):
    with stranger(device, ASK) as asking:
        said = asking.stdout.read()
    assert said.startswith("HTTP/1.1 403 ")
    assert "user nobody may not command this gateway" in said
