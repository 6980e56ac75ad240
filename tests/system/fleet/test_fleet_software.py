"""A publisher of new versions at a shell: wheels are tried as on a device, signed by their own keys, published."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import pytest

from tests.simulators.publisher import Publisher
from tests.simulators.software_device import wheels

pytestmark = pytest.mark.timeout(180)
PYTHON, MACHINE = f"3.{sys.version_info.minor}", platform.machine()
KIND = ("--python", PYTHON, "--machine", MACHINE)


@pytest.fixture(scope="module")
def publisher(tmp_path_factory: pytest.TempPathFactory) -> Publisher:
    """Return a publisher whose software is signed by two people of their own."""
    made = Publisher(tmp_path_factory.mktemp("publisher"))
    made.begin()
    program = made.folder / "edge-software"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gateway.device.installer "$@"\n')
    program.chmod(0o755)
    for name in ("sam", "sue"):
        made.run("keys", "new", name)
    made.run("delegate", "--software", "--key", "sam.pub", "sue.pub")
    made.sign("targets", "alice")
    made.run("publish")
    return made


def add(publisher: Publisher, folder: Path, *options: str, code: int = 0) -> str:
    done = publisher.run(
        "software", "add", folder, *KIND, "--edge-software", publisher.folder / "edge-software", *options, code=code
    )
    return done.stdout + done.stderr


def test_a_release_is_tried_signed_by_two_and_published(publisher: Publisher, tmp_path: Path) -> None:
    add(publisher, wheels(tmp_path / "wheels", "0.2.0"), "--floor", "0.1.0")
    said = publisher.run("sign", "drafts/software.json", "--key", "sam.pem", "--yes").stdout
    assert f"edge-gateway 0.2.0, floor 0.1.0, for {MACHINE} Python {PYTHON} (2 wheels): RUNS AS ROOT" in said
    assert "lacks 1 signature" in json.dumps(publisher.told("publish")["waiting"])
    publisher.sign("software", "sue")
    publisher.run("publish")
    assert publisher.told("verify")["ok"]
    (document,) = (publisher.public / "targets/software/edge-gateway/0.2.0").iterdir()
    for wheel in json.loads(document.read_text())["variants"][0]["wheels"]:
        assert (publisher.public / "blobs/sha256" / wheel["sha256"]).stat().st_size == wheel["bytes"]
    again = add(publisher, wheels(tmp_path / "again", "0.2.0"), code=2)
    assert "published already and never changes" in again
    below = add(publisher, wheels(tmp_path / "below", "0.0.9"), code=2)
    assert "below the floor 0.1.0" in below


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"gateway/__main__.py": "raise SystemExit('broken')\n"}, "edge-gateway --version' ended with 1: broken"),
        ({"gateway/device/installer/__main__.py": "print('edge-software 7')\n"}, "edge-software 0.3.0 was expected"),
    ],
)
def test_programs_that_do_not_start_are_not_added(
    files: dict[str, str], said: str, publisher: Publisher, tmp_path: Path
) -> None:
    assert said in add(publisher, wheels(tmp_path / "wheels", "0.3.0", files), code=1)
    assert publisher.told("status")["drafts"] == []


def test_a_set_with_a_requirement_missing_is_not_added(publisher: Publisher, tmp_path: Path) -> None:
    folder = wheels(tmp_path / "wheels", "0.3.0", requires=("something-else>=1", "openvino-telemetry"))
    said = add(publisher, folder, code=1)
    assert "requires something-else, which is not installed" in said
    assert "openvino-telemetry" not in said


def test_without_pip_nothing_could_be_installed(publisher: Publisher, tmp_path: Path) -> None:
    folder = wheels(tmp_path / "wheels", "0.3.0")
    next(folder.glob("pip-*.whl")).unlink()
    assert "pip is missing" in add(publisher, folder, code=2)


def test_a_folder_for_another_machine_is_not_tried_here_and_says_so(publisher: Publisher, tmp_path: Path) -> None:
    other = "aarch64" if MACHINE == "x86_64" else "x86_64"
    folder = wheels(tmp_path / "wheels", "0.3.0")
    done = publisher.run("software", "add", folder, "--python", PYTHON, "--machine", other)
    assert f"not tried here: {folder}: it is for {other}" in done.stderr
