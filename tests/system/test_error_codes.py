"""Each error provoked here ends with its code, and `doctor` explains it."""

from __future__ import annotations

import argparse
import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.cli import PROGRAM
from gateway.common.domain.access import Address, Security, read_tokens
from gateway.common.domain.assignment import Assignment
from gateway.common.domain.inventory import RuntimeListing
from gateway.common.domain.manifest import Artifact, ModelManifest, TensorSpec, Variant
from gateway.common.domain.rights import Rights, Scope, check_scope
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.verdict import SessionBudget
from gateway.common.trust import assignment as trust
from gateway.common.trust.settings import TrustSettings
from gateway.common.wire.listening import listen
from gateway.device.agent.config import check_bootstrapped
from gateway.device.agent.control import DaemonClient
from gateway.device.agent.settings import ControlClientSettings
from gateway.device.domain.software_request import PACKAGES_OWN
from gateway.serving import assembly
from gateway.serving.assembly import MachineSurvey
from gateway.serving.cli import checks
from gateway.serving.cli.cameras import CameraCheck
from gateway.serving.cli.checks import CheckResult, ExaminedDevice, agent_checks, bounded, certificate_check
from gateway.serving.cli.error_codes import entries
from gateway.serving.cli.explain import find_release
from gateway.serving.cli.http_client import GatewayClient, Keys, read_url
from gateway.serving.cli.mqtt_choice import select_route
from gateway.serving.cli.service_user import account_of
from gateway.serving.config import check_listeners, exposed_secrets, load_config, parse_config, read_security
from gateway.serving.domain.permissions import READ, PathNode, UserAccount, denial
from gateway.serving.frontends.cameras.settings import CameraSettings
from gateway.serving.frontends.http.body import Most
from gateway.serving.frontends.http.browsers import check_host
from gateway.serving.frontends.mqtt.inbound.fitting import check_outputs
from gateway.serving.frontends.mqtt.session.identity import MqttIdentity, connect_options
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings, broker_of
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.not_offered import refuse_shared_memory
from gateway.serving.hardware.families import NEEDS
from gateway.serving.hardware.library import LibraryAnswer
from gateway.serving.hardware.library_diagnosis import climb
from gateway.serving.hardware.probe import probe
from gateway.serving.runtimes import installed
from gateway.serving.runtimes.binding import Port, plan_inputs
from gateway.serving.runtimes.onnx_providers import refuse_fallback
from gateway.serving.store.library import scan
from gateway.serving.store.state import StateStore
from tests.devices.build import build
from tests.devices.reports import REPORTS
from tests.simulators.authority import Authority
from tests.simulators.daemon import copy_model

NOW = datetime.now(timezone.utc)
CLOSED = "127.0.0.1:9"
"""Port of discard(8): nothing listens there."""
STATUS: Mapping[str, Any] = {"state": "in-step", "why": "", "last_poll": None, "controller": None}


def device(text: str = "", **service: str) -> ExaminedDevice:
    return ExaminedDevice(options(), parse_config(text, ""), service=service)


def options() -> argparse.Namespace:
    absent = dict.fromkeys(("config", "models", "state", "url", "ca", "cert", "key", "token_file"))
    return argparse.Namespace(offline=False, **absent)


def said(found: Iterator[CheckResult]) -> str:
    """Return the first finding as text."""
    return next(f"{one.detail}; {one.remedy}" for one in found if one.ok is False)


def configuration(text: str) -> Callable[[Path], object]:
    return lambda _: parse_config(text, "edge.toml")


def listeners(text: str) -> Callable[[Path], object]:
    return lambda _: check_listeners(parse_config(text, ""), Security())


def unit(monkeypatch: pytest.MonkeyPatch, **properties: str) -> str:
    """Return what is said of a unit in this state."""
    monkeypatch.setattr(checks, "unit_properties", lambda _: properties)
    return said(checks.check_unit(device()))


def secured(folder: Path, name: str) -> object:
    (folder / name).write_text("no PEM")
    return read_security(parse_config(f"[tls]\ncert = '{folder / name}'\nkey = '{folder / name}'\n", ""))


def other_key(folder: Path) -> object:
    authority = Authority()
    (folder / "cert.pem").write_bytes(authority.issue("here")[0])
    (folder / "key.pem").write_bytes(authority.issue("other")[1])
    return read_security(parse_config(f"[tls]\ncert = '{folder}/cert.pem'\nkey = '{folder}/key.pem'\n", ""))


