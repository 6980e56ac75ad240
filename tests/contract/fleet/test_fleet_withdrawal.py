"""A floor or a withdrawal, from the owner's command to the devices that it concerns: counted, found, and moved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.cli import main
from fleet.controller.database import devices
from fleet.controller.database.devices import Running
from fleet.publisher.releases import Terms, model_files, plan_release, read_model
from tests.simulators.controller import SOON, RunningController, controlling
from tests.simulators.operator import until

pytestmark = pytest.mark.timeout(120)
SLOT = "meter"
RELEASE = "models/acme/meter/{}/release"
RUNS = {"d-0": "1", "d-1": "1", "d-2": "2"}


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningController]:
    """Yield a controller whose three devices run two versions; the commands ask it."""
    with controlling(tmp_path / "fleet", SOON) as made:
        for version in ("1", "2"):
            made.repository.add_release(SLOT, version)
        made.repository.keep_keys()
        for name, version in RUNS.items():
            made.enrolled(name)
            report(made, name, version)
        monkeypatch.setenv("EDGE_FLEET_URL", made.url)
        monkeypatch.setenv("EDGE_FLEET_CA", str(made.ca_file))
        monkeypatch.setenv("EDGE_FLEET_TOKEN", made.token())
        yield made


def report(running: RunningController, name: str, version: str) -> None:
    target = running.repository.published.target(RELEASE.format(version))
    assert target
    runs = Running(SLOT, target.path, target.hashes["sha256"], "only", "cpu", "committed", running.clock())
    with running.control.database.write() as connection:
        devices.report_slots(connection, name, [runs], [])


def publish(running: RunningController, capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, object]], str]:
    """Sign the owner's draft, and publish it. Return what it concerns, and what was said of it."""
    folder = str(running.folder)
    (key,) = running.repository.keys["models-acme"]
    secret = running.folder / "keys" / f"{key.public_key.keyid}.pem"
    assert main(["sign", f"{folder}/drafts/models-acme.json", "--key", str(secret), "--yes"]) == 0
    capsys.readouterr()
    assert main(["publish", "--dir", folder, "--json"]) == 0
    said = capsys.readouterr()
    return json.loads(said.out)["concerns"], said.err


def told(capsys: pytest.CaptureFixture[str], *words: str) -> object:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_withdrawal_says_how_many_devices_run_it_and_finds_them(
    running: RunningController, capsys: pytest.CaptureFixture[str]
) -> None:
    first = RELEASE.format(1)
    for more, stops in (((), False), (("--remove",), True)):
        assert main(["model", "withdraw", "acme/meter/1", *more, "--dir", str(running.folder)]) == 0
        concerns, said = publish(running, capsys)
        why = "its owner withdrew it"
        assert concerns == [{"target": first, "slot": SLOT, "devices": 2, "why": why, "stops": stops}]
        assert f"2 devices run {first} in the slot {SLOT}" in said
        assert ("ORDERED TO STOP IT AT ONCE" in said) is stops
    found = told(capsys, "devices", "list", "--target", "acme/meter/1")
    assert isinstance(found, dict)
    assert [one["id"] for one in found["devices"]] == ["d-0", "d-1"]


def draft_release(running: RunningController, version: str, floor: str) -> None:
    """Draft the files of version 2 as another version."""
    repository, two = running.repository, running.repository.workspace.folder / "made" / "acme" / SLOT / "2"
    folder = two.with_name(version)
    shutil.copytree(two, folder)
    manifest = folder / "manifest.toml"
    manifest.write_text(manifest.read_text().replace('version = "2"', f'version = "{version}"'))
    model = read_model(folder, repository.workspace.settings)
    planned = plan_release(repository.drafting(), model, "acme", Terms(floor))
    for artifact in model_files(planned.release):
        repository.workspace.stage_blob(folder / artifact.path, artifact)
    repository.workspace.stage(planned.target, planned.content)
    repository.workspace.save([planned.draft])


def test_a_floor_says_how_many_devices_fall_below_it(
    running: RunningController, capsys: pytest.CaptureFixture[str]
) -> None:
    draft_release(running, "3", floor="3")
    concerns, said = publish(running, capsys)
    assert [(one["target"], one["devices"], one["stops"]) for one in concerns] == [
        (RELEASE.format(1), 2, False),
        (RELEASE.format(2), 1, False),
    ]
    assert said.count("a rollout moves them, until then they go on") == 2


def test_a_new_rollout_says_what_its_devices_change(
    running: RunningController, capsys: pytest.CaptureFixture[str]
) -> None:
    with running.client() as operator:
        until(lambda: len(operator.get("/v1/releases").json()["items"]) == 2, "the releases are not read")
    capsys.readouterr()
    words = ("--target", "acme/meter/2", "--query", "id = d-*", "--waves", "100%", "--soak", "0")
    assert main(["rollouts", "create", *words]) == 0
    assert "2 devices from version 1, 1 device from version 2 to acme/meter/2" in capsys.readouterr().out
