"""Publishing over the API: drafts and signatures up, keys never; what is published is what devices verify."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from fleet.controller.access import Role
from fleet.controller.config import FleetConfig
from fleet.controller.control.settings import DraftSettings
from fleet.controller.database import devices
from fleet.controller.database.devices import Running
from fleet.publisher import signing
from fleet.publisher.drafts import draft_bytes
from fleet.publisher.releases import plan_withdrawal, target_of
from fleet.publisher.roles import Quorum
from fleet.publisher.verify import verify
from gateway.common.trust.targets import Withdrawal
from tests.simulators.constants import settings_with
from tests.simulators.controller import RunningController, controlling
from tests.simulators.fleet_repository import FleetRepository, new_key
from tests.simulators.uploading import OWNER_ROLE, downloaded, put, release, sent, signatures, upload

DEVICE_PROFILES = Path(__file__).parents[3] / "device_profiles"
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[RunningController]:
    with controlling(tmp_path) as running:
        running.repository.add_release("meter-reader", "1")
        yield running


@pytest.fixture
def ci(controller: RunningController) -> Iterator[httpx.Client]:
    """Yield a client of a program with a token of the role publisher."""
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
    assert (waiting.json()["missing"], waiting.json()["document"]) == (1, made.draft.document)
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


def test_a_second_draft_of_a_role_takes_the_place_of_the_first_only_where_it_says_so(controller, ci, tmp_path) -> None:
    first = release(controller, tmp_path, "meter-reader", "2")
    assert sent(ci, first).status_code == 200
    assert sent(ci, first).status_code == 200, "the same again changes nothing"
    _, etag = downloaded(ci, OWNER_ROLE)
    second = release(controller, tmp_path, "meter-reader", "3")  # based on the first: it holds both releases
    assert "models/acme/meter-reader/2/release" in second.draft.metadata.signed.targets
    refused = sent(ci, second)
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/draft-outdated")
    stale = put(ci, second.draft, **{"if-match": '"0"'})
    assert (stale.status_code, ci.get("/v1/drafts").json()["items"][0]["document"]) == (412, first.draft.document)
    assert put(ci, second.draft, **{"if-match": etag}).json()["document"] == second.draft.document


def test_a_state_of_a_draft_that_is_gone_does_not_hold(controller, ci, tmp_path) -> None:
    made = release(controller, tmp_path, "meter-reader", "2")
    sent(ci, made)
    _, etag = downloaded(ci, OWNER_ROLE)
    assert ci.delete(f"/v1/drafts/{OWNER_ROLE}", headers={"if-match": etag}).status_code == 200
    assert put(ci, made.draft, **{"if-match": etag}).status_code == 412
    assert put(ci, made.draft).status_code == 200


def test_a_draft_based_on_what_was_published_before_is_refused(controller, ci, tmp_path) -> None:
    late = release(controller, tmp_path, "meter-reader", "3")
    controller.repository.add_release("meter-reader", "2")
    refused = sent(ci, late)
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/draft-outdated")
    assert "make the change again" in refused.json()["detail"]


def test_an_upload_is_the_draft_that_the_folder_would_have(controller, ci, tmp_path) -> None:
    """Byte for byte, and so is what is published."""
    made = release(controller, tmp_path, "meter-reader", "2", slots=("meter-reader",), changes_signature=True)
    sent(ci, made)
    assert controller.control.workspace.draft_file(OWNER_ROLE).read_bytes() == draft_bytes(made.draft)


def test_quorums_and_the_version_before_are_not_taken_from_the_sender(controller, ci, tmp_path) -> None:
    made = release(controller, tmp_path, "meter-reader", "2")
    stranger = new_key()
    quorum = Quorum((stranger.public_key,), 1, "the keys of models-acme")
    forged = replace(made.draft, quorums=(quorum,), previous=made.draft.metadata)
    for content in made.files.values():
        upload(ci, content)
    assert put(ci, forged).status_code == 200
    waiting, _ = downloaded(ci, OWNER_ROLE)
    assert (waiting.quorums, waiting.previous) == (made.draft.quorums, made.draft.previous)


def test_drafts_of_every_kind_are_taken(controller, ci, tmp_path) -> None:
    controller.repository.add_file("profiles/lab.toml", (DEVICE_PROFILES / "jetson-orin.toml").read_bytes())
    policy = b'{"schema": 1, "share_percent_per_hour": 10}'
    drafting = controller.repository.drafting()
    withdrawal = plan_withdrawal(drafting, "models/acme/meter-reader/1/release", Withdrawal.OFFER)
    made = [
        signing.add_targets(drafting, "policy", [(target_of("policy/hours.json", policy), policy)]),
        signing.renew(drafting, "profiles"),
        withdrawal,
    ]
    for draft in made:
        answer = put(ci, draft)
        assert answer.status_code == 200, answer.text
    words = "\n".join(ci.get(f"/v1/drafts/{OWNER_ROLE}").json()["words"])
    assert "withdraws models/acme/meter-reader/1/release" in words
    assert [one["role"] for one in ci.get("/v1/drafts").json()["items"]] == [OWNER_ROLE, "policy", "profiles"]
    assert "share_percent_per_hour" in "\n".join(ci.get("/v1/drafts/policy").json()["words"])


def test_keys_are_rotated_over_the_api(controller, ci, operator) -> None:
    """Root by two old keys and the new ones; targets and the owner's document by theirs."""
    repository = controller.repository
    old, new = repository.keys["root"], [new_key(f"root-new-{number}") for number in range(3)]
    (draft,) = signing.rotate(repository.drafting(), "root", [key.public_key for key in new], 2)
    with controller.client() as admin:
        assert put(admin, draft).status_code == 200
    for key in (old[0], old[1], new[0], new[1]):
        assert operator.get("/v1/publication").json()["ready"] == []
        signed = ci.post("/v1/drafts/root/signatures", json=signatures(draft, key))
        assert signed.status_code == 200, signed.text
    assert operator.post("/v1/publication").json()["published"] == {"root": 2}
    workspace = controller.control.workspace
    assert verify(workspace.public, controller.clock(), workspace.settings).findings == ()


