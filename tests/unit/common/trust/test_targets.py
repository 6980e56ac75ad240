"""Roles that may sign a target, in which order they are asked, and what an owner still allows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuf.api.metadata import DelegatedRole, Delegations, TargetFile, Targets

from gateway.common.domain.assignment import Target
from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.domain.routing import version_order
from gateway.common.trust.distrust import Distrust, Reason
from gateway.common.trust.paths import check_path, is_file, release_path
from gateway.common.trust.settings import TrustSettings
from gateway.common.trust.targets import Role, check_target, find_target, floor_of
from tests.simulators.constants import settings_with

PATH = "models/acme/reader/2/release"
FILE = TargetFile(3, {"sha256": "ab" * 32}, PATH)


def delegating(*roles: tuple[str, str, bool], signs: bool = False) -> Targets:
    """Return a role that delegates to (name, pattern, terminating), and perhaps signs PATH itself."""
    named = {name: DelegatedRole(name, [], 1, terminating=ends, paths=[pattern]) for name, pattern, ends in roles}
    return Targets(targets={PATH: FILE} if signs else {}, delegations=Delegations({}, named))


SIGNING = delegating(signs=True)


def asked(**roles: Targets | None) -> tuple[Role, list[tuple[str, str]]]:
    """Return a repository of these roles, and a list of who is asked for in which order."""
    order: list[tuple[str, str]] = []

    def role(name: str, delegator: str) -> Targets | None:
        order.append((name, delegator))
        return roles[name]

    return role, order


def test_the_roles_that_lead_to_a_target() -> None:
    top = delegating(("director", "assignments/*", True), ("acme", "models/acme/*/*/*", True))
    role, order = asked(targets=top, acme=delegating(("team", "models/acme/reader/*/*", False)), team=SIGNING)
    assert find_target(PATH, role) == (("targets", "acme", "team"), FILE)
    assert order == [("targets", "root"), ("acme", "targets"), ("team", "acme")]


def test_the_search_is_depth_first_in_the_order_of_delegation() -> None:
    top = delegating(("a", "models/*/*/*/*", False), ("b", "models/*/*/*/*", False), ("c", "models/*/*/*/*", False))
    role, order = asked(targets=top, a=delegating(("d", "models/*/*/*/*", False)), d=delegating(), b=SIGNING, c=SIGNING)
    assert find_target(PATH, role) == (("targets", "b"), FILE)
    assert [name for name, _ in order] == ["targets", "a", "d", "b"]


def test_after_a_terminating_role_nobody_is_asked() -> None:
    top = delegating(("a", "models/*/*/*/*", True), ("b", "models/*/*/*/*", False))
    role, _ = asked(targets=top, a=delegating(), b=SIGNING)
    assert find_target(PATH, role) is None
    inner = delegating(("c", "models/*/*/*/*", True))
    role, _ = asked(
        targets=delegating(("a", "models/*/*/*/*", False), ("b", "models/*/*/*/*", False)),
        a=inner,
        b=SIGNING,
        c=delegating(),
    )
    assert find_target(PATH, role) is None


def test_what_targets_signs_itself_has_no_owner() -> None:
    role, _ = asked(targets=SIGNING)
    assert find_target(PATH, role) is None


def test_a_role_without_metadata_is_passed_by() -> None:
    top = delegating(("a", "models/*/*/*/*", False), ("b", "models/*/*/*/*", False))
    role, _ = asked(targets=top, a=None, b=SIGNING)
    assert find_target(PATH, role) == (("targets", "b"), FILE)


def test_roles_that_delegate_to_each_other_end() -> None:
    pattern = "models/*/*/*/*"
    circle = asked(
        targets=delegating(("a", pattern, False)),
        a=delegating(("b", pattern, False)),
        b=delegating(("a", pattern, False)),
    )
    assert find_target(PATH, circle[0]) is None
    assert len(circle[1]) == 4  # a is asked for as targets names it, and as b does
    wide = delegating(*((f"r{number}", pattern, False) for number in range(50)))
    role, order = asked(targets=wide, **{f"r{number}": delegating() for number in range(50)})
    assert find_target(PATH, role, settings_with(TrustSettings(), delegations_limit=9)) is None
    assert len(order) == 9


def test_a_path_that_is_not_understood_is_looked_up_nowhere() -> None:
    role, order = asked(targets=delegating(("acme", "models/acme/*/*/*", True)))
    with pytest.raises(Distrust) as caught:
        find_target("models/acme/../2/release", role)
    assert caught.value.reason is Reason.BAD_PATH
    assert not order


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, Reason.UNSIGNED),
        (TargetFile(4, FILE.hashes, PATH), Reason.SWAPPED),
        (TargetFile(3, {"sha256": "cd" * 32}, PATH), Reason.SWAPPED),
        (TargetFile(3, {"sha512": "ab" * 32}, PATH), Reason.SWAPPED),
    ],
)
def test_a_target_is_as_it_is_signed(found: TargetFile | None, reason: Reason) -> None:
    target = Target(PATH, 3, "ab" * 32)
    check_target(target, FILE)
    with pytest.raises(Distrust) as caught:
        check_target(target, found)
    assert caught.value.reason is reason


def owner(**floors: Any) -> Targets:
    """Return acme's role, with a release of `reader` for each version and its floor."""
    files = {
        f"models/acme/reader/{version[1:]}/release": TargetFile(1, {"sha256": "ab"}, "x", {"custom": {"floor": floor}})
        for version, floor in floors.items()
    }
    return Targets(targets=files)