def busy_port(_: Path) -> object:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return listen(Address("127.0.0.1", taken.getsockname()[1]), "http", backlog=1, unix_mode=0o600)


def asked(folder: Path) -> object:
    with GatewayClient(read_url(CLOSED), Keys(), 1.0) as client:
        return client.exchange("GET", str(folder))


def exposed(folder: Path) -> str:
    (folder / "tokens").write_text("a b\n")
    (folder / "tokens").chmod(0o644)
    return str(exposed_secrets(parse_config(f"[auth]\ntokens_file = '{folder}/tokens'\n", "")))


def model(change: Callable[[Path], object]) -> Callable[[Path], str]:
    def problem(folder: Path) -> str:
        change(copy_model("activity", folder))
        return next(release.problem for release in scan(folder, parse_config("", "").library))

    return problem


def bare(*names: str) -> Callable[[Path], str]:
    def problem(folder: Path) -> str:
        (folder / "m" / "1").mkdir(parents=True)
        for name in names:
            (folder / "m" / "1" / name).write_bytes(b"no model")
        return next(release.problem for release in scan(folder, parse_config("", "").library))

    return problem


def bound(*ports: Port) -> Callable[[Path], object]:
    x = TensorSpec("x", Datatype.FP32, (-1, 4))
    variant = Variant("v", "onnx", "fp32", (Artifact("model", "0" * 64, 1),))
    return lambda _: plan_inputs(ModelManifest("m", "1", (x,), (x,), (variant,)), variant, ports)


def rungs(thread: str) -> Callable[[Path], str]:
    """Return remedies in a tree after a public report."""

    def remedies(folder: Path) -> str:
        found = probe(build(folder / "root", REPORTS[thread].root))
        return " ".join(f"{rung.remedy}" for one in found.accelerators for rung in one.rungs if rung.ok is False)

    return remedies


def climbed(loads: bool, listed: tuple[str, ...]) -> Callable[[Path], str]:
    def remedies(folder: Path) -> str:
        inventory = probe(build(folder / "root", REPORTS["jsapede/frigate-proxmox-docker-openvino#2"].root))
        names = {name for needs in NEEDS.values() for group in needs.libraries for name in group}
        answers = {name: LibraryAnswer(loads, "" if loads else f"{name} is absent") for name in names}
        listing = {"openvino": RuntimeListing(True, "2026.1", listed, "")}
        found = climb(inventory, answers, listing)
        return " ".join(rung.remedy for one in found.accelerators for rung in one.rungs if rung.ok is False)

    return remedies