def test_the_signed_draft_of_a_holder_adds_its_signatures(controller, ci, tmp_path) -> None:
    made = release(controller, tmp_path, "meter-reader", "2")
    sent(ci, made)
    signed = signing.signed_with(made.draft, controller.repository.keys[OWNER_ROLE][0])
    assert put(ci, signed).json()["missing"] == 0
    assert put(ci, made.draft).json()["missing"] == 0, "a copy without signatures takes none away"


def test_devices_that_a_draft_concerns_are_told(controller, ci, operator) -> None:
    controller.enrolled("camera-1")
    path = "models/acme/meter-reader/1/release"
    with controller.control.database.write() as connection:
        running = Running("meter-reader", path, "a" * 64, "only", "cpu", "committed", controller.clock())
        devices.report(connection, "camera-1", [running], "in-step")
    put(ci, plan_withdrawal(controller.repository.drafting(), path, Withdrawal.REMOVE))
    (concern,) = ci.get(f"/v1/drafts/{OWNER_ROLE}").json()["concerns"]
    assert (concern["devices"], concern["stops"], concern["target"]) == (1, True, path)
    assert operator.get("/v1/publication").json()["concerns"] == [], "it is not signed yet"


def test_without_the_online_keys_nothing_is_published(tmp_path: Path) -> None:
    repository = FleetRepository(tmp_path)
    keys = {role: repository.keys.pop(role) for role in ("snapshot", "timestamp")}
    repository.keys |= {role: [new_key()] for role in keys}  # the controller holds others
    with controlling(tmp_path, repository=repository) as running, running.client() as admin:
        before = running.repository.published
        refused = admin.post("/v1/publication")
        assert (refused.status_code, refused.json()["type"]) == (409, "/problems/publication-refused")
        assert "keep them in the folder keys" in refused.json()["detail"]
        assert running.repository.published == before


def test_what_an_operator_saw_is_what_is_published(controller, ci, operator, tmp_path) -> None:
    seen = operator.get("/v1/publication").headers["etag"]
    made = release(controller, tmp_path, "meter-reader", "2")
    sent(ci, made)
    ci.post(f"/v1/drafts/{OWNER_ROLE}/signatures", json=signatures(made.draft, *controller.repository.keys[OWNER_ROLE]))
    assert operator.post("/v1/publication", headers={"if-match": seen}).status_code == 412
    now = operator.get("/v1/publication").headers["etag"]
    assert operator.post("/v1/publication", headers={"if-match": now}).json()["published"] == {OWNER_ROLE: 2}


def test_a_request_waits_for_the_folder_and_then_is_told_to_come_again(tmp_path: Path) -> None:
    config = replace(FleetConfig(), drafts=settings_with(DraftSettings(), lock_wait_s=0.2))
    with controlling(tmp_path, config) as running, running.client() as admin:
        with running.control.workspace.locked(10.0):  # maintenance may hold it
            refused = admin.post("/v1/publication")
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/overloaded")
        assert refused.headers["retry-after"]
        while (answer := admin.post("/v1/publication")).status_code == 503:
            assert answer.json()["type"] == "/problems/overloaded"
        assert answer.status_code == 200
