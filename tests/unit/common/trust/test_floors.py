"""Floors by key: nothing that the present keys could show again is older than what they showed."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuf.api.metadata import Root, Targets

from gateway.common.trust.distrust import Distrust, Reason
from gateway.common.trust.floors import RoleKeys, check_role_floor, floor_name, keys_of, raised_floors, role_floor
from tests.simulators.fleet_repository import new_key

NAMES = "abcd"
KEYS = st.sets(st.sampled_from(NAMES), min_size=1)
LEAP = 2**53 - 1


def role_keys(keyids: str, threshold: int = 1) -> RoleKeys:
    return RoleKeys(frozenset(keyids), threshold)


def refused(version: int, keys: RoleKeys, floors: dict[str, int]) -> bool:
    with pytest.raises(Distrust) if version < role_floor("timestamp", keys, floors) else nullcontext() as caught:
        check_role_floor("timestamp", version, keys, floors)
    return caught is not None and caught.value.reason is Reason.REPLAYED


@given(st.lists(st.tuples(KEYS, st.integers(1, 20)), max_size=12), KEYS, st.data())
def test_what_the_present_keys_signed_before_never_falls(
    shown: list[tuple[set[str], int]], present: set[str], data: st.DataObject
) -> None:
    threshold = data.draw(st.integers(1, len(present)))
    floors: dict[str, int] = {}
    for signers, version in shown:
        raised = raised_floors("timestamp", version, signers, floors)
        assert all(floors.get(name, 0) < value for name, value in raised.items())
        floors |= raised
    keys = RoleKeys(frozenset(present), threshold)
    verifiable = [version for signers, version in shown if len(signers & present) >= threshold]
    floor = role_floor("timestamp", keys, floors)
    assert floor >= max(verifiable, default=0)
    assert not refused(max(floor, 1), keys, floors)
    assert all(refused(version, keys, floors) for version in range(1, floor))


@given(KEYS, KEYS, st.integers(1, 4))
def test_who_holds_too_few_of_the_keys_that_remain_has_raised_nothing(
    thief: set[str], present: set[str], threshold: int
) -> None:
    floors = raised_floors("timestamp", 7, NAMES, {})
    floors |= raised_floors("timestamp", LEAP, thief, floors)
    threshold = min(threshold, len(present))
    floor = role_floor("timestamp", RoleKeys(frozenset(present), threshold), floors)
    assert floor == (LEAP if len(thief & present) >= threshold else 7)


def test_a_rotation_recovers_from_a_leap() -> None:
    floors = raised_floors("timestamp", LEAP, "a", {})
    assert refused(8, role_keys("a"), floors)
    assert refused(8, role_keys("ab"), floors)  # the stolen key may still sign
    assert not refused(8, role_keys("b"), floors)


def test_one_of_two_stolen_keys_may_stay_where_both_must_sign() -> None:
    floors = {floor_name("timestamp", key): LEAP for key in "ab"} | {floor_name("timestamp", "c"): 11}
    assert not refused(11, role_keys("bcd", 2), floors)
    assert refused(10, role_keys("bcd", 2), floors)
    assert refused(12, role_keys("abd", 2), floors)


def test_roles_do_not_share_floors() -> None:
    floors = raised_floors("snapshot", 9, "a", {})
    assert role_floor("timestamp", role_keys("a"), floors) == 0


@pytest.mark.parametrize("version", [0, -1, LEAP + 1, True, "7", None])
def test_what_is_no_version_is_refused(version: int) -> None:
    with pytest.raises(Distrust) as caught:
        check_role_floor("timestamp", version, role_keys("a"), {})
    assert caught.value.reason is Reason.DAMAGED


def test_the_keys_of_a_role() -> None:
    root, key = Root(), new_key().public_key
    root.add_key(key, "timestamp")
    assert keys_of(root, "timestamp") == RoleKeys(frozenset({key.keyid}), 1)
    for delegator in (root, Targets()):
        with pytest.raises(Distrust, match="no key is named"):
            keys_of(delegator, "models-acme")