def absent_runtime(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(installed, "installed_package", lambda _: None)
    return installed.installed_version("onnx").remedy


def fallen_back(_: Path) -> object:
    session = SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    return refuse_fallback(session, SessionBudget(accelerator="nvidia-gpu"), "no library")


def tokens(header: str | None) -> Callable[[Path], object]:
    held = read_tokens("camera secret\n", "tokens")
    return lambda _: held.caller(header)


def expired_tokens(_: Path) -> object:
    return read_tokens("camera secret expires=2020-01-01\n", "tokens").at(time.time()).caller("Bearer secret")


def broker(text: str) -> Callable[[Path], str]:
    return lambda _: said(checks.check_brokers(device(text)))


@contextmanager
def refusing_broker() -> Iterator[int]:
    """Yield the port of a peer that ends each connection after its first bytes."""
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n"
        "while True:\n c, _ = s.accept(); c.recv(9); c.close()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as peer:
        try:
            yield int(peer.stdout.readline()) if peer.stdout else 0
        finally:
            peer.kill()


def refused_login(_: Path) -> str:
    with refusing_broker() as port:
        return said(checks.check_brokers(device(f"[mqtt]\nurl = 'mqtt://127.0.0.1:{port}'\n")))


def certificate(lives: timedelta) -> Callable[[Path], str]:
    def check(folder: Path) -> str:
        (folder / "cert.pem").write_bytes(Authority(lives, timedelta(days=-2)).issue("here")[0])
        return said(iter([certificate_check("tls.cert", str(folder / "cert.pem"))]))

    return check


def hung(_: Path) -> str:
    def never() -> Iterator[CheckResult]:
        time.sleep(60)
        yield CheckResult("disk", True, "")

    return said(iter(bounded("disk", 0.05, never)))


def expired_assignment(_: Path) -> object:
    fields = dict.fromkeys(Assignment.__dataclass_fields__)
    given: Any = SimpleNamespace(**{**fields, "issued": NOW - timedelta(days=3), "expires": NOW - timedelta(days=2)})
    return trust._check_time(given, NOW, timedelta(0), "the assignment", TrustSettings())


def unmatched_profile(_: Path) -> object:
    inventory = probe(Path("/nowhere"))
    return assembly.site(parse_config("", ""), MachineSurvey(inventory, None, None, {}))


def memory(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(checks, "unit_properties", lambda _: {"MemoryMax": "1000"})
    return said(checks.check_memory(device()))


def agent(**changes: Any) -> Callable[[Path], str]:
    return lambda _: said(agent_checks({**STATUS, **changes}, NOW))


def find(name: str) -> Callable[[Path], object]:
    return lambda _: asyncio.run(find_release(parse_config("", ""), name, ""))


def camera(url: str = "rtsp://10.0.0.7/stream", state: str = "lost", reason: str = "") -> Callable[[Path], object]:
    """Return an examination of a camera; `reason`: as the running gateway reports it, "" if none runs."""
    status = {"state": state, "reason": reason, "picture_problem": ""} if reason else None
    check = CameraCheck(CameraSettings("door", url, "street"), device(), status)
    return lambda _: said(iter([(check.address() if status is None else None) or check.reported() or check.frame()]))


USER = UserAccount("edge-gateway", 990, frozenset({990}), "edge-gateway")
TABLE: Mapping[str, Callable[[Path], object]] = {
    "EG-101 key": configuration("[limits]\nqueues = 3\n"),
    "EG-102 quote": configuration("x = \n"),
    "EG-103 text": configuration("[limits]\nqueue_requests = 'many'\n"),
    "EG-104 below": configuration("[limits]\nqueue_requests = -1\n"),
    "EG-105 open": listeners("[http]\nlisten = ['0.0.0.0:80']\n"),
    "EG-106 address": configuration("[grpc]\nlisten = ['nowhere']\n"),
    "EG-107 off": listeners("[grpc]\nlisten = ['off']\n[http]\nlisten = ['off']\n"),
    "EG-108 absent": lambda folder: read_security(parse_config(f"[auth]\ntokens_file = '{folder}/no'\n", "")),
    "EG-109 no PEM": lambda folder: secured(folder, "cert"),
    "EG-109 expired": certificate(timedelta(days=1)),
    "EG-109 soon": certificate(timedelta(days=4)),
    "EG-109 other key": other_key,
    "EG-110 absent": lambda folder: load_config(folder / "no.toml"),
    "EG-111 words": lambda _: read_tokens("name token more words\n", "tokens"),
    "EG-112 unknown": unmatched_profile,
    "EG-201 taken": busy_port,
    "EG-202 file": lambda _: str(denial(USER, [PathNode("/", 0o755, 0, 0), PathNode("/x", 0o600, 0, 0)], READ)),
    "EG-202 folder": lambda _: str(denial(USER, [PathNode("/x", 0o700, 0, 0), PathNode("/x/y", 0o600, 0, 0)], READ)),
    "EG-203 user": lambda _: account_of("no-such-user"),
    "EG-204 closed": asked,
    "EG-211 hung": hung,
    "EG-213 folder": lambda _: StateStore.open(Path("/proc/nowhere")).problem,
    "EG-214 mode": exposed,
    "EG-301 name": find("nosuch"),
    "EG-302 golden": model(lambda folder: (folder / "golden.npz").unlink()),
    "EG-303 content": model(lambda folder: (folder / "golden.npz").write_bytes(b"other")),
    "EG-304 input": bound(Port("x", Datatype.FP32, (-1, 4)), Port("z", Datatype.FP32, (1,))),
    "EG-305 name": bound(Port("other", Datatype.FP32, (-1, 4))),
    "EG-306 shape": bound(Port("x", Datatype.FP32, (-1, 5))),
    "EG-307 datatype": bound(Port("x", Datatype.INT8, (-1, 4))),
    "EG-311 two": bare("a.onnx", "b.onnx"),
    "EG-312 bytes": bare("model.onnx"),
    "EG-406 library": climbed(loads=False, listed=("GPU",)),
    "EG-408 list": climbed(loads=True, listed=("CPU",)),
    "EG-410 processor": fallen_back,
    "EG-501 none": tokens(None),
    "EG-502 unknown": tokens("Bearer other"),
    "EG-502 expired": expired_tokens,
    "EG-503 scope": lambda _: check_scope("camera", Rights(frozenset({Scope.INFER})), frozenset({Scope.METRICS})),
    "EG-505 body": lambda _: Most(10).check_length("11"),
    "EG-507 memory": lambda _: refuse_shared_memory(("shared_memory_region",), "input 'x'"),
    "EG-508 host": lambda _: check_host("evil.example", ("localhost",)),
    "EG-601 name": broker("[mqtt]\nurl = 'mqtt://broker.invalid'\n"),
    "EG-602 closed": broker(f"[mqtt]\nurl = 'mqtt://{CLOSED}'\n"),
    "EG-603 ended": refused_login,
    "EG-604 scheme": lambda _: broker_of("http://x"),
    "EG-605 outputs": lambda _: check_outputs(
        MqttRoute("r", ("t",), "m", outputs=("z",)), ModelManifest("m", "1", (), (), ())
    ),
    "EG-606 topic": lambda _: select_route(parse_config("", ""), "", "a/b"),
    "EG-609 file": lambda folder: connect_options(
        MqttSettings(username="u", password_file=str(folder / "no")), MqttIdentity("x", None)
    ),
    "EG-704 closed": camera(f"rtsp://{CLOSED}/stream"),
    "EG-704 device": camera("/dev/video-nosuch"),
    "EG-705 login": camera(reason="Server returned 401 Unauthorized (authorization failed)"),
    "EG-706 name": camera("rtsp://camera.invalid/stream"),
    "EG-707 model": camera(state="no_model", reason="model 'nosuch' is not known"),
    "EG-801 new": check_bootstrapped,
    "EG-803 behind": agent(state="behind", why="it failed"),
    "EG-804 report": agent(controller={"problem": "HTTP status 503"}),
    "EG-805 ended": agent(controller={"problem": "", "certificate_expires": (NOW - timedelta(days=1)).isoformat()}),
    "EG-806 socket": lambda folder: DaemonClient(ControlClientSettings(socket=str(folder / "no.sock"))).status(),
    "EG-808 expired": expired_assignment,
    "EG-810 packages": lambda _: PACKAGES_OWN,
}
PATCHED: Mapping[str, Callable[[pytest.MonkeyPatch], str]] = {
    "EG-205 stopped": lambda patch: unit(patch, LoadState="loaded", ActiveState="inactive"),
    "EG-206 refused": lambda patch: unit(patch, LoadState="loaded", ActiveState="failed", ExecMainStatus="2"),
    "EG-207 loop": lambda patch: unit(patch, LoadState="loaded", ActiveState="activating", NRestarts="7"),
    "EG-212 bound": memory,
    "EG-409 absent": absent_runtime,
    "EG-702 package": lambda _: PROGRAM._missing(ModuleNotFoundError(name="av")),
}


@pytest.mark.parametrize("case", TABLE)
def test_the_error_names_its_code(case: str, tmp_path: Path) -> None:
    assert case[:6] in entries()
    try:
        text = TABLE[case](tmp_path)
    except Exception as error:  # noqa: BLE001  each house has its own errors
        text = str(error)
    assert f"({case[:6]})" in str(text)


@pytest.mark.parametrize("case", PATCHED)
def test_the_state_of_the_system_has_its_code(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"({case[:6]})" in PATCHED[case](monkeypatch)


def test_the_trees_of_public_reports_have_codes_of_accelerators(tmp_path: Path) -> None:
    found = {thread: rungs(thread)(tmp_path / thread.replace("/", "-")) for thread in REPORTS}
    text = " ".join(found.values())
    assert [code for code in ("EG-401", "EG-402", "EG-403", "EG-404", "EG-407") if f"({code})" not in text] == []


def test_at_least_forty_codes_are_provoked() -> None:
    assert len({case[:6] for case in (*TABLE, *PATCHED)}) >= 40


def test_a_certificate_that_is_valid_is_no_finding(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_bytes(Authority(timedelta(days=90)).issue("here")[0])
    found = certificate_check("tls.cert", str(tmp_path / "cert.pem"))
    assert (found.ok, f" {NOW + timedelta(days=90):%Y} GMT" in found.detail) == (True, True)
    (tmp_path / "cert.pem").write_text("no PEM")
    assert certificate_check("tls.cert", str(tmp_path / "cert.pem")).ok is None
