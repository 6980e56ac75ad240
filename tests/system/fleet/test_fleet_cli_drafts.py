"""`edge-fleet drafts` and the drafting verbs with --remote, as processes against a running controller."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fleet.controller.access import Role
from fleet.controller.database import devices
from fleet.controller.database.devices import Running
from fleet.publisher.drafts import read_draft
from fleet.publisher.keys import make_key
from fleet.publisher.verify import verify
from gateway.common.domain.release_form import TIME_FORMAT
from tests.simulators.controller import RunningController, controlling
from tests.simulators.operator import Operator, operator

pytestmark = pytest.mark.timeout(240)
POLICY = '{"schema": 1, "share_percent_per_hour": 10}'
RELEASE = "models/acme/meter-reader/1/release"


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller")) as running:
        running.repository.add_release("meter-reader", "1")
        running.repository.keep_keys()
        yield running


@pytest.fixture(scope="module")
def admin(controller: RunningController) -> Operator:
    return operator(controller)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "hours.json"
    file.write_text(POLICY)
    return file


@pytest.fixture(autouse=True)
def no_drafts(controller: RunningController) -> Iterator[None]:
    yield
    for role in controller.control.workspace.drafts():
        controller.control.workspace.discard(role)


def key(controller: RunningController, role: str, number: int = 0) -> Path:
    """Return the file of a role's key."""
    found: str = controller.repository.keys[role][number].public_key.keyid
    return controller.repository.workspace.keys / f"{found}.pem"


def test_a_draft_is_made_shown_signed_and_published(controller, admin, policy) -> None:
    made = admin.told("policy", "add", policy, "--remote")["drafts"][0]
    assert (made["role"], made["file"], made["missing"]) == ("policy", f"{controller.url}/v1/drafts/policy", 1)
    code, out, _ = admin.run("drafts", "list")
    assert code == 0
    assert re.search(r"policy │ 1 +│ 1 .*it lacks 1 signature", out)
    code, out, _ = admin.run("drafts", "show", "policy")
    assert "adds policy/hours.json" in out
    assert "share_percent_per_hour" in out
    code, out, err = admin.run("drafts", "sign", "policy", "--key", key(controller, "policy"))
    assert (code, "there is no terminal to ask on" in err) == (2, True)
    code, out, _ = admin.run("drafts", "sign", "policy", "--key", key(controller, "policy"), "--yes")
    assert (code, "complete: edge-fleet publish --remote" in out) == (0, True)
    code, out, _ = admin.run("publish", "--remote")
    assert (code, "published policy, version 1" in out) == (0, True)
    assert admin.told("drafts", "list") == {"drafts": []}
    assert admin.run("drafts", "list")[1] == "no draft waits\n"


def test_a_holder_reads_and_agrees_at_a_terminal(controller, admin) -> None:
    admin.told("renew", "models-acme", "--remote")
    words = ("drafts", "sign", "models-acme", "--key", key(controller, "models-acme"))
    code, said = admin.looked(*words, typed="n\n")
    assert (code, "nothing changes but the version" in said) == (1, True)
    assert admin.told("drafts", "show", "models-acme")["missing"] == 1
    code, said = admin.looked(*words, typed="y\n")
    assert (code, "complete" in said) == (0, True)
    assert admin.told("drafts", "show", "models-acme")["missing"] == 0


def test_a_draft_travels_to_a_machine_without_network(controller, admin, tmp_path) -> None:
    admin.told("model", "withdraw", "acme/meter-reader/1", "--remote")
    file = tmp_path / "usb.json"
    assert admin.told("drafts", "download", "models-acme", "--out", file)["missing"] == 1
    alone = Operator({"PATH": admin.environment["PATH"]})
    code, out, _ = alone.run("sign", file, "--key", key(controller, "models-acme"), "--yes")
    assert (code, f"withdraws {RELEASE}" in out) == (0, True)
    done = admin.told("publish", file, "--remote")  # sends the signatures, then publishes
    assert done["published"].keys() == {"models-acme"}
    workspace = controller.control.workspace
    assert verify(workspace.public, controller.clock(), workspace.settings).findings == ()


def test_uploads_are_listed_and_deleted(controller, admin) -> None:
    digest = hashlib.sha256(b"a file").hexdigest()
    assert admin.run("uploads", "list")[1] == "no upload is here\n"
    with controller.client(token=controller.token(Role.PUBLISHER, name="ci")) as ci:
        assert ci.post("/v1/blobs", json={"digest": digest, "size_bytes": 6}).is_success
        assert ci.patch(f"/v1/blobs/{digest}", content=b"a").is_success
    assert re.search(rf"{digest} │ ci +│ 1 +│ 6 +│ incomplete", admin.run("uploads", "list")[1])
    code, _, err = admin.run("uploads", "delete", digest)
    assert (code, "has no upload" in err) == (1, True)
    assert admin.told("uploads", "delete", digest, "--by", "ci")["uploads"][0]["digest"] == digest
    assert admin.told("uploads", "list") == {"uploads": []}


def test_a_copy_without_signatures_is_not_sent_again(admin, tmp_path) -> None:
    admin.told("renew", "models-acme", "--remote")
    file = tmp_path / "copy.json"
    admin.told("drafts", "download", "models-acme", "--out", file)
    code, _, err = admin.run("drafts", "upload", file)
    assert (code, "has no signature, and the draft waits already; sign it with edge-fleet sign" in err) == (2, True)


