"""Rights of each role: the whole table, scopes, devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.access import RULES, Action, DeviceCaller, Reach, Role, TokenCaller, may

TAGS = st.frozensets(st.sampled_from(["a", "b", "c"]))
SELF = [action for action in Action if action.startswith("self.")]
READS = {
    Action.DEVICES_READ,
    Action.TELEMETRY_READ,
    Action.METRICS_READ,
    Action.RELEASES_READ,
    Action.ROLLOUTS_READ,
    Action.DRAFTS_READ,
}
OPERATES = {
    Action.DEVICES_LABEL, Action.DEVICES_ENROL, Action.DEVICES_REVOKE, Action.DIAGNOSTICS_ASK, Action.DIAGNOSTICS_READ,
    Action.DEVICES_SUSPEND, Action.DEVICES_WITHDRAW, Action.DEVICES_REMOVE,
    Action.ROLLOUTS_DRAFT, Action.ROLLOUTS_APPROVE, Action.ROLLOUTS_CONTROL, Action.PUBLISH,
}  # fmt: skip
PUBLISHES = {Action.ROLLOUTS_DRAFT, Action.DRAFTS_CHANGE}
ADMINISTERS = {Action.DRAFTS_KEYS, Action.UPLOADS_REMOVE, Action.TOKENS_READ, Action.TOKENS_CHANGE, Action.AUDIT_READ}
ALLOWED = {
    Role.VIEWER: READS,
    Role.OPERATOR: READS | OPERATES,
    Role.PUBLISHER: READS | PUBLISHES,
    Role.ADMIN: READS | OPERATES | PUBLISHES | ADMINISTERS,
}


def test_every_action_has_a_rule() -> None:
    assert set(RULES) == set(Action)


@pytest.mark.parametrize("role", Role)
def test_a_role_may_do_what_it_is_for_and_nothing_else(role: Role) -> None:
    assert {action for action in Action if may(TokenCaller("anna", role), action, ["a"])} == ALLOWED[role]


def test_a_refusal_says_what_is_needed() -> None:
    refused = may(TokenCaller("anna", Role.VIEWER), Action.DEVICES_REVOKE, ["a"])
    assert not refused
    assert refused.reason == "devices.revoke needs the role admin or operator; 'anna' is viewer"


@given(st.sampled_from(Role), TAGS, st.sampled_from(Action), st.none() | TAGS)
def test_a_scope_only_ever_takes_away(
    role: Role, scope: frozenset[str], action: Action, tags: frozenset[str] | None
) -> None:
    scoped = may(TokenCaller("anna", role, scope), action, tags)
    if scoped:
        assert may(TokenCaller("anna", role), action, tags)
        assert not scope or RULES[action].reach is Reach.SHARED or (tags and scope & tags)
    else:
        assert scoped.reason


@given(st.sampled_from(Role), TAGS, TAGS, TAGS)
def test_more_tags_on_a_device_never_lock_its_operator_out(role: Role, scope, tags, more) -> None:
    caller = TokenCaller("anna", role, scope)
    for action in Action:
        assert not may(caller, action, tags) or may(caller, action, tags | more)


def test_who_is_for_some_devices_cannot_reach_the_fleet_nor_widen_the_scope() -> None:
    caller = TokenCaller("anna", Role.ADMIN, frozenset({"a"}))
    fleet = [action for action in Action if RULES[action].reach is Reach.FLEET]
    assert {Action.TOKENS_CHANGE, Action.DEVICES_LABEL, Action.AUDIT_READ} <= set(fleet)
    for action in fleet:
        assert "whole fleet" in may(caller, action, ["a"]).reason
    assert "whole fleet" in may(caller, Action.DEVICES_REVOKE).reason
    assert "no tag" in may(caller, Action.DEVICES_REVOKE, ["b"]).reason
    assert may(caller, Action.DEVICES_REVOKE, ["b", "a"])


@given(st.sampled_from(Action), st.text(min_size=1, max_size=8), st.text(min_size=1, max_size=8))
def test_a_device_sees_itself_only(action: Action, own: str, other: str) -> None:
    answer = may(DeviceCaller(own), action, device=other)
    assert bool(answer) == (action in SELF and own == other)
    assert bool(answer.reason) != bool(answer)


@pytest.mark.parametrize("action", SELF)
def test_no_token_speaks_for_a_device(action: Action) -> None:
    assert "for devices" in may(TokenCaller("anna", Role.ADMIN), action, ["a"], device="camera-1").reason
