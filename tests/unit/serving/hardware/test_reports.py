"""`doctor` names the cause in trees after public reports, each by its thread."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.common.domain.profile import choose_profile
from gateway.serving.hardware.profiles import load_profiles, profiles_folder
from gateway.serving.hardware.tree import Tree
from tests.devices.asking import Probed
from tests.devices.build import Node, build
from tests.devices.reports import REPORTS

PROFILES = load_profiles(profiles_folder())


@pytest.mark.parametrize("thread", REPORTS)
def test_doctor_names_the_cause(
    thread: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, found = build(tmp_path / "root", REPORTS[thread].root), Tree.status

    def status(tree: Tree, path: str) -> os.stat_result | None:
        """Return the node's group as in the report: only root could give it to the file."""
        stat, entry = found(tree, path), REPORTS[thread].root.get(path)
        return os.stat_result((*stat[:5], entry.group, *stat[6:])) if stat and isinstance(entry, Node) else stat

    monkeypatch.setattr(Tree, "status", status)
    (tmp_path / "empty.toml").touch()
    status = main(["doctor", "--json", "--root", str(root), "--config", str(tmp_path / "empty.toml")])
    told = capsys.readouterr().out
    assert [words for words in REPORTS[thread].says if words not in told] == []
    assert status == int(REPORTS[thread].is_fault)


@pytest.mark.parametrize("thread", [thread for thread, report in REPORTS.items() if report.profile])
def test_the_board_is_recognised(thread: str, probed: Probed) -> None:
    profile = choose_profile(PROFILES, probed(REPORTS[thread].root))
    assert (profile.name if profile else None) == REPORTS[thread].profile