def test_of_several_drafts_none_is_signed_if_a_key_is_missing(controller, admin) -> None:
    admin.told("renew", "models-acme", "targets", "--remote")
    words = ("drafts", "sign", "models-acme", "targets", "--key", key(controller, "models-acme"), "--yes")
    code, _, err = admin.run(*words)
    assert (code, "none of these keys may sign targets" in err) == (2, True)
    assert admin.told("drafts", "show", "models-acme")["missing"] == 1


def test_what_was_signed_before_a_holder_declined_is_told(controller, admin) -> None:
    admin.told("renew", "models-acme", "targets", "--remote")
    keys = [("--key", key(controller, role)) for role in ("models-acme", "targets")]
    code, said = admin.looked("drafts", "sign", "models-acme", "targets", *keys[0], *keys[1], typed="y\nn\n")
    assert (code, "models-acme, version" in said.rpartition("[y/N]")[2]) == (1, True)
    assert "complete: edge-fleet publish --remote" in said
    missing = [admin.told("drafts", "show", role)["missing"] for role in ("models-acme", "targets")]
    assert missing == [0, 1]


def test_a_holder_sees_how_many_devices_lose_a_release(controller, admin) -> None:
    controller.enrolled("camera-1")
    with controller.control.database.write() as connection:
        running = Running("meter-reader", RELEASE, "a" * 64, "only", "cpu", "committed", controller.clock())
        devices.report(connection, "camera-1", [running], "in-step")
    admin.told("model", "withdraw", "acme/meter-reader/1", "--remove", "--remote")
    words = ("drafts", "sign", "models-acme", "--key", key(controller, "models-acme"))
    code, said = admin.looked(*words, typed="n\n")
    assert code == 1
    assert f"1 device runs {RELEASE} in the slot meter-reader: ORDERED TO STOP IT AT ONCE" in said.partition("[y/N]")[0]


def test_a_draft_replaces_another_one_where_it_says_so(admin, policy, tmp_path) -> None:
    admin.told("policy", "add", policy, "--remote")
    other = tmp_path / "other.json"
    admin.told("drafts", "download", "policy", "--out", other)
    policy.write_text('{"schema": 1, "share_percent_per_hour": 20}')
    admin.told("policy", "add", policy, "--remote")  # based on what waits
    code, _, err = admin.run("drafts", "upload", other)
    assert (code, "waits already" in err) == (1, True)
    (replaced,) = admin.told("drafts", "upload", "--replace", other)["drafts"]
    assert replaced["document"] == read_draft(other.read_bytes(), "x").document
    assert admin.told("drafts", "delete", "policy")["role"] == "policy"
    code, _, err = admin.run("drafts", "show", "policy")
    assert (code, "no draft of 'policy' waits" in err) == (1, True)


def test_keys_are_rotated_and_owners_named_at_a_controller(controller, admin, tmp_path) -> None:
    for name in ("zoe", "yan"):
        make_key(tmp_path, name, None)
    made = admin.told("delegate", "zoe", "--key", tmp_path / "zoe.pub", "--remote")["drafts"]
    assert [draft["role"] for draft in made] == ["targets"]
    admin.told("rotate", "models-acme", "--key", tmp_path / "yan.pub", "--remote")
    assert [draft["role"] for draft in admin.told("drafts", "list")["drafts"]] == ["models-acme", "targets"]
    yan, targets = tmp_path / "yan.pem", key(controller, "targets")
    admin.told("drafts", "sign", "targets", "models-acme", "--key", targets, "--key", yan, "--yes")
    assert admin.told("publish", "--remote")["published"].keys() == {"targets", "models-acme"}
    ci = operator(controller, Role.PUBLISHER, name="ci")
    code, _, err = ci.run("rotate", "models-acme", "--key", tmp_path / "zoe.pub", "--remote")
    assert (code, "drafts.keys needs the role admin" in err) == (1, True)


def test_without_remote_the_folder_is_meant(admin, policy, tmp_path) -> None:
    """Although EDGE_FLEET_URL is set, as in an operator's shell."""
    code, _, err = admin.run("policy", "add", policy, "--dir", tmp_path / "empty")
    assert (code, "there is no repository here" in err) == (2, True)
    assert admin.told("drafts", "list") == {"drafts": []}


def test_a_policy_that_gives_hours_back_is_warned_of_as_in_a_folder(controller, admin, tmp_path) -> None:
    start, end = (controller.clock() + timedelta(days=days) for days in (-1, 1))
    begun = f'{{"start": "{start:{TIME_FORMAT}}", "end": "{end:{TIME_FORMAT}}", "reason": "holidays"}}'
    content = f'{{"schema": 1, "share_percent_per_hour": 1, "blackouts": [{begun}]}}'
    controller.repository.add_file("policy/closed.json", content.encode())
    file = tmp_path / "closed.json"
    file.write_text(POLICY)
    (warning,) = admin.told("policy", "add", file, "--remote")["warnings"]
    assert "no longer lists it" in warning


def test_what_a_controller_does_itself_is_not_asked_of_it(controller, admin) -> None:
    code, _, err = admin.run("publish", "--remote", "--key", key(controller, "timestamp"))
    assert (code, "signs with its own online keys" in err) == (2, True)


def test_json_says_what_an_answer_says(admin, policy) -> None:
    admin.told("policy", "add", policy, "--remote")
    shown = admin.told("drafts", "show", "policy")
    assert json.dumps(shown["quorums"]).count("policy") == 1
    assert shown.keys() >= {"words", "concerns", "document", "waits"}
