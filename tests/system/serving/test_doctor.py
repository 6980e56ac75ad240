"""`doctor` finds what is broken around a real gateway, ends in time, and reports without secrets."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.serving.cli import checks, running
from gateway.serving.cli.checks import CheckResult, ExaminedDevice, may_open
from gateway.serving.cli.service_user import UnitAccount
from gateway.serving.config import parse_config
from gateway.serving.domain.permissions import UserAccount
from tests.simulators import daemon as daemons
from tests.simulators.broker import Mosquitto
from tests.simulators.daemon import COMMAND, QUIET, ROOT, SHORT_TRIALS, copy_model

RUN = [*COMMAND, "doctor"]


def device(text: str, **given: Any) -> ExaminedDevice:
    absent = dict.fromkeys(("config", "models", "state", "url", "ca", "cert", "key", "token_file"))
    return ExaminedDevice(argparse.Namespace(offline=False, **absent), parse_config(text, ""), **given)


def findings(found: Iterator[CheckResult]) -> list[CheckResult]:
    return [one for one in found if one.ok is False]


def test_a_running_gateway_is_recognised_and_its_models_are_judged(tmp_path: Path) -> None:
    copy_model("activity", tmp_path / "models")
    (copy_model("meter-reader", tmp_path / "models") / "golden.npz").write_bytes(b"other")
    with daemons.running(tmp_path / "gateway", models=tmp_path / "models") as daemon:
        text = f"[models]\ndir = '{tmp_path}/models'\n"
        text += f"[http]\nlisten = ['{daemon.http}']\n[grpc]\nlisten = ['{daemon.grpc}']\n"
        here = device(text)
        ports, listeners = list(checks.check_ports(here)), list(checks.check_listeners_answer(here))
        models = list(checks.check_models(here))
    assert [(one.subject, one.ok) for one in ports] == [("grpc", True), ("http", True)]
    assert [(one.subject, one.ok) for one in listeners] == [("gateway", True)]
    broken = [one for one in models if one.ok is False]
    assert {one.subject for one in broken} == {"model meter-reader version 1"}
    assert "EG-303" in broken[0].detail


def test_a_port_of_another_process_is_named_with_the_process(tmp_path: Path) -> None:
    code = "import http.server as h; s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler); "
    code += "print(s.server_port, flush=True); s.serve_forever()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as other:
        try:
            here = device(f"[http]\nlisten = ['127.0.0.1:{int(other.stdout.readline())}']\n")  # type: ignore[union-attr]
            (port,), (listener,) = findings(checks.check_ports(here)), findings(checks.check_listeners_answer(here))
        finally:
            other.kill()
    assert f"belongs to process {other.pid} (python" in port.detail
    assert port.code == "EG-201"
    assert "is this address a gateway's?" in listener.detail
    assert listener.code == "EG-204"


def test_a_listener_that_never_answers_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LOCAL_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        here = device(f"[http]\nlisten = ['127.0.0.1:{silent.getsockname()[1]}']\n")
        (found,) = findings(checks.check_listeners_answer(here))
    assert "did not answer in time" in found.detail


def test_brokers_are_examined_up_to_the_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CONNECT_S", 0.5)
    password = tmp_path / "password"
    password.write_text("horse\n")
    made = ["mosquitto_passwd", "-b", "-c", str(tmp_path / "users"), "gateway", "horse"]
    subprocess.run(made, check=True)
    (tmp_path / "users").chmod(0o644)
    (tmp_path / "broker").mkdir()
    broker = Mosquitto(tmp_path / "broker", f"password_file {tmp_path}/users", anonymous=False)
    text = f"[mqtt]\nurl = '{broker.url}'\nusername = 'gateway'\npassword_file = '{password}'\n"

    asyncio.run(broker.start())
    try:
        accepted = list(checks.check_brokers(device(text)))
        (nameless,) = findings(checks.check_brokers(device(f"[mqtt]\nurl = '{broker.url}'\n")))
        password.write_text("donkey\n")
        (refused,) = findings(checks.check_brokers(device(text)))
        (clear,) = findings(checks.check_brokers(device(f"[mqtt]\nurl = '{broker.url.replace('mqtt', 'mqtts')}'\n")))
    finally:
        asyncio.run(broker.kill())
    assert [one.ok for one in accepted] == [True]
    assert {one.code for one in (nameless, refused, clear)} == {"EG-603"}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        text = f"[mqtt]\nurl = 'mqtt://127.0.0.1:{silent.getsockname()[1]}'\n"
        (hung,) = findings(checks.check_brokers(device(text)))
    assert hung.code == "EG-603"


def test_nodes_are_judged_for_the_user_of_the_service() -> None:
    nobody = UserAccount("nobody", 65_534, frozenset({65_534}), "nogroup")
    here = device("", account=nobody, unit=UnitAccount("nobody"))
    assert may_open(here, "/dev/null") is True
    assert may_open(here, "/nowhere") is None
    assert may_open(device(""), "/dev/null") is None


def test_a_broken_configuration_is_the_first_finding_and_the_rest_is_examined(tmp_path: Path) -> None:
    (tmp_path / "edge.toml").write_text("[limits]\nqueues = 3\n")
    done = subprocess.run(
        [*RUN, "--json", "--config", "edge.toml"], cwd=tmp_path, capture_output=True, check=False, env=environ(tmp_path)
    )
    document = json.loads(done.stdout)
    first = document["findings"][0]
    assert (done.returncode, first["code"], first["subject"]) == (1, "EG-101", "configuration")
    examined = {one["rung"]: one["ok"] for one in document["checks"]}
    assert examined["accelerators"] is not None
    assert (examined["memory"], examined["models"]) == (None, None)


def test_a_file_that_is_absent_is_a_finding_with_a_remedy(tmp_path: Path) -> None:
    command = [*RUN, "--json", "--config", "/absent.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, env=environ(tmp_path))
    first = json.loads(done.stdout)["findings"][0]
    assert first["remedy"] == "put a file there, or name another one (EG-110)"


def test_a_check_that_hangs_does_not_hang_doctor(tmp_path: Path) -> None:
    code = (
        "import sys, threading\nfrom gateway.serving.cli import doctor\nfrom gateway.cli import main\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def hang(device):\n    ThreadPoolExecutor().submit(threading.Event().wait).result()\n    yield\n"
        "doctor.LADDER = (('disk', 0.2, hang),)\n"
        "sys.exit(main(['doctor']))"
    )
    done = subprocess.run(
        [COMMAND[0], "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environ(tmp_path),
    )
    assert done.returncode == 1, done.stderr
    assert "✗ disk: no answer within 0.2 s" in done.stdout


def environ(folder: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        "PYTHONPATH": str(ROOT),
    }


SETTINGS = """
[gateway]
id = "hall-3"
[models]
dir = "{models}"
[http]
listen = ["{http}"]
[grpc]
listen = ["{grpc}"]
[auth]
tokens_file = "{folder}/tokens"
[mqtt]
url = "mqtt://{host}.invalid:1883"
username = "{user}"
password_file = "{folder}/password"
[[mqtt.broker]]
name = "plant"
url = "mqtts://plant.invalid"
username_file = "{folder}/user"
password_file = "{folder}/password2"
[[mqtt.route]]
name = "r"
topics = ["a/b"]
model = "activity"
hop_rows = 10
[mqtt.route.result]
payload = "json"
template = '{{"api_key": "{inline}"}}'
"""


def test_a_bundle_has_no_secret_of_any_setting(tmp_path: Path) -> None:
    names = ("token", "user", "password", "user2", "password2", "host", "inline", "manifest")
    planted = {name: f"{name}{secrets.token_hex(6)}" for name in names}
    files = {
        "tokens": f"camera {planted['token']} scopes=infer,metrics\n",
        "password": f"{planted['password']}\n",
        "user": f"{planted['user2']}\n",
        "password2": f"{planted['password2']}\n",
        "token": f"{planted['token']}\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    model = copy_model("activity", tmp_path / "models") / "manifest.toml"
    model.write_text(
        f"# token = {planted['manifest']}\n# seen at mqtt://x:{planted['password']}@{planted['host']}.invalid\n"
        + model.read_text()
    )
    with daemons.running(tmp_path / "gateway", models=tmp_path / "models", config=QUIET + SHORT_TRIALS) as daemon:
        config = tmp_path / "edge.toml"
        config.write_text(
            SETTINGS.format(models=tmp_path / "models", http=daemon.http, grpc=daemon.grpc, folder=tmp_path, **planted)
        )
        command = [*RUN, "--config", str(config), "--bundle", "report.tar.gz", "--token-file", str(tmp_path / "token")]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environ(tmp_path))
        again = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environ(tmp_path)
        )
    assert "report.tar.gz: " in done.stdout, done.stderr
    assert (again.returncode, "takes a new file" in again.stderr) == (2, True)
    assert (tmp_path / "report.tar.gz").stat().st_mode & 0o777 == 0o600
    with tarfile.open(tmp_path / "report.tar.gz") as archive:
        held = {one.name: archive.extractfile(one).read().decode() for one in archive}
    expected = (
        "doctor.json",
        "probe.json",
        "configuration.json",
        "versions.json",
        "metrics.txt",
        "models/activity/1/manifest.toml",
    )
    assert [name for name in expected if f"edge-gateway/{name}" not in held] == []
    assert "edge_gateway_" in held["edge-gateway/metrics.txt"]
    assert json.loads(held["edge-gateway/configuration.json"])["gateway"]["id"] == "hall-3"
    assert "plant.invalid" not in held["edge-gateway/configuration.json"]
    assert [(name, file) for name, secret in planted.items() for file, text in held.items() if secret in text] == []
