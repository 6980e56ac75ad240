"""The last lines of a log: from a `journalctl` on the search path, whatever it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.device.agent.report.diagnostics import last_lines
from gateway.device.agent.settings import DiagnosticsSettings
from tests.simulators.constants import settings_with

SETTINGS = settings_with(DiagnosticsSettings(), log_timeout_s=20.0)
UNIT = "edge-agent.service"


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a script in place of journalctl; its arguments are in the file `told`."""
    script = tmp_path / "journalctl"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    return script


def write(script: Path, commands: str) -> None:
    script.write_text(f'#!/bin/sh\necho "$@" > "$TOLD"\n{commands}\n')
    script.chmod(0o755)


def test_lines_come_as_they_were_written(journalctl: Path) -> None:
    write(journalctl, "echo 'one \x1b[31mred\a'; echo 'token\x1b[0m=hunter2'; echo three")
    assert last_lines(UNIT, SETTINGS) == {"lines": ["one red ", "token=[withheld]", "three"], "cut": False}
    told = journalctl.with_name("told").read_text().split()
    assert {"--unit=edge-agent.service", "--lines=200", "--no-pager"} <= set(told)


def test_of_too_much_the_last_whole_lines_are_left(journalctl: Path) -> None:
    write(journalctl, "seq 1 100000")
    found = last_lines(UNIT, settings_with(SETTINGS, log_bytes=15))
    assert found == {"lines": ["99999", "100000"], "cut": True}
    found = last_lines(UNIT, settings_with(SETTINGS, log_lines=3))
    assert found["lines"] == ["99998", "99999", "100000"]


def test_one_line_that_never_ends_fills_nothing(journalctl: Path) -> None:
    write(journalctl, "head -c 5000000 /dev/zero | tr '\\0' x")
    assert "journald has no lines" in last_lines(UNIT, SETTINGS)["problem"]


@pytest.mark.parametrize("commands", ["echo early; sleep 600", "echo early; exec >&- 2>&-; sleep 600"])
def test_who_does_not_end_is_ended_with_all_that_it_started(journalctl: Path, commands: str) -> None:
    write(journalctl, commands)
    assert last_lines(UNIT, settings_with(SETTINGS, log_timeout_s=0.3))["lines"] == ["early"]


def test_why_there_are_none_is_said(journalctl: Path) -> None:
    write(journalctl, "echo 'No journal files were opened due to insufficient permissions.'; exit 1")
    assert "journalctl ended with 1: No journal files were opened" in last_lines(UNIT, SETTINGS)["problem"]
    write(journalctl, "")
    assert "journald has no lines of edge-agent.service" in last_lines(UNIT, SETTINGS)["problem"]
    journalctl.write_text("#!/nowhere/at/all\n")
    assert "cannot be run" in last_lines(UNIT, SETTINGS)["problem"]


def test_a_device_without_journald_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "this device has no journalctl" in last_lines(UNIT, SETTINGS)["problem"]
