"""Diagnostics end to end: asked through the signed assignment, answered once, bounded, without secrets, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import UnreachableError
from gateway.device.agent.config import AgentConfig
from gateway.device.agent.fetch.certificate import FILE
from gateway.device.agent.report import reporting
from gateway.device.agent.report.diagnostics import read_requests
from gateway.device.agent.settings import DiagnosticsSettings
from gateway.device.store.spool import Spool
from tests.simulators.constants import settings_with
from tests.simulators.enrolled_device import CONFIG, DEVICE, SLOT, Device, enrolled_device
from tests.simulators.fleet_controller import Call

ALL = ["doctor", "log", "status", "vitals"]
ROUTE = "/v1/self/diagnostics"


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """Yield a device whose journald quotes its key, and which is asked for diagnostics."""
    with enrolled_device(tmp_path, monkeypatch) as made:
        tools = tmp_path / "tools"
        tools.mkdir()
        (tools / "journalctl").write_text(f"#!/bin/sh\necho polled\ncat {made.folder / FILE}\necho over\n")
        (tools / "journalctl").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
        made.fleet.extra[DEVICE] = {"diagnostics": True}
        made.update("1")
        made.control.serve(SLOT, "1")
        yield made


def ask(device: Device, *numbers: int, wanted: Any = None) -> None:
    then = "2037-01-01T00:00:00Z"
    asked = [{"id": number, "wanted": wanted or ALL, "expires": then} for number in numbers]
    device.fleet.diagnostics[DEVICE] = asked


def calls(device: Device, method: str) -> list[Call]:
    return [call for call in device.fleet.asked if (call.method, call.path) == (method, ROUTE)]


def given_to(device: Device, number: int) -> dict[str, Any]:
    answer: dict[str, Any] = device.told.diagnostics[number]["answer"]
    return answer


def test_every_section_is_answered_without_a_secret(device: Device) -> None:
    ask(device, 7)
    assert device.report() == ""
    answer = given_to(device, 7)
    assert list(answer) == ALL
    assert answer["doctor"]["agent"]["slots"][SLOT]["committed"]["version"] == "1"
    assert answer["doctor"]["gateway"]["models"][0]["model"] == SLOT
    assert answer["status"]["device"] == DEVICE
    assert "temperatures_c" in answer["vitals"]
    assert answer["log"]["edge-agent.service"]["lines"][0] == "polled"
    assert answer["log"]["edge-gateway.service"]["lines"][-1] == "over"
    for line in (device.folder / FILE).read_text().splitlines():
        assert line.startswith("-----") or line not in json.dumps(answer)
    assert calls(device, "POST")[0].headers["content-encoding"] == "gzip"


def test_a_request_is_answered_once(device: Device) -> None:
    ask(device, 7)
    for _ in range(3):
        device.report()
    ask(device, 7, 8)
    device.report()
    assert len(calls(device, "POST")) == 2
    assert sorted(device.told.diagnostics) == [7, 8]


def test_who_is_not_asked_by_the_assignment_asks_nothing(device: Device) -> None:
    ask(device, 7)
    for extra in ({}, {"diagnostics": False}, {"diagnostics": 1}, {"diagnostics": "true"}):
        device.fleet.extra[DEVICE] = extra
        device.sync()
        assert device.report() == ""
    assert calls(device, "GET") == []


def test_an_answer_that_was_not_taken_is_given_again(device: Device) -> None:
    ask(device, 7)
    device.fleet.ill[ROUTE] = lambda call: device.fleet._route(call) if call.method == "GET" else (503, {}, b"")
    assert "503" in device.report()
    device.fleet.ill.clear()
    assert device.report() == ""
    assert list(device.told.diagnostics) == [7]


@pytest.mark.parametrize("status", [400, 404, 409, 413])
def test_an_answer_that_is_never_taken_is_given_up(device: Device, status: int) -> None:
    ask(device, 7)
    device.fleet.ill[ROUTE] = lambda call: device.fleet._route(call) if call.method == "GET" else (status, {}, b"")
    for _ in range(3):
        assert device.report() == ""
    assert len(calls(device, "POST")) == 1


def test_telemetry_is_told_where_diagnostics_fail_and_the_other_way_round(device: Device) -> None:
    ask(device, 7)
    device.fleet.ill[ROUTE] = lambda _: (500, {}, b"")
    assert device.report()
    assert len(device.told.of("vitals")) == 1
    device.fleet.ill = {"/v1/self/telemetry": lambda _: (500, {}, b"")}
    assert device.report()
    assert list(device.told.diagnostics) == [7]


def test_an_owner_may_refuse(device: Device) -> None:
    ask(device, 7)
    refusing = replace(CONFIG, telemetry=replace(CONFIG.telemetry, diagnostics=False))
    assert device.report(refusing) == ""
    assert given_to(device, 7) == {name: {"problem": "refused by this device"} for name in ALL}


def test_unknown_names_are_answered_as_unknown(device: Device) -> None:
    ask(device, 7, wanted=["shell", "status", 3, "", "x" * 100, "status"])
    device.report()
    answer = given_to(device, 7)
    assert answer["shell"] == {"problem": "unknown to this device"}
    assert set(answer) == {"shell", "status"}


def bounded(**bounds: float) -> AgentConfig:
    return replace(CONFIG, diagnostics=settings_with(CONFIG.diagnostics, **bounds))


def test_what_is_too_large_is_left_out_and_said_to_be(device: Device) -> None:
    ask(device, 7)
    device.report(bounded(answer_bytes=1_500))
    answer = given_to(device, 7)
    assert "left out: it has" in answer["doctor"]["problem"]
    assert answer["vitals"]["memory"]
    assert len(json.dumps(answer)) < 2_500


def test_many_requests_are_answered_a_few_at_a_time(device: Device) -> None:
    ask(device, *range(10), wanted=["status", *(f"name-{number}" for number in range(50))])
    device.report(bounded(requests=2, wanted_limit=3))
    assert list(device.told.diagnostics) == [0, 1]
    assert len(given_to(device, 0)) == 3
    device.report(bounded(requests=20))
    assert len(device.told.diagnostics) == 10


def test_however_often_it_is_asked_it_looks_now_and_then(device: Device, tmp_path: Path) -> None:
    """Each `log` reads the journal, which takes time on a small device; a stolen controller could ask all day."""
    journalctl, read = tmp_path / "tools" / "journalctl", tmp_path / "read"
    journalctl.write_text(f"#!/bin/sh\necho x >> {read}\necho polled\n")
    ask(device, *range(4))
    device.report(bounded(least_pause_s=600.0))
    assert sorted(device.told.diagnostics) == [0, 1, 2, 3]
    assert len(read.read_text().split()) == len(CONFIG.diagnostics.log_units)
    ask(device, *range(4, 8))
    assert device.report(bounded(least_pause_s=600.0)) == ""
    assert len(calls(device, "GET")) == 1
    device.report()
    assert len(calls(device, "GET")) == 1
    with closing(Spool.open(device.folder, reporting.boot_in(device.folder), datetime.now(UTC))) as spool:
        spool.append([], datetime.now(UTC), {reporting.QUIET: "{}"})  # as after so long
    device.report()
    assert sorted(device.told.diagnostics) == list(range(8))


def test_a_daemon_that_does_not_answer_is_a_finding(device: Device) -> None:
    device.control.always["status"] = UnreachableError("it does not answer", table="control", key="socket")
    ask(device, 7)
    assert device.report() == ""
    assert "gateway" in {one["subject"] for one in given_to(device, 7)["doctor"]["findings"]}


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"requests": {}}', b'{"requests": [1, null, {"id": 3}]}'])
def test_odd_questions_are_none(device: Device, body: bytes) -> None:
    device.fleet.ill[ROUTE] = lambda _: (200, {}, body)
    device.report()
    assert calls(device, "POST") == []


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**100) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["requests", "id", "wanted"]), inner),
)


@given(said=st.dictionaries(st.sampled_from(["requests", "id"]), anything))
def test_whatever_a_controller_says_is_read(said: dict[str, Any]) -> None:
    for request in read_requests(said, DiagnosticsSettings()):
        assert isinstance(request.named, int | str)
        assert len(str(request.named)) <= 64
        assert all(0 < len(name) <= 64 for name in request.wanted)


def test_the_error_is_the_first_one(device: Device) -> None:
    device.fleet.ill = {
        "/v1/self/telemetry": lambda _: (500, {}, b'{"detail": "first"}'),
        ROUTE: lambda _: (500, {}, b""),
    }
    assert "first" in device.report()
