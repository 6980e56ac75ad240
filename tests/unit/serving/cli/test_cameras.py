"""Verb `cameras`: the table, names that are close, and the first problem of a camera that does not work."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.cli import main
from gateway.common.domain.installation import Installation
from gateway.serving.cli import cameras
from gateway.serving.cli.cameras import CameraCheck
from gateway.serving.cli.checks import ExaminedDevice
from gateway.serving.domain.permissions import UserAccount
from gateway.serving.frontends.cameras.settings import CameraSettings

STATUS = {
    "name": "door", "url": "rtsp://10.0.0.7/h264", "model": "street", "state": "streaming", "since": 1.0, "reason": "",
    "codec": "h264", "width": 128, "height": 64, "source_per_s": 25.0, "asked_per_s": 5.0, "answered_per_s": 4.96,
    "dropped": {"OVERLOADED": 1200}, "latency_ms": {"p50": 12.04, "p99": None}, "rss_bytes": 50 << 20,
    "picture_problem": "",
}  # fmt: skip
LOST = {**STATUS, "name": "yard", "state": "lost", "reason": "Server returned 401 Unauthorized; check it (EG-704)"}


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a gateway with two cameras run."""
    monkeypatch.setattr(cameras, "_asked", lambda _: ("http://127.0.0.1:8000", [STATUS, LOST]))


def check(status: dict[str, Any] | None = None, url: str = "rtsp://10.0.0.7/h264", uid: int = 990) -> CameraCheck:
    account = UserAccount("edge-gateway", uid, frozenset({990}), "edge-gateway")
    device = ExaminedDevice(SimpleNamespace(state=None), None, account)
    return CameraCheck(CameraSettings("door", url, "street"), device, status)


@pytest.mark.usefixtures("running")
def test_the_table_has_states_drops_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cameras"]) == 1
    said = capsys.readouterr().out
    for text in ("128 × 64 h264", "1,200 overloaded", "12.0", "yard: Server returned 401", "streaming"):
        assert text in said
    assert main(["cameras", "list", "door"]) == 0


@pytest.mark.usefixtures("running")
def test_one_camera_as_json_and_a_name_that_is_close(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cameras", "list", "yard", "--json"]) == 1
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["cameras"]] == ["yard"]
    assert main(["cameras", "list", "doof"]) == 2
    assert 'did you mean "door"' in capsys.readouterr().err


def test_without_a_gateway_the_remedy_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "e.toml").write_text('[http]\nlisten = ["127.0.0.1:9"]\n')
    assert main(["cameras", "--config", str(tmp_path / "e.toml")]) == 3
    assert "no gateway answers" in capsys.readouterr().err
    assert main(["cameras", "check", "--config", str(tmp_path / "e.toml")]) == 2
    assert "no camera is configured" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prefix", "source", "parts", "command"),
    [
        ("/usr/lib/edge-gateway", "/usr/lib/x", "", "sudo apt-get install edge-gateway-camera"),
        ("/usr/lib/edge-gateway", "/x", "edge-gateway", "make image PARTS='edge-gateway edge-gateway-camera'"),
        ("/venv", "/venv/lib", "", "pip install 'edge-inference-gateway[camera]'"),
        ("/venv", str(Path(__file__).parents[4]), "", "[camera]'"),
    ],
)
def test_a_missing_package_has_the_command_of_the_installation(
    prefix: str, source: str, parts: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cameras, "HERE", Installation(prefix, "pip", Path(source), parts))
    monkeypatch.setattr(cameras.importlib.util, "find_spec", lambda _: None)
    found = check().result()
    assert (found.subject, found.ok, found.code) == ("camera door", False, "EG-702")
    assert command in found.remedy


@pytest.mark.parametrize(
    ("status", "ok", "code"),
    [
        (STATUS, True, ""),
        ({**STATUS, "reason": "one frame failed"}, None, ""),
        ({**STATUS, "picture_problem": "it is not kept: disk; make room (EG-209)"}, False, "EG-209"),
        ({**STATUS, "state": "no_model", "reason": "unknown"}, False, "EG-707"),
    ],
)
def test_what_a_gateway_reports_of_a_camera_that_streams(status: dict[str, Any], ok: bool | None, code: str) -> None:
    found = check(status).result()
    assert (found.ok, found.code) == (ok, code)


def test_a_camera_that_is_lost_has_its_reason_once() -> None:
    found = check({**STATUS, "state": "lost", "reason": LOST["reason"]}).frame()
    assert (found.detail, found.code) == ("lost: Server returned 401 Unauthorized", "EG-705")
    assert check({**STATUS, "state": "connecting", "reason": ""}).frame().ok is None


def test_root_decodes_nothing_where_the_service_has_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cameras.os, "geteuid", lambda: 0)
    found = check().frame()
    assert found.ok is None
    assert "sudo -u edge-gateway edge-gateway cameras check door" in found.detail


def test_a_device_that_the_service_may_not_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cameras.checks, "may_open", lambda *_: False)
    (tmp_path / "film.mp4").touch()
    found = check(url=str(tmp_path / "film.mp4")).address()
    assert found is not None
    assert (found.ok, found.code) == (False, "EG-404")
