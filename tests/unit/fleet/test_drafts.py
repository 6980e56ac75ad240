"""Drafts: what travels comes back as it was; signatures of several holders join; what is shown is what is signed."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.publisher import signing
from fleet.publisher.drafts import Draft, draft_bytes, merged, read_draft
from fleet.publisher.releases import target_of
from fleet.publisher.roles import PROFILES
from gateway.common.domain.errors import ConfigurationError
from tests.simulators.fleet_repository import FleetRepository, new_key

HOLDERS = 4


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> FleetRepository:
    made = FleetRepository(tmp_path_factory.mktemp("fleet"))
    made.add_owner("team", keys=HOLDERS, threshold=3)
    made.add_release("reader", "1")
    return made


@pytest.fixture(scope="module")
def draft(repository: FleetRepository) -> Draft:
    """Return a draft of an owner with four keys, of which three must sign."""
    target = target_of("models/team/reader/1/release", b"{}", {"floor": "1"})
    return signing.add_targets(repository.drafting(), "models-team", [(target, b"{}")])


@pytest.mark.parametrize("role", ["root", "targets", "models-acme"])
def test_a_draft_comes_back_as_it_was(repository: FleetRepository, role: str) -> None:
    made = signing.renew(repository.drafting(), role)
    signed = signing.signed_with(made, repository.keys[role][0])
    for each in (made, signed):
        assert draft_bytes(read_draft(draft_bytes(each), "x")) == draft_bytes(each)
        assert read_draft(draft_bytes(each), "x") == each


@given(st.lists(st.lists(st.integers(0, HOLDERS - 1), max_size=3), max_size=4))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_signatures_join_in_any_order(repository: FleetRepository, draft: Draft, copies: list[list[int]]) -> None:
    joined = draft
    for signers in copies:
        returned = draft
        for number in signers:
            returned = signing.signed_with(returned, repository.keys["models-team"][number])
        joined = merged(joined, read_draft(draft_bytes(returned), "x"))
    signed = {number for signers in copies for number in signers}
    assert joined.missing == max(0, 3 - len(signed))
    assert len(joined.metadata.signatures) == len(signed)


def test_a_spoilt_signature_does_not_replace_a_valid_one(repository: FleetRepository, draft: Draft) -> None:
    signed = signing.signed_with(draft, repository.keys["models-team"][0])
    spoilt = read_draft(draft_bytes(signed), "x")
    next(iter(spoilt.metadata.signatures.values())).signature = "00" * 64
    assert merged(signed, spoilt).missing == 2
    assert merged(spoilt, signed).missing == 2
    assert merged(spoilt, spoilt).metadata.signatures == {}


def test_another_document_is_not_merged(repository: FleetRepository, draft: Draft) -> None:
    other = signing.renew(repository.drafting(), "models-acme")
    with pytest.raises(ConfigurationError, match="is not the draft of models-team that waits here"):
        merged(draft, other)


def test_a_stranger_has_no_say(draft: Draft) -> None:
    with pytest.raises(ConfigurationError, match="cannot sign models-team"):
        signing.signed_with(draft, new_key())


def test_a_document_other_than_the_one_signed_is_not_shown(draft: Draft) -> None:
    document = json.loads(draft_bytes(draft))
    document["documents"]["models/team/reader/1/release"] = '{"friendly": true}'
    with pytest.raises(ConfigurationError, match=r"shows another .* do not sign it"):
        read_draft(json.dumps(document).encode(), "x")


def test_content_of_targets_that_are_not_signed_is_not_shown(draft: Draft) -> None:
    document = json.loads(draft_bytes(draft))
    document["documents"]["models/team/reader/9/release"] = "{}"
    with pytest.raises(ConfigurationError, match="do not sign it"):
        read_draft(json.dumps(document).encode(), "x")


@given(st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_damage_makes_reading_stumble(draft: Draft, data: st.DataObject) -> None:
    content = draft_bytes(draft)
    start = data.draw(st.integers(0, len(content) - 1))
    end = data.draw(st.integers(start, min(len(content), start + 40)))
    spoilt = content[:start] + data.draw(st.binary(max_size=20)) + content[end:]
    with suppress(ConfigurationError):
        read_draft(spoilt, "x")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"null", b'"x"', b"\xff", b'{"schema": 2}', b"[" * 100_000])
def test_what_is_no_draft_is_said(content: bytes) -> None:
    with pytest.raises(ConfigurationError, match="is no draft that can be read"):
        read_draft(content, "x")


def test_what_could_not_be_signed_is_no_draft(draft: Draft) -> None:
    document = json.loads(draft_bytes(draft))
    document["metadata"]["signed"]["x-note"] = "\ud800"
    with pytest.raises(ConfigurationError, match="is no draft that can be read"):
        read_draft(json.dumps(document).encode(), "draft.json")


def test_roles_and_kinds_must_agree(repository: FleetRepository) -> None:
    document = json.loads(draft_bytes(signing.renew(repository.drafting(), "targets")))
    document["role"] = "root"
    with pytest.raises(ConfigurationError, match="its document of another kind"):
        read_draft(json.dumps(document).encode(), "x")


@pytest.mark.parametrize("role", ["../../escape", "models-a/b", "snapshot", "timestamp", "nobody", ""])
def test_a_draft_is_of_a_role_that_people_sign(repository: FleetRepository, role: str) -> None:
    document = json.loads(draft_bytes(signing.renew(repository.drafting(), "models-acme")))
    document["role"] = role
    with pytest.raises(ConfigurationError, match="is no draft that can be read"):
        read_draft(json.dumps(document).encode(), "x")


@pytest.mark.parametrize(
    ("path", "hashes", "said"),
    [
        ("models/acme/../../release", {"sha256": "ab" * 32}, "is not a target's path"),
        ("/etc/passwd", {"sha256": "ab" * 32}, "is not a target's path"),
        ("models/acme/x/1/release", {"sha512": "ab" * 64}, "has no sha256 digest"),
        ("models/acme/x/1/release", {"sha256": "../../x"}, "has no sha256 digest"),
    ],
)
def test_targets_that_could_be_no_file_are_refused(
    repository: FleetRepository, path: str, hashes: dict[str, str], said: str
) -> None:
    document = json.loads(draft_bytes(signing.renew(repository.drafting(), "models-acme")))
    document["metadata"]["signed"]["targets"][path] = {"length": 1, "hashes": hashes}
    with pytest.raises(ConfigurationError, match=said):
        read_draft(json.dumps(document).encode(), "x")


def test_a_new_draft_keeps_what_the_one_before_added(repository: FleetRepository, tmp_path: Path) -> None:
    drafting = repository.drafting()
    first = signing.add_targets(drafting, PROFILES, [(target_of("profiles/a.toml", b"a"), b"a")])
    later = signing.Drafting(drafting.published, {PROFILES: first}, drafting.now)
    second = signing.add_targets(later, PROFILES, [(target_of("profiles/b.toml", b"b"), b"b")])
    assert sorted(second.metadata.signed.targets) == ["profiles/a.toml", "profiles/b.toml"]
    assert sorted(second.documents) == ["profiles/a.toml", "profiles/b.toml"]
    assert second.metadata.signed.version == 1
