"""Requests on the socket: read strictly, answered with the record or the reason."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from gateway.common.domain.errors import UnreachableError
from gateway.common.notify import Notifier
from gateway.device.agent.settings import InstallerSettings
from gateway.device.agent.update.software import InstallerRefusedError, ask
from gateway.device.domain.software_request import Confirm, GiveUp, InstallRequest, Request, parse_request, request_line
from gateway.device.installer.server import InstallerServer
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.software_device import Device, wheels

INSTALL = InstallRequest("software/edge-gateway/1.0/release", "a" * 64, ("b" * 64, "c" * 64))


@pytest.mark.parametrize("request_", [INSTALL, Confirm("1.0-aaaaaaaa"), GiveUp("why")])
def test_what_is_asked_is_read(request_: Request) -> None:
    assert parse_request(request_line(request_)) == request_


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"do": "reboot"}',
        b'{"do": "confirm", "environment": "../../x"}',
        b'{"do": "install", "target": 1, "release": "", "evidence": []}',
        json.dumps({"do": "install", "target": "t", "release": "a" * 64, "evidence": ["a" * 64] * 9}).encode(),
        json.dumps({"do": "install", "target": "t", "release": "/etc/shadow", "evidence": []}).encode(),
    ],
)
def test_anything_else_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_request(line)


def serve(tmp_path: Path, device: Device) -> tuple[InstallerSettings, threading.Thread]:
    """Start the installer's process, which runs until it is idle."""
    path = tmp_path / "socket"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(4)
    server = InstallerServer(listener, device.worker(), device.settings, Notifier(None))

    def run() -> None:
        with listener:
            server.run()

    thread = threading.Thread(target=run)
    thread.start()
    return InstallerSettings(socket=str(path), record=str(device.records.folder / "update.json")), thread


def test_an_agent_is_told_why_and_hears_how_it_goes(tmp_path: Path) -> None:
    repository = FleetRepository(tmp_path / "publisher")
    path = repository.add_software([wheels(tmp_path / "wheels", "1.0")])
    device = Device(tmp_path / "device", repository, idle_s=3.0, check_every_s=0.05)
    wanted = device.serve(path)
    settings, thread = serve(tmp_path, device)
    with pytest.raises(InstallerRefusedError, match="is signed"):
        ask(settings, InstallRequest(path, "0" * 64, wanted.evidence))
    with pytest.raises(InstallerRefusedError, match="no update is under way"):
        ask(settings, Confirm("1.0-aaaaaaaa"))
    assert ask(settings, wanted).version == "1.0"
    ask(settings, GiveUp("for this test"))
    thread.join()
    found = device.records.update()
    assert found
    assert found.ended
    with pytest.raises(UnreachableError, match=r"edge-software\.socket"):
        ask(settings, wanted)


@pytest.mark.parametrize("sent", [b"no request\n", b"x" * 20_000, b"cut"])
def test_nonsense_does_not_end_it(sent: bytes, tmp_path: Path) -> None:
    device = Device(tmp_path / "device", FleetRepository(tmp_path / "publisher"), idle_s=1.0, request_timeout_s=0.5)
    settings, thread = serve(tmp_path, device)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(settings.socket)
        peer.sendall(sent)
        peer.shutdown(socket.SHUT_WR)
        answer = peer.recv(65_536)
    assert not answer or "error" in json.loads(answer)
    with pytest.raises(InstallerRefusedError):
        ask(settings, Confirm("1.0-aaaaaaaa"))
    thread.join()
