"""Uploaded drafts and signatures as hostile input: whatever is not what `edge-fleet` would have made is refused."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fleet.controller.access import Role
from fleet.publisher import signing
from fleet.publisher.drafts import draft_bytes
from fleet.publisher.roles import TARGETS
from tests.simulators.controller import RunningController, controlling
from tests.simulators.fleet_repository import new_key
from tests.simulators.uploading import OWNER_ROLE, MadeRelease, downloaded, put, release, sent, signatures, upload

DEVICE_PROFILES = Path(__file__).parents[3] / "device_profiles"
pytestmark = pytest.mark.timeout(120)
Json = dict[str, Any]
Change = Callable[[Json], object]
OLD, NEW = "models/acme/meter-reader/1/release", "models/acme/meter-reader/2/release"
REFUSED, OUTDATED = (422, "/problems/draft-refused"), (409, "/problems/draft-outdated")
KEY = (422, "/problems/private-key-refused")
SECRET = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller")) as running:
        running.repository.add_release("meter-reader", "1")
        running.repository.add_owner("other")
        running.repository.add_file("profiles/lab.toml", (DEVICE_PROFILES / "jetson-orin.toml").read_bytes())
        yield running


@pytest.fixture
def ci(controller: RunningController) -> Iterator[httpx.Client]:
    with controller.client(Role.PUBLISHER) as client:
        yield client


@pytest.fixture
def admin(controller: RunningController) -> Iterator[httpx.Client]:
    with controller.client() as client:
        yield client


@pytest.fixture(scope="module")
def made(controller: RunningController, tmp_path_factory: pytest.TempPathFactory) -> MadeRelease:
    """Return an honest draft whose files are uploaded."""
    honest = release(controller, tmp_path_factory.mktemp("elsewhere"), "meter-reader", "2")
    with controller.client(Role.PUBLISHER) as client:
        for content in honest.files.values():
            upload(client, content)
    return honest


def _document(made: MadeRelease) -> Json:
    found: Json = json.loads(draft_bytes(made.draft))
    return found


def _signed(document: Json) -> Json:
    found: Json = document["metadata"]["signed"]
    return found


def _targets(document: Json) -> Json:
    found: Json = _signed(document)["targets"]
    return found


def _set(*path: str, to: object) -> Change:
    """Change one value of a draft."""

    def change(document: Json) -> None:
        *above, last = path
        for name in above:
            document = document[name]
        document[last] = to

    return change


def _release(**changes: Any) -> Change:
    """Change the release document, with a digest and length that fit."""

    def change(document: Json) -> None:
        inner = json.loads(document["documents"][NEW]) | changes
        _with_content(document, NEW, json.dumps(inner).encode())

    return change


def _with_content(document: Json, path: str, content: bytes) -> None:
    document["documents"][path] = content.decode()
    target = _targets(document).setdefault(path, {"custom": {"floor": "1"}})
    target.update(length=len(content), hashes={"sha256": hashlib.sha256(content).hexdigest()})


def _moved(path: str) -> Change:
    """Sign the new release under another path."""

    def change(document: Json) -> None:
        _targets(document)[path] = _targets(document).pop(NEW)
        document["documents"][path] = document["documents"].pop(NEW)

    return change


def _artifact(**changes: Any) -> Change:
    def change(document: Json) -> None:
        variants = json.loads(document["documents"][NEW])["variants"]
        variants[0]["artifacts"][0] |= changes
        _release(variants=variants)(document)

    return change


def _expires(text: str) -> Change:
    return _set("metadata", "signed", "expires", to=text)


SIGNED = ("metadata", "signed")
DRAFTS: dict[str, tuple[Change, tuple[int, str], str]] = {
    "another role": (_set("role", to="models-other"), REFUSED, "it was sent to 'models-acme'"),
    "a role that leaves the folder": (_set("role", to="models-../../x"), REFUSED, "is not a role"),
    "an online role": (_set("role", to="timestamp"), REFUSED, "is not a role"),
    "a known role of another kind": (_set("role", to="root"), REFUSED, "of another kind"),
    "the published version again": (_set(*SIGNED, "version", to=1), OUTDATED, "is version 1 of models-acme, 2 comes"),
    "a version ahead": (_set(*SIGNED, "version", to=3), OUTDATED, "2 comes next"),
    "a version that is no whole number": (_set(*SIGNED, "version", to=2.0), REFUSED, "is no draft"),
    "a version that is a text": (_set(*SIGNED, "version", to="2"), REFUSED, "is no draft"),
    "no end": (_expires("9999-01-01T00:00:00Z"), REFUSED, "expires at 9999"),
    "an end that is over": (_expires("2020-01-01T00:00:00Z"), REFUSED, "expires at 2020"),
    "another specification": (_set(*SIGNED, "spec_version", to="1.0.0"), REFUSED, "is of TUF '1.0.0'"),
    "an unknown field": (_set(*SIGNED, "x", to=1), REFUSED, "fields that devices do not know: 'x'"),
    "an unknown field beside it": (_set("metadata", "x", to=1), REFUSED, "fields that devices do not know"),
    "further roles": (
        _set(*SIGNED, "delegations", to={"keys": {}, "roles": []}),
        REFUSED,
        "may not name further roles",
    ),
    "a published release is gone": (lambda one: _targets(one).pop(OLD), REFUSED, f"{OLD} is missing"),
    "a published release is another": (
        lambda one: _targets(one)[OLD].update(hashes={"sha256": "0" * 64}),
        REFUSED,
        "never changes",
    ),
    "a published floor is another": (lambda one: _targets(one)[OLD].update(custom={"floor": "0"}), REFUSED, "never"),
    "an unknown withdrawal": (
        lambda one: _targets(one)[OLD].update(custom={"floor": "1", "withdrawn": "x"}),
        REFUSED,
        "withdrawal is 'x'",
    ),
    "a path of another owner": (_moved("models/other/meter-reader/2/release"), REFUSED, "models-acme may not sign"),
    "a path of another kind": (_moved("policy/x.json"), REFUSED, "models-acme may not sign"),
    "a path that leaves the folder": (_moved("models/acme/../2/release"), REFUSED, "is not a target's path"),
    "a path of another name": (_moved("models/acme/meter-reader/2/other"), REFUSED, "no release's path"),
    "the document of another model": (_moved("models/acme/other/2/release"), REFUSED, "devices would refuse"),
    "no document": (lambda one: one["documents"].pop(NEW), REFUSED, "is not in the draft"),
    "another document than signed": (_set("documents", NEW, to="{}"), REFUSED, "shows another"),
    "another length": (lambda one: _targets(one)[NEW].update(length=1), REFUSED, "1 would be signed"),
    "a length that is no whole number": (lambda one: _targets(one)[NEW].update(length=True), REFUSED, "not written as"),
    "a second digest": (
        lambda one: _targets(one)[NEW]["hashes"].update(sha512="0" * 128),
        REFUSED,
        "not written as edge-fleet",
    ),
    "another floor than documented": (lambda one: _targets(one)[NEW].update(custom={"floor": "2"}), REFUSED, "floor"),
    "an unknown term": (
        lambda one: _targets(one)[NEW]["custom"].update(x=1),
        REFUSED,
        "unknown fields",
    ),
    "a document that is none": (lambda one: _with_content(one, NEW, b"{}"), REFUSED, "devices would refuse"),
    "a document of endless depth": (lambda one: _with_content(one, NEW, b"[" * 100_000), REFUSED, "devices would"),
    "a floor above the version": (
        lambda one: (_release(floor="3")(one), _targets(one)[NEW].update(custom={"floor": "3"})),
        REFUSED,
        "below the floor 3",
    ),
    "a floor that falls": (
        lambda one: (_release(floor="0")(one), _targets(one)[NEW].update(custom={"floor": "0"})),
        REFUSED,
        "never falls",
    ),
    "a file that leaves its folder": (_artifact(path="../../etc/passwd"), REFUSED, "devices would refuse"),
    "an absolute file": (_artifact(path="/etc/passwd"), REFUSED, "devices would refuse"),
    "a file that is not here": (_artifact(sha256="1" * 64), REFUSED, f"1 files of {NEW} are not here: {'1' * 64}"),
    "a file of another size": (_artifact(bytes=7), REFUSED, "are not here"),
    "other variants than the manifest": (_release(variants=[]), REFUSED, "manifest lists other variants"),
    "a signature of a stranger": (
        _set("metadata", "signatures", to=[{"keyid": "a" * 64, "sig": "00" * 64}]),
        (422, "/problems/signature-refused"),
        "may not sign models-acme",
    ),
    "a private key": (_set("documents", "x", to=SECRET), KEY, "contains a private key"),
}


@pytest.mark.parametrize("name", DRAFTS)
def test_a_draft_that_breaks_a_rule_is_refused_and_nothing_is_kept(controller, ci, made, name) -> None:
    change, refusal, words = DRAFTS[name]
    document = _document(made)
    change(document)
    text = json.dumps(document)
    answer = ci.put(f"/v1/drafts/{OWNER_ROLE}", content=text.encode())
    assert (answer.status_code, answer.json()["type"]) == refusal, answer.text
    assert words in answer.json()["detail"]
    assert ci.get("/v1/drafts").json()["items"] == []
    workspace = controller.control.workspace
    assert [file.name for file in workspace.staged.rglob("*.release")] == []
    assert not list((workspace.folder / "drafts").glob("*"))


NO_DRAFTS = (
    *(b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe"),
    *(b"[" * 200_000, b'{"a":' * 100_000, b'{"schema": 1%s}' % (b"0" * 5_000)),
)


@pytest.mark.parametrize("content", NO_DRAFTS, ids=range(len(NO_DRAFTS)))
def test_what_is_no_draft_is_refused(ci, content) -> None:
    answer = ci.put(f"/v1/drafts/{OWNER_ROLE}", content=content)
    assert (answer.status_code, answer.json()["type"]) == REFUSED


def test_a_private_key_that_json_spells_otherwise_is_found(ci, made) -> None:
    document = _document(made)
    document["quorums"][0]["keys"][0]["x-edge-name"] = "-----BEGIN PRIVATE KEY-----"
    text = json.dumps(document).replace("PRIVATE", "PRIV\\u0041TE")
    assert "PRIVATE KEY" not in text
    answer = ci.put(f"/v1/drafts/{OWNER_ROLE}", content=text.encode())
    assert (answer.status_code, answer.json()["type"]) == KEY


def test_a_draft_beyond_its_bound_is_not_read(controller, ci) -> None:
    limit = controller.control.workspace.settings.document_limit_bytes
    assert ci.put(f"/v1/drafts/{OWNER_ROLE}", content=b" " * (limit + 1)).status_code == 413


def test_a_role_that_is_not_there_has_no_draft(ci, made) -> None:
    statuses = {"models-nobody": 422, "director": 422, "timestamp": 422, "models-..%2f..%2fx": 404, "x": 422}
    for role, status in statuses.items():
        answer = ci.put(f"/v1/drafts/{role}", content=json.dumps(_document(made) | {"role": role}).encode())
        assert answer.status_code == status, answer.text
        assert ci.get(f"/v1/drafts/{role}").status_code == 404


def test_a_file_that_no_device_could_read_is_refused(controller, ci) -> None:
    cases = {
        ("policy", "policy/x.json"): (b'{"schema": 2}', "schema"),
        ("policy", "policy/x.toml"): (b'{"schema": 1}', "no file of policy"),
        ("profiles", "profiles/x.toml"): (b"\xff", "is no draft"),
    }
    drafting = controller.repository.drafting()
    for (role, path), (content, words) in cases.items():
        base = json.loads(draft_bytes(signing.renew(drafting, "profiles")))
        base["role"] = role
        if role == "policy":
            base["metadata"]["signed"] |= {"version": 1, "targets": {}}
        base["documents"] = {path: content.decode(errors="surrogateescape")}
        digest = hashlib.sha256(content).hexdigest()
        base["metadata"]["signed"]["targets"][path] = {"length": len(content), "hashes": {"sha256": digest}}
        answer = ci.put(f"/v1/drafts/{role}", content=json.dumps(base).encode())
        assert answer.status_code == 422, answer.text
        assert words in answer.json()["detail"]


# ---- root and targets
def _delegation(name: str, **changes: Any) -> Change:
    def change(document: Json) -> None:
        for role in _signed(document)["delegations"]["roles"]:
            if role["name"] == name:
                role.update(changes)

    return change


def _two_ids(document: Json) -> None:
    delegations = _signed(document)["delegations"]
    role = next(one for one in delegations["roles"] if one["name"] == OWNER_ROLE)
    (keyid,) = role["keyids"]
    delegations["keys"]["f" * 64] = copy.deepcopy(delegations["keys"][keyid])
    role |= {"keyids": [keyid, "f" * 64], "threshold": 2}


def _with_private(document: Json) -> None:
    for key in _signed(document)["delegations"]["keys"].values():
        key["keyval"]["private"] = "00" * 32


def _with_scheme(document: Json) -> None:
    for key in _signed(document)["delegations"]["keys"].values():
        key.update(keytype="rsa", scheme="rsassa-pss-sha256")


DELEGATIONS: dict[str, tuple[Change, tuple[int, str], str]] = {
    "wider paths": (_delegation(OWNER_ROLE, paths=["models/*/*/*/*"]), REFUSED, "and nothing else"),
    "not terminating": (_delegation(OWNER_ROLE, terminating=False), REFUSED, "and nothing else"),
    "a threshold beyond the keys": (_delegation(OWNER_ROLE, threshold=2), REFUSED, "needs 2 of 1 keys"),
    "a threshold that is no number": (_delegation(OWNER_ROLE, threshold=True), REFUSED, "not written as edge-fleet"),
    "a key under two ids": (_two_ids, REFUSED, "under two ids"),
    "a role less": (
        lambda one: _signed(one)["delegations"]["roles"].pop(),
        REFUSED,
        "is missing; a role that was named once stays",
    ),
    "a key of no role": (
        lambda one: _signed(one)["delegations"]["keys"].update(
            {"e" * 64: {"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": "00" * 32}}}
        ),
        REFUSED,
        "is of no role",
    ),
    "a target of its own": (
        lambda one: _signed(one)["targets"].update({"x": {"length": 1, "hashes": {"sha256": "0" * 64}}}),
        REFUSED,
        "signs nothing itself",
    ),
    "a private key": (_with_private, KEY, "contains a private key"),
    "a key of an unknown scheme": (_with_scheme, REFUSED, "not written as edge-fleet writes keys"),
}


@pytest.mark.parametrize("name", DELEGATIONS)
def test_targets_that_break_a_rule_are_refused(controller, admin, name) -> None:
    change, refusal, words = DELEGATIONS[name]
    document = json.loads(draft_bytes(signing.renew(controller.repository.drafting(), TARGETS)))
    change(document)
    answer = admin.put("/v1/drafts/targets", content=json.dumps(document).encode())
    assert (answer.status_code, answer.json()["type"]) == refusal, answer.text
    assert words in answer.json()["detail"]
    assert admin.get("/v1/drafts").json()["items"] == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set(*SIGNED, "consistent_snapshot", to=False), "consistent_snapshot"),
        (_set(*SIGNED, "roles", "root", "threshold", to=4), "needs 4 of 3 keys"),
        (_set(*SIGNED, "roles", "timestamp", "keyids", to=["0" * 64]), "names a key that is not listed"),
    ],
)
def test_a_root_that_breaks_a_rule_is_refused(controller, admin, change, words) -> None:
    document = json.loads(draft_bytes(signing.renew(controller.repository.drafting(), "root")))
    change(document)
    answer = admin.put("/v1/drafts/root", content=json.dumps(document).encode())
    assert (answer.status_code, answer.json()["type"]) == REFUSED
    assert words in answer.json()["detail"]


@pytest.mark.parametrize("role", ["root", "targets"])
def test_only_admins_draft_who_may_sign(controller, ci, admin, role) -> None:
    draft = signing.renew(controller.repository.drafting(), role)
    assert put(ci, draft).status_code == 403
    assert put(admin, draft).status_code == 200
    assert ci.delete(f"/v1/drafts/{role}").status_code == 403
    shown, _ = downloaded(ci, role)
    signed = ci.post(f"/v1/drafts/{role}/signatures", json=signatures(shown, controller.repository.keys[role][0]))
    assert signed.status_code == 200, signed.text
    assert admin.delete(f"/v1/drafts/{role}").status_code == 200


# ---- signatures
def test_a_signature_that_does_not_count_is_refused(controller, ci, made) -> None:
    assert sent(ci, made).status_code == 200
    path, key = f"/v1/drafts/{OWNER_ROLE}/signatures", controller.repository.keys[OWNER_ROLE][0]
    good = signatures(made.draft, key)
    keyid = key.public_key.keyid
    drafting = controller.repository.drafting()
    later = replace(drafting, now=drafting.now + timedelta(days=1))
    other = signatures(signing.renew(later, OWNER_ROLE), key)["signatures"]
    stranger = new_key()
    foreign = [{"keyid": stranger.public_key.keyid, "sig": stranger.sign(made.draft.metadata.signed_bytes).signature}]
    refused = (422, "/problems/signature-refused")
    cases = [
        (good | {"signatures": other}, refused),
        (good | {"signatures": foreign}, refused),
        (good | {"signatures": [{"keyid": keyid, "sig": "zz"}]}, refused),
        (good | {"signatures": [{"keyid": keyid, "sig": "00" * 64}]}, refused),
        (good | {"signatures": [*good["signatures"], *foreign]}, refused),
        (good | {"document": "0" * 64}, OUTDATED),
        (good | {"signatures": good["signatures"] * 2}, (400, "/problems/invalid-request")),
        (good | {"signatures": []}, (400, "/problems/invalid-request")),
        (good | {"key": SECRET}, KEY),
        (good | {"signatures": [{"keyid": keyid, "sig": SECRET}]}, KEY),
    ]
    for body, refusal in cases:
        answer = ci.post(path, json=body)
        assert (answer.status_code, answer.json()["type"]) == refusal, answer.text
        assert ci.get(f"/v1/drafts/{OWNER_ROLE}").json()["missing"] == 1
    assert ci.post(path, json=good).json()["missing"] == 0
    assert ci.delete(f"/v1/drafts/{OWNER_ROLE}").status_code == 200
    assert ci.post(path, json=good).status_code == 404
