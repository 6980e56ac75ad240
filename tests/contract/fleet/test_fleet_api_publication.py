"""Publication by a controller with a bucket, with replicas, and of releases of the programs."""

from __future__ import annotations

import platform
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from fleet.client.client import Access, Client, record_of
from fleet.client.workspace import remote_workspace
from fleet.controller.access import Role
from fleet.controller.blobs.disk import DiskBlobs
from fleet.controller.config import FleetConfig
from fleet.controller.control.publication import Publisher
from fleet.controller.control.settings import DraftSettings
from fleet.controller.control.uploads import Uploads
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.problems import ProblemError
from fleet.publisher import signing
from fleet.publisher.impact import Impact
from fleet.publisher.software import plan_software, read_variant, software_files
from fleet.publisher.verify import verify
from gateway.common.domain.errors import ConfigurationError
from tests.simulators.constants import settings_with
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


def test_without_the_database_nothing_is_published(tmp_path: Path) -> None:
    config = replace(FleetConfig(), database=settings_with(DatabaseSettings(), busy_timeout_ms=100))
    with controlling(tmp_path, config) as running, running.client() as admin:
        repository, workspace = running.repository, running.control.workspace
        repository.add_release("meter-reader", "1")
        made = release(running, tmp_path, "meter-reader", "2")
        sent(admin, made)
        admin.post(f"/v1/drafts/{OWNER_ROLE}/signatures", json=signatures(made.draft, *repository.keys[OWNER_ROLE]))
        before = repository.published
        with closing(sqlite3.connect(workspace.folder / "fleet.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            refused = admin.post("/v1/publication")
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/unavailable")
        assert repository.published == before
        assert admin.post("/v1/publication").json()["published"] == {OWNER_ROLE: 2}
        newest = admin.get("/v1/audit").json()["items"][0]
        assert (newest["action"], newest["details"]["published"]) == ("publication.publish", {OWNER_ROLE: 2})


def test_what_was_published_by_a_request_whose_commit_failed_is_recorded_by_its_repetition(tmp_path: Path) -> None:
    with controlling(tmp_path) as running, running.client() as admin:
        running.repository.add_release("meter-reader", "1")
        made = release(running, tmp_path, "meter-reader", "2")
        sent(admin, made)
        signed = signatures(made.draft, *running.repository.keys[OWNER_ROLE])
        admin.post(f"/v1/drafts/{OWNER_ROLE}/signatures", json=signed)

        def fail(_: sa.Connection) -> None:
            raise sa.exc.OperationalError("COMMIT", {}, OSError("the disk is full"))

        sa.event.listen(running.control.database.writes, "commit", fail)
        refused = admin.post("/v1/publication")
        sa.event.remove(running.control.database.writes, "commit", fail)
        assert refused.status_code == 503
        assert admin.post("/v1/publication").is_success
        newest = admin.get("/v1/audit").json()["items"][0]
        assert (newest["action"], newest["details"]["published"]) == ("publication.publish", {OWNER_ROLE: 2})
        assert admin.get("/v1/drafts").json()["items"] == []


class OvertakenClient(Client):
    """Client that a publication overtakes before it reads the timestamp."""

    overtake: Callable[[], object] | None = None

    def fetch(self, path: str) -> tuple[bytes, str]:
        if self.overtake and path.endswith("/timestamp.json"):
            self.overtake()
            self.overtake = None
        return super().fetch(path)


def test_a_copy_is_of_one_publication(controller, tmp_path) -> None:
    client = OvertakenClient(Access(controller.url, controller.token(Role.PUBLISHER), str(controller.ca_file)))
    client.overtake = lambda: controller.repository.add_release("meter-reader", "2")
    with remote_workspace(client) as work:
        assert work.published() == controller.repository.published


@pytest.mark.parametrize("role", ["/../../../../escaped", "../escaped", "x"])
def test_a_controller_does_not_choose_where_a_client_writes(controller, tmp_path, monkeypatch, role) -> None:
    client = Client(Access(controller.url, controller.token(Role.PUBLISHER), str(controller.ca_file)))
    known = client.ask("GET", "/v1/publication")
    monkeypatch.setattr(client, "ask", lambda *_: known | {"published": [{"role": role, "version": 1}]})
    monkeypatch.setattr(client, "fetch", lambda _: (b"{}", ""))
    with pytest.raises(ConfigurationError, match="is not a role"), remote_workspace(client):
        pass


def test_a_newer_controller_may_say_more(controller, monkeypatch) -> None:
    client = Client(Access(controller.url, controller.token(Role.PUBLISHER), str(controller.ca_file)))
    known = client.ask("GET", "/v1/publication")
    newer = known | {"settings": known["settings"] | {"a_later_setting": 1}}
    monkeypatch.setattr(client, "ask", lambda *_: newer | {"items": [], "next": None})
    with remote_workspace(client) as work:
        assert work.settings.owner_expiry_d == known["settings"]["owner_expiry_d"]
    concern = {"target": "t", "slot": "s", "devices": 1, "why": "w", "stops": True}
    assert record_of(Impact, concern | {"a_later_field": 1}) == Impact(**concern)


def test_replicas_that_share_the_folder_go_on_with_each_others_uploads(controller, tmp_path) -> None:
    control, now = controller.control, controller.clock()
    first, second = (Uploads(control.database, control.workspace, DraftSettings()) for _ in range(2))
    digest = "a" * 64
    first.begin(digest, 4, "ci", now)
    appending = first.append(digest, 0, "ci")
    with pytest.raises(ProblemError, match="another request adds to this file"):
        second.append(digest, 0, "ci")
    appending.add(b"ab")
    appending.sync()
    appending.close()
    assert second.find(digest, "ci").received_bytes == 2
    with pytest.raises(ProblemError, match="has 2 of 4 bytes"):
        second.append(digest, 0, "ci")


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
