"""Next document of a role: versions, expiries, keys, and the keys that have to sign."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tuf.api.metadata import Root

from fleet.publisher import signing
from fleet.publisher.roles import ONLINE, ROOT, TARGETS, role_paths, signer_name, with_root_role
from fleet.publisher.settings import FleetSettings
from gateway.common.domain.errors import ConfigurationError
from tests.simulators.fleet_repository import FleetRepository, new_key


@pytest.fixture
def repository(tmp_path) -> FleetRepository:
    made = FleetRepository(tmp_path / "fleet")
    made.add_release("reader", "1")
    return made


def keys(count: int) -> list:
    return [new_key(f"k{i}").public_key for i in range(count)]


def test_a_repository_begins_with_root_two_of_three(repository: FleetRepository) -> None:
    root = repository.published.root.signed
    assert (root.roles[ROOT].threshold, len(root.roles[ROOT].keyids)) == (2, 3)
    assert root.consistent_snapshot
    assert repository.published.targets.signed.targets == {}


def test_every_kind_of_target_has_its_role(repository: FleetRepository) -> None:
    roles = repository.published.targets.signed.delegations.roles
    assert {name: role.paths for name, role in roles.items()} == {
        "profiles": ["profiles/*"],
        "policy": ["policy/*"],
        "director": ["assignments/*"],
        "models-acme": ["models/acme/*/*/*"],
    }
    assert all(role.terminating for role in roles.values())


@pytest.mark.parametrize(
    ("role", "days"), [("root", 365), ("targets", 180), ("models-acme", 180), ("snapshot", 7), ("timestamp", 1)]
)
def test_expiries_are_those_of_the_settings(repository: FleetRepository, role: str, days: int) -> None:
    published = repository.published
    online = {"snapshot": published.snapshot, "timestamp": published.timestamp}
    metadata = online.get(role) or published.document(role)
    assert metadata.signed.expires == (repository.now + timedelta(days=days)).replace(microsecond=0)
    assert signing.expiry_d(role, FleetSettings()) == days


def test_a_timestamp_holds_fourteen_days_at_most() -> None:
    assert FleetSettings(timestamp_expiry_d=14.0).timestamp_expiry_d == 14
    for days in (0.0, 14.1, -1.0):
        with pytest.raises(ConfigurationError, match="at most 14, not"):
            FleetSettings(timestamp_expiry_d=days)


def test_a_new_root_needs_the_old_keys_and_the_new_ones(repository: FleetRepository) -> None:
    new = [new_key(f"n{i}") for i in range(3)]
    (draft,) = signing.rotate(repository.drafting(), ROOT, [key.public_key for key in new], 3)
    assert (draft.metadata.signed.version, draft.missing) == (2, 5)
    for signer in new:
        draft = signing.signed_with(draft, signer)
    assert draft.missing == 2
    for signer in repository.keys[ROOT][1:]:
        draft = signing.signed_with(draft, signer)
    assert draft.missing == 0


def test_a_root_that_keeps_its_keys_needs_them_once(repository: FleetRepository) -> None:
    assert signing.renew(repository.drafting(), ROOT).missing == 2


@pytest.mark.parametrize("role", ONLINE)
def test_online_keys_change_by_a_new_root_alone(repository: FleetRepository, role: str) -> None:
    (draft,) = signing.rotate(repository.drafting(), role, keys(1), 1)
    assert draft.role == ROOT


def test_new_keys_of_an_owner_sign_its_releases_anew(repository: FleetRepository) -> None:
    targets, owner = signing.rotate(repository.drafting(), "models-acme", keys(3), 2)
    assert (targets.role, targets.missing, owner.role, owner.missing) == (TARGETS, 1, "models-acme", 2)
    assert owner.metadata.signed.version == 2
    assert owner.metadata.signed.targets == repository.owner_targets().signed.targets


def test_an_owner_without_releases_has_nothing_to_sign_anew(repository: FleetRepository) -> None:
    assert [draft.role for draft in signing.delegate(repository.drafting(), "models-new", keys(1), 1)] == [TARGETS]


def test_keys_that_nobody_uses_anymore_leave_the_targets(repository: FleetRepository) -> None:
    before = repository.keys["models-acme"][0].public_key.keyid
    repository.rotate("models-acme")
    assert before not in repository.published.targets.signed.delegations.keys


@pytest.mark.parametrize(("count", "threshold"), [(1, 0), (1, 2), (3, 4), (2, -1)])
def test_a_threshold_that_can_never_be_met_is_refused(repository: FleetRepository, count: int, threshold: int) -> None:
    for role in (ROOT, "timestamp", "models-acme"):
        with pytest.raises(ConfigurationError, match=f"needs {threshold} of {count} keys"):
            signing.rotate(repository.drafting(), role, keys(count), threshold)


def test_a_key_counts_once(repository: FleetRepository) -> None:
    (key,) = keys(1)
    with pytest.raises(ConfigurationError, match="named twice"):
        signing.rotate(repository.drafting(), ROOT, [key, key], 2)


@pytest.mark.parametrize("role", ["models-stranger", "nonsense", "", "models-", "models-a/b", "../root"])
def test_roles_that_are_not_there_cannot_be_rotated(repository: FleetRepository, role: str) -> None:
    with pytest.raises(ConfigurationError, match="there is no role"):
        signing.rotate(repository.drafting(), role, keys(1), 1)


@pytest.mark.parametrize("role", ["nonsense", "models-", "models-a/b", "models-*"])
def test_names_that_are_no_role_have_no_paths(role: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a role"):
        role_paths(role)


@pytest.mark.parametrize(("role", "said"), [("snapshot", "edge-fleet publish"), ("models-x", "nothing is published")])
def test_what_cannot_be_renewed_is_said(repository: FleetRepository, role: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        signing.renew(repository.drafting(), role)


def test_nothing_is_begun_twice(repository: FleetRepository) -> None:
    beginning = signing.Beginning(keys(3), keys(1), keys(1), keys(1))
    with pytest.raises(ConfigurationError, match="there is a repository here already"):
        signing.begin(repository.drafting(), beginning)


def test_decisions_leave_what_they_look_at_alone(repository: FleetRepository) -> None:
    drafting = repository.drafting()
    before = (drafting.published.root.to_bytes(), drafting.published.targets.to_bytes())
    signing.rotate(drafting, ROOT, keys(3), 2)
    signing.rotate(drafting, TARGETS, keys(2), 2)
    signing.delegate(drafting, "models-acme", keys(2), 2)
    signing.renew(drafting, ROOT)
    assert (drafting.published.root.to_bytes(), drafting.published.targets.to_bytes()) == before


def test_the_threshold_stays_where_none_is_named(repository: FleetRepository) -> None:
    drafting = repository.drafting()
    found = [drafting.threshold(role) for role in (ROOT, TARGETS, "models-acme", "models-new")]
    assert found == [2, 1, 1, None]


def test_a_key_without_a_name_is_called_by_its_id() -> None:
    key = new_key("ann").public_key
    assert signer_name(key) == "ann"
    key.unrecognized_fields.clear()
    assert signer_name(key) == key.keyid[:8]


def test_a_role_of_root_gets_exactly_the_keys_named() -> None:
    first, second = keys(2)
    root = with_root_role(with_root_role(Root(), ROOT, [first], 1), ROOT, [second], 1)
    assert (root.roles[ROOT].keyids, list(root.keys)) == ([second.keyid], [second.keyid])
