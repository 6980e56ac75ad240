"""Whatever bytes come: a document that means the same as before, or `Distrust`; never another exception."""

from __future__ import annotations

import copy
import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from securesystemslib.formats import encode_canonical
from tuf.api.metadata import DelegatedRole, Delegations, Metadata, Root, TargetFile, Targets

from gateway.common.domain.activation import Activation
from gateway.common.domain.assignment import Assignment, Target
from gateway.common.domain.manifest import Artifact
from gateway.common.domain.signed_release import SignedRelease, release_bytes
from gateway.common.trust.assignment import DIRECTOR, verify_assignment
from gateway.common.trust.chain import Chain
from gateway.common.trust.distrust import Distrust, Reason
from gateway.common.trust.floors import keys_of
from gateway.common.trust.reading import read_metadata
from gateway.common.trust.settings import DEFAULTS
from gateway.common.trust.targets import check_offer, check_target, floor_of
from tests.simulators.assignment_document import sign_assignment
from tests.simulators.fleet_repository import new_key

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)
KEY = new_key()
PATH = "models/acme/reader/2/release"
RELEASE = SignedRelease("acme", "reader", "2", "1", NOW, Artifact("manifest.toml", "ab" * 32, 7), None, ())
CONTENT = release_bytes(RELEASE)
TARGET = Target(PATH, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
ASSIGNMENT = Assignment("device-1", 5, NOW, NOW + timedelta(days=1), {"reader": TARGET}, (), "n-1", 60.0, {"wave": [1]})
FILE = TargetFile(TARGET.size_bytes, {"sha256": TARGET.sha256}, PATH, {"custom": {"floor": "1"}})
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS | st.sampled_from(["root", "targets", "sha256", PATH, "9999-12-31T23:59:59Z", "\ud800", 2**64]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


def signed(metadata: Metadata[Any]) -> bytes:
    metadata.sign(KEY)
    return metadata.to_bytes()


def documents() -> dict[str, bytes]:
    """Return root, targets, and the owner's role, each signed by one and the same key."""
    root, public = Root(expires=NOW), {KEY.public_key.keyid: KEY.public_key}
    for role in ("root", "targets", "snapshot", "timestamp"):
        root.add_key(KEY.public_key, role)
    named = {"models-acme": "models/acme/*/*/*", DIRECTOR: "assignments/*"}
    delegated = {
        name: DelegatedRole(name, list(public), 1, terminating=True, paths=[paths]) for name, paths in named.items()
    }
    targets = Targets(expires=NOW, delegations=Delegations(public, delegated))
    owner = Targets(expires=NOW, targets={PATH: FILE})
    return {name: signed(Metadata(each)) for name, each in (("root", root), ("targets", targets), ("owner", owner))}


DOCUMENTS = documents()
DIRECTOR_OF: Targets = Metadata[Targets].from_bytes(DOCUMENTS["targets"]).signed
ASSIGNED = sign_assignment(ASSIGNMENT, KEY)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a JSON document."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path] * bool(path) + [place for key, value in inner for place in places(value, (*path, key))]


def changed(data: st.DataObject, content: bytes, *, within: str = "") -> bytes:
    """Replace, remove or add something in the document; return it, signed again by KEY where it is `within` signed."""
    document = json.loads(content)
    for _ in range(data.draw(st.integers(1, 3))):
        everywhere = [place for place in places(document) if not within or place[0] == within]
        if not everywhere:
            break
        *way, last = data.draw(st.sampled_from(everywhere))
        holder = document
        for key in way:
            holder = holder[key]
        what = data.draw(st.sampled_from(["replace", "remove", "add"]))
        if what == "replace" or isinstance(holder, list):
            holder[last] = data.draw(VALUES)
        elif what == "remove":
            del holder[last]
        else:
            holder[data.draw(st.text(max_size=4))] = data.draw(VALUES)
    return json.dumps(_sign(document) if within else document).encode()


def _sign(document: Any) -> Any:
    try:
        payload = (encode_canonical(document.get("signed")) or "").encode()
    except Exception:  # noqa: BLE001  what cannot be signed keeps its old signature
        return document
    return document | {"signatures": [KEY.sign(payload).to_dict()]}


@st.composite
def spoilt(draw: st.DrawFn, content: bytes) -> bytes:
    """Exchange, cut out or insert some bytes."""
    start = draw(st.integers(0, len(content)))
    end = draw(st.integers(start, min(start + 8, len(content))))
    return content[:start] + draw(st.binary(max_size=8)) + content[end:]


def accepted(content: bytes) -> Assignment | None:
    try:
        return verify_assignment(content, DIRECTOR_OF, device="device-1", now=NOW, last_version=1)
    except Distrust:
        return None


@given(spoilt(ASSIGNED))
def test_spoilt_bytes_mean_the_same_or_nothing(content: bytes) -> None:
    found = accepted(content)
    assert found == ASSIGNMENT or (found is None and content != ASSIGNED)


@given(st.data())
def test_a_changed_document_means_the_same_or_nothing(data: st.DataObject) -> None:
    assert accepted(changed(data, ASSIGNED)) in (None, ASSIGNMENT)


@given(st.data())
def test_the_director_may_sign_what_it_likes(data: st.DataObject) -> None:
    """A thief of its key signs any document: refused, or an assignment of what the owner signed."""
    assignment = accepted(changed(data, ASSIGNED, within="signed"))
    if assignment is None:
        return
    assert assignment.device == "device-1"
    assert assignment.issued < assignment.expires
    assert type(assignment.version) is int
    try:
        for target in assignment.slots.values():
            check_offer(target, {PATH: FILE}.get(target.path), lambda owner, model: "1")
        for target in assignment.files:
            check_target(target, {PATH: FILE}.get(target.path))
    except Distrust:
        return
    assert set(assignment.slots.values()) <= {TARGET}


def verified(contents: dict[str, bytes]) -> SignedRelease | None:
    blobs = {hashlib.sha256(content).hexdigest(): content for content in (*contents.values(), CONTENT)}
    digests = [hashlib.sha256(contents[name]).hexdigest() for name in ("targets", "owner")]
    activation = Activation("reader", PATH, TARGET.sha256, (), tuple(digests), 1)
    try:
        return Chain(contents["root"], (), blobs.__getitem__).activation(activation)
    except Distrust:
        return None


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
@given(st.data())
def test_changed_evidence_means_the_same_or_nothing(name: str, data: st.DataObject) -> None:
    assert verified(DOCUMENTS) == RELEASE
    contents = DOCUMENTS | {name: changed(data, DOCUMENTS[name])}
    assert verified(contents) in (None, RELEASE)


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
@given(st.data())
def test_offline_keys_may_sign_nonsense(name: str, data: st.DataObject) -> None:
    """Verified or refused: the daemon does not fall over an owner's mistake."""
    content = changed(data, DOCUMENTS[name], within="signed")
    assert verified(DOCUMENTS | {name: content}) in (None, RELEASE)
    try:
        role = read_metadata(content, Targets, "it", len(content)).signed
        floor_of(role, "acme", "reader")
        verify_assignment(ASSIGNED, role, device="device-1", now=NOW)
        keys_of(role, DIRECTOR)
    except Distrust:
        pass


def refused(content: bytes, limit_bytes: int = DEFAULTS.metadata_limit_bytes) -> Reason:
    with pytest.raises(Distrust) as caught:
        read_metadata(content, Targets, "the document", limit_bytes)
    return caught.value.reason


OWNER = DOCUMENTS["owner"].decode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", Reason.DAMAGED),
        (b"null", Reason.DAMAGED),
        (b"[]", Reason.DAMAGED),
        (b"{}", Reason.DAMAGED),
        (b"\xff\xfe{\x00}\x00", Reason.DAMAGED),
        (b"[" * 100_000, Reason.DAMAGED),
        (b'{"a":' * 100_000, Reason.DAMAGED),
        (b"9" * 100_000, Reason.DAMAGED),
        (OWNER.encode("utf-16"), Reason.DAMAGED),
        (DOCUMENTS["root"], Reason.DAMAGED),
        (OWNER.replace('"version":1', '"version":1.0').encode(), Reason.DAMAGED),
        (OWNER.replace('"version":1', '"version":1e0').encode(), Reason.DAMAGED),
        (OWNER.replace('"version":1', '"version":NaN').encode(), Reason.DAMAGED),
        (OWNER.replace('"version":1', '"version":Infinity').encode(), Reason.DAMAGED),
        (OWNER.replace('"version":1', '"version":true').encode(), Reason.DAMAGED),
        (OWNER.replace('"version":1', f'"version":{2**53}').encode(), Reason.DAMAGED),
        (OWNER.replace('"version":1', '"version":1,"version":1').encode(), Reason.DAMAGED),
        (OWNER.replace('"floor":"1"', '"floor":"\\ud800"').encode(), Reason.DAMAGED),
        (OWNER.replace('"floor":"1"', f'"floor":{"[" * 32}{"]" * 32}').encode(), Reason.TOO_LARGE),
    ],
)
def test_what_is_no_document(content: bytes, reason: Reason) -> None:
    assert refused(content) is reason


def test_a_document_of_a_byte_too_many() -> None:
    content = DOCUMENTS["owner"]
    assert refused(content, len(content) - 1) is Reason.TOO_LARGE
    assert read_metadata(content, Targets, "the document", len(content)).signed.targets == {PATH: FILE}


@settings(max_examples=20)
@given(st.integers(1, 40))
def test_nesting_is_counted(depth: int) -> None:
    document = copy.deepcopy(json.loads(OWNER))
    inner: Any = "x"
    for _ in range(depth):
        inner = [inner]
    document["deep"] = inner
    content = json.dumps(document).encode()
    if depth + 1 > DEFAULTS.nesting_limit:
        assert refused(content) is Reason.TOO_LARGE
    else:
        assert read_metadata(content, Targets, "the document", len(content))
