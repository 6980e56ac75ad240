"""The OpenAPI document held against the controller by a tool nobody here wrote: what it says is so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.access import Role
from tests.simulators.controller import RunningController, controlling

EXAMPLES = {"make test": "5", "long": "150"}
PROGRAM = Path(sys.executable).with_name("schemathesis")


@pytest.fixture(scope="module")
def controller(tmp_path_factory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller")) as running:
        yield running


def _run(controller: RunningController, folder: Path, examples: str, *options: str) -> subprocess.CompletedProcess[str]:
    document = f"{controller.url}/schema/openapi.json"
    given = ("--tls-verify", controller.ca_file, "--max-examples", examples, "--seed", "7", "--no-color")
    return subprocess.run(
        [PROGRAM, "run", document, "--checks", "all", "--suppress-health-check", "all", *given, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("role", [Role.ADMIN, Role.VIEWER])
def test_an_operators_requests(controller, tmp_path, role) -> None:
    done = _run(
        controller, tmp_path, EXAMPLES["make test"], "--header", f"Authorization: Bearer {controller.token(role)}"
    )
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.mark.timeout(300)
def test_a_devices_requests(controller, tmp_path) -> None:
    file = controller.enrolled("camera-1").write(tmp_path)
    done = _run(controller, tmp_path, EXAMPLES["make test"], "--request-cert", str(file))
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_more(controller, tmp_path) -> None:
    done = _run(controller, tmp_path, EXAMPLES["long"], "--header", f"Authorization: Bearer {controller.token()}")
    assert done.returncode == 0, done.stdout[-8000:]
