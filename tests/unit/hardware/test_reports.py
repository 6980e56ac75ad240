"""`doctor` names the cause in trees after public reports, each by its thread."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.cli.parser import main
from gateway.domain.profile import choose_profile
from gateway.hardware.profiles import load_profiles, profiles_folder
from tests.devices.asking import Probed
from tests.devices.build import Node, build
from tests.devices.reports import REPORTS

PROFILES = load_profiles(profiles_folder())


def needs_root(thread: str) -> bool:
    return any(isinstance(entry, Node) and entry.group in {0, 65534} for entry in REPORTS[thread].root.values())


@pytest.mark.parametrize("thread", REPORTS)
def test_doctor_names_the_cause(thread: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if needs_root(thread) and os.geteuid() != 0:
        pytest.skip("only root can build this tree: its nodes have the group of root or the overflow group")
    root = build(tmp_path / "root", REPORTS[thread].root)
    (tmp_path / "empty.toml").touch()
    status = main(["doctor", "--json", "--root", str(root), "--config", str(tmp_path / "empty.toml")])
    told = capsys.readouterr().out
    assert [words for words in REPORTS[thread].says if words not in told] == []
    assert status == int(REPORTS[thread].is_fault)


@pytest.mark.parametrize("thread", [thread for thread, report in REPORTS.items() if report.profile])
def test_the_board_is_recognised(thread: str, probed: Probed) -> None:
    profile = choose_profile(PROFILES, probed(REPORTS[thread].root))
    assert (profile.name if profile else None) == REPORTS[thread].profile
