"""Publishing over the API: drafts and signatures up, keys never; what is published is what devices verify."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fleet.access import Role
from fleet.verify import verify
from tests.simulators.controller import RunningController, controlling
from tests.simulators.uploading import OWNER_ROLE, downloaded, release, sent, signatures

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[RunningController]:
    with controlling(tmp_path) as running:
        running.repository.add_release("meter-reader", "1")
        yield running


@pytest.fixture
def ci(controller: RunningController) -> Iterator[httpx.Client]:
    """Program with a token of the role publisher."""
    with controller.client(Role.PUBLISHER) as client:
        yield client


@pytest.fixture
def operator(controller: RunningController) -> Iterator[httpx.Client]:
    with controller.client(Role.OPERATOR) as client:
        yield client


def deeds(controller: RunningController) -> list[str]:
    with controller.client() as admin:
        return [entry["action"] for entry in admin.get("/v1/audit").json()["items"]]


def test_a_release_goes_from_a_program_elsewhere_to_what_devices_see(controller, ci, operator, tmp_path) -> None:
    made = release(controller, tmp_path, "meter-reader", "2", floor="2")
    waiting = sent(ci, made)
    assert waiting.status_code == 200, waiting.text
    assert (waiting.json()["missing"], waiting.json()["document"]) == (1, made.document)
    assert any("adds models/acme/meter-reader/2/release" in line for line in waiting.json()["words"])
    assert "lacks 1 signature" in ci.get("/v1/publication").json()["waiting"][OWNER_ROLE]
    draft, _ = downloaded(ci, OWNER_ROLE)
    body = signatures(draft, *controller.repository.keys[OWNER_ROLE])
    signed = ci.post(f"/v1/drafts/{OWNER_ROLE}/signatures", json=body)
    assert (signed.status_code, signed.json()["missing"], signed.json()["waits"]) == (200, 0, "")
    assert ci.get("/v1/publication").json()["ready"] == [OWNER_ROLE]
    assert ci.post("/v1/publication").status_code == 403
    done = operator.post("/v1/publication")
    assert (done.status_code, done.json()["published"], done.json()["waiting"]) == (200, {OWNER_ROLE: 2}, {})
    workspace = controller.control.workspace
    report = verify(workspace.public, controller.clock(), workspace.settings)
    assert (report.findings, report.expiries[0].days > 0) == ((), True)
    assert not workspace.drafts()
    assert [file for file in workspace.staged.rglob("*") if file.is_file()] == []
    assert {"blobs.begin", "blobs.upload", "drafts.upload", "drafts.sign", "publication.publish"} <= {
        *deeds(controller)
    }
