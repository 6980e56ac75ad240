"""The OpenAPI document held against the controller by a tool nobody here wrote: what it says is so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fleet.access import Role
from tests.simulators.controller import RunningController, controlling

SHORT = ("--phases", "coverage,fuzzing", "--max-examples", "3")
LONG = ("--max-examples", "150")
PROGRAM = Path(sys.executable).with_name("schemathesis")


@pytest.fixture(scope="module")
def controller(tmp_path_factory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller")) as running:
        yield running


NOT_ASKED = ["positive_data_acceptance"]
"""No schema says what a certificate request is, a gzip body, the language of queries, which releases there are."""


def _run(
    controller: RunningController, folder: Path, *options: str, not_asked: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    document = f"{controller.url}/schema/openapi.json"
    given = ("--tls-verify", controller.ca_file, "--seed", "7", "--no-color")
    given += ("--exclude-checks", ",".join([*NOT_ASKED, *not_asked]))
    return subprocess.run(
        [PROGRAM, "run", document, "--checks", "all", "--suppress-health-check", "all", *given, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )


@pytest.mark.timeout(300)
def test_an_operators_requests(controller, tmp_path) -> None:
    done = _run(controller, tmp_path, *SHORT, "--header", f"Authorization: Bearer {controller.token()}")
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.mark.timeout(300)
def test_a_devices_requests(controller, tmp_path) -> None:
    file = controller.enrolled("camera-1").write(tmp_path)
    kept = ["ignored_auth"]  # a certificate is the connection's: no header takes it away
    done = _run(controller, tmp_path, *SHORT, "--request-cert", str(file), not_asked=kept)
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("role", list(Role))
def test_many_more(controller, tmp_path, role) -> None:
    done = _run(controller, tmp_path, *LONG, "--header", f"Authorization: Bearer {controller.token(role)}")
    assert done.returncode == 0, done.stdout[-8000:]
