"""Findings of a device's health report: what needs repair, of all that is known of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.common.store.active import Active
from gateway.device.agent.report.health_report import NOT_ASKED, Subject, checkup, findings, vitals
from gateway.device.agent.report.report import StatusInput
from gateway.device.agent.report.telemetry import ReportInput
from gateway.device.agent.state.identity import DeviceIdentity
from gateway.device.store.spool_rows import Usage

STANDING = StatusInput(DeviceIdentity("door-1", "", "", b""), Active(), None, (), ())
STATUS = {"version": "1.2", "rss_bytes": 7, "problem": "", "models": [{"state": "READY", "reason": ""}]}
HEALTHY: dict[str, Any] = {
    "agent": {"state": "in-step", "why": "all is committed"},
    "gateway": STATUS,
    "clock": {"synchronised": True},
    "disk": {"free_bytes": 100, "files_free": 9},
    "spool": {"gaps": 0},
}


def subject(folder: Path, **observed: Any) -> Subject:
    return Subject(ReportInput(STANDING, **observed), Usage(1, 0, 10), folder, keep_free_bytes=0)


def test_it_says_how_the_machine_is(tmp_path: Path) -> None:
    found = checkup(subject(tmp_path, status=STATUS, vitals={"memory_available_bytes": 5}))
    assert (found["gateway"], found["versions"]["gateway"]) == (STATUS, "1.2")
    assert found["memory"]["total_bytes"] > 0
    assert (found["memory"]["available_bytes"], found["memory"]["gateway_bytes"]) == (5, 7)
    assert found["disk"]["total_bytes"] >= found["disk"]["free_bytes"] > 0
    assert found["machine"]["uptime_s"] > 0
    assert found["agent"]["device"] == "door-1"
    assert found["spool"] == {"records": 1, "gaps": 0, "size_bytes": 10}
    assert "fleet" in {one["subject"] for one in found["findings"]}


def test_without_a_gateway_and_a_folder_it_says_what_it_can(tmp_path: Path) -> None:
    found = checkup(subject(tmp_path / "gone"))
    assert found["gateway"] == NOT_ASKED
    assert "cannot be read" in found["disk"]["problem"]
    assert vitals(ReportInput(STANDING))["problem"] == NOT_ASKED["problem"]


def test_a_healthy_device_has_nothing_to_mend() -> None:
    assert list(findings(HEALTHY, 100)) == []


ILL: dict[str, tuple[dict[str, Any], str]] = {
    "fleet": ({"agent": {"state": "behind", "why": "it fails"}}, "it fails"),
    "gateway": ({"gateway": NOT_ASKED}, "does not answer"),
    "model": ({"gateway": {"models": [{"model": "m", "version": "1", "state": "UNAVAILABLE", "reason": "x"}]}}, "m v"),
    "clock": ({"clock": {"synchronised": False}}, "not synchronised"),
    "disk": ({"disk": {"free_bytes": 99, "files_free": 9}}, "99 bytes are free"),
    "disk ": ({"disk": {"free_bytes": 100, "files_free": 0}}, "no room for another file"),
    "spool": ({"spool": {"gaps": 3}}, "telemetry was dropped"),
}


@pytest.mark.parametrize("case", ILL)
def test_each_ill_is_found_and_has_a_remedy(case: str) -> None:
    change, words = ILL[case]
    (found,) = findings({**HEALTHY, **change}, 100)
    assert found["subject"] == case.strip()
    assert words in found["problem"]
    assert found["remedy"]


def test_what_the_device_waits_for_is_no_ill() -> None:
    for state in ("updating", "held"):
        assert not list(findings({**HEALTHY, "agent": {"state": state, "why": ""}}, 100))