@pytest.mark.parametrize(
    ("floors", "persisted", "expected"),
    [
        ({}, "", ""),
        ({}, "3", "3"),
        ({"v9": "2", "v10": "9"}, "", "9"),
        ({"v9": "2", "v10": "10"}, "9", "10"),
        ({"v9": "2"}, "10", "10"),
        ({"v2": "2-rc1"}, "2", "2"),
    ],
)
def test_the_floor_is_the_greatest_of_all(floors: dict[str, str], persisted: str, expected: str) -> None:
    assert floor_of(owner(**floors), "acme", "reader", persisted) == expected


def test_other_models_and_releases_without_a_floor_set_none() -> None:
    role = owner(v1="1")
    role.targets["models/acme/reader2/9/release"] = TargetFile(1, {"sha256": "ab"}, "x", {"custom": {"floor": "9"}})
    role.targets["models/acme/reader/2/release"] = TargetFile(1, {"sha256": "ab"}, "x")
    role.targets["models/acme/reader/3/release"] = TargetFile(1, {"sha256": "ab"}, "x", {"custom": [1]})
    assert floor_of(role, "acme", "reader") == "1"


@pytest.mark.parametrize("floor", [2, None, "", "../1", ["1"], "1" * 200])
def test_a_floor_that_is_no_version(floor: object) -> None:
    with pytest.raises(Distrust) as caught:
        floor_of(owner(v2=floor), "acme", "reader")
    assert caught.value.reason is Reason.DAMAGED


@given(st.lists(st.from_regex(NAME_PATTERN, fullmatch=True), max_size=5), st.from_regex(NAME_PATTERN, fullmatch=True))
def test_a_floor_never_falls(floors: list[str], persisted: str) -> None:
    found = floor_of(owner(**{f"v{n}": floor for n, floor in enumerate(floors)}), "acme", "reader", persisted)
    assert all(version_order(found) >= version_order(floor) for floor in (*floors, persisted))


@given(st.text(max_size=12) | st.from_regex(r"(models|profiles|policy)(/[a-z.]{0,3}){0,5}(/release)?", fullmatch=True))
def test_every_path_is_understood_or_refused(path: str) -> None:
    try:
        check_path(path)
    except Distrust as error:
        assert error.reason is Reason.BAD_PATH  # noqa: PT017  any other exception fails the test
        return
    assert ".." not in path.split("/")
    assert is_file(path) or release_path(path).owner == path.split("/")[1]
