"""Publication by a controller with a bucket, with replicas, and of releases of the programs."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet import signing
from fleet.access import Role
from fleet.blobs.disk import DiskBlobs
from fleet.client.client import Access, Client
from fleet.client.workspace import remote_workspace
from fleet.control.publication import Publisher
from fleet.control.settings import DraftSettings
from fleet.control.uploads import Uploads
from fleet.problems import ProblemError
from fleet.software import plan_software, read_variant, software_files
from fleet.verify import verify
from tests.simulators.controller import RunningController, controlling
from tests.simulators.fleet_repository import new_key
from tests.simulators.software_device import wheels
from tests.simulators.uploading import OWNER_ROLE, release, sent, signatures

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[RunningController]:
    with controlling(tmp_path) as running:
        running.repository.add_release("meter-reader", "1")
        yield running


def test_files_are_in_the_bucket_before_metadata_names_them(controller, tmp_path) -> None:
    """A second folder stands for the bucket: it is a store of the same protocol."""
    made = release(controller, tmp_path, "meter-reader", "2")
    with controller.client(Role.PUBLISHER) as ci:
        sent(ci, made)
        body = signatures(made.draft, *controller.repository.keys[OWNER_ROLE])
        assert ci.post(f"/v1/drafts/{OWNER_ROLE}/signatures", json=body).is_success
    bucket, control = DiskBlobs(tmp_path / "bucket"), controller.control
    done = Publisher(control.drafts, control.keys, bucket).publish("olga", controller.clock(), check=lambda _: None)
    assert (done.published, done.uploaded) == ({OWNER_ROLE: 2}, len(made.files))
    assert {digest: bucket.stat(digest) for digest in made.files} == {
        digest: len(content) for digest, content in made.files.items()
    }


def test_replicas_that_share_the_folder_go_on_with_each_others_uploads(controller, tmp_path) -> None:
    control, now = controller.control, controller.clock()
    first, second = (Uploads(control.database, control.workspace, DraftSettings()) for _ in range(2))
    digest = "a" * 64
    first.begin(digest, 4, "ci", now)
    appending = first.append(digest, 0)
    with pytest.raises(ProblemError, match="another request adds to this file"):
        second.append(digest, 0)
    appending.add(b"ab")
    appending.sync()
    appending.close()
    assert second.find(digest).received_bytes == 2
    with pytest.raises(ProblemError, match="has 2 of 4 bytes"):
        second.append(digest, 0)


def test_a_version_of_the_programs_is_published_from_elsewhere(controller, tmp_path) -> None:
    repository = controller.repository
    repository.keys["software"] = [new_key("software")]
    drafts = signing.delegate(repository.drafting(), "software", [repository.keys["software"][0].public_key], 1)
    repository._publish(drafts)
    client = Client(Access(controller.url, controller.token(Role.PUBLISHER), str(controller.ca_file)))
    folder = wheels(tmp_path / "wheels", "1.0")
    with remote_workspace(client) as work:
        variant = read_variant(folder, f"3.{sys.version_info.minor}", platform.machine())
        planned = plan_software(work.drafting(controller.clock()), [variant], None)
        for file in software_files(planned.release):
            work.stage_blob(folder / file.path, file)
        work.stage(planned.target, planned.content)
        work.save([planned.draft])
    with controller.client() as admin:
        words = "\n".join(admin.get("/v1/drafts/software").json()["words"])
        assert "RUNS AS ROOT on every device" in words
        body = signatures(planned.draft, *repository.keys["software"])
        assert admin.post("/v1/drafts/software/signatures", json=body).is_success
        assert admin.post("/v1/publication").json()["published"] == {"software": 1}
    workspace = controller.control.workspace
    assert verify(workspace.public, controller.clock(), workspace.settings).findings == ()
