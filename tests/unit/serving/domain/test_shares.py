"""Shares of a bounded resource: what no sequence of takes and returns may break."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from gateway.serving.domain.shares import RefusalReason, ResourceUse, ShareBounds, caller_class, caller_key, network_key

BOUNDS = ShareBounds(total=20, reserve=5, share=8, network=9)
CALLERS = {"user:1": True, "loopback:127.0.0.1": True, "address:192.0.2.1": False, "address:192.0.2.2": False}
"""Callers; true if it is on this device."""
Taken = tuple[str, int]


class AnySequence(RuleBasedStateMachine):
    """State machine that takes and returns in any order, against a list of what is held."""

    takes = Bundle("takes")

    def __init__(self) -> None:
        super().__init__()
        self.shares = ResourceUse(BOUNDS)
        self.taken: list[Taken] = []

    @rule(target=takes, key=st.sampled_from(sorted(CALLERS)), amount=st.integers(1, 9))
    def take(self, key: str, amount: int) -> object:
        before, held = self.shares.used, self.shares.held(key)
        refusal = self.shares.take(key, local=CALLERS[key], amount=amount)
        if refusal is not None:
            assert (self.shares.used, self.shares.held(key)) == (before, held)
            self.must_be_refused(key, amount, refusal)
            return multiple()
        self.taken.append((key, amount))
        return (key, amount)

    def must_be_refused(self, key: str, amount: int, refusal: RefusalReason) -> None:
        free = BOUNDS.total - sum(each for _, each in self.taken)
        remote = sum(each for who, each in self.taken if not CALLERS[who])
        why = {
            RefusalReason.CALLER: sum(each for who, each in self.taken if who == key) + amount > BOUNDS.share,
            RefusalReason.TOTAL: amount > free,
            RefusalReason.NETWORK: self.network_units(key) + amount > BOUNDS.network,
            RefusalReason.RESERVE: (not CALLERS[key] and remote + amount > BOUNDS.total - 2 * BOUNDS.reserve)
            or self.anonymous_units() + amount > BOUNDS.total - BOUNDS.reserve,
        }
        assert why[refusal]

    def network_units(self, key: str) -> int:
        return sum(each for who, each in self.taken if network_key(who) == network_key(key))

    def anonymous_units(self) -> int:
        return sum(each for who, each in self.taken if network_key(who))

    @rule(taken=consumes(takes))
    def give(self, taken: Taken) -> None:
        key, amount = taken
        self.taken.remove(taken)
        self.shares.give(key, local=CALLERS[key], amount=amount)

    @invariant()
    def never_over_the_total_nor_the_reserve(self) -> None:
        assert self.shares.used == sum(amount for _, amount in self.taken) <= BOUNDS.total
        assert self.shares.remote <= BOUNDS.total - 2 * BOUNDS.reserve
        assert self.shares.anonymous == self.anonymous_units() <= BOUNDS.total - BOUNDS.reserve
        assert all(self.network_units(key) <= BOUNDS.network for key in CALLERS if network_key(key))

    @invariant()
    def never_over_a_share_and_nothing_is_remembered_of_those_who_have_nothing(self) -> None:
        for key in CALLERS:
            assert self.shares.held(key) == sum(amount for who, amount in self.taken if who == key) <= BOUNDS.share
        taken = {key for key, _ in self.taken}
        assert set(self.shares._by_caller) == taken | {network_key(key) for key in taken if network_key(key)}


TestAnySequence = AnySequence.TestCase


def test_the_reserve_is_left_to_callers_on_this_device() -> None:
    shares = ResourceUse(ShareBounds(total=4, reserve=1, share=3, network=3))
    assert [shares.take("address:192.0.2.1", local=False) for _ in range(2)] == [None] * 2
    assert shares.take("address:192.0.2.2", local=False) is RefusalReason.RESERVE
    assert shares.take("token:a", local=False) is None
    assert shares.take("token:a", local=False) is RefusalReason.RESERVE
    assert shares.take("user:1", local=True) is None
    assert shares.take("user:1", local=True) is RefusalReason.TOTAL


def test_addresses_of_one_network_have_a_share_together() -> None:
    shares = ResourceUse(ShareBounds.of(20, caller_percent=25, network_percent=50, local_percent=5))
    for number in range(1, 11):
        assert shares.take(f"loopback:127.0.0.{number}", local=True) is None
    assert shares.take("loopback:127.0.0.11", local=True) is RefusalReason.NETWORK
    assert shares.take("user:1", local=True) is None
    assert [shares.take(f"address:192.0.2.{number}", local=False) for number in range(8)] == [None] * 8
    assert shares.take("address:198.51.100.1", local=False) is None
    assert shares.take("address:198.51.100.1", local=False) is RefusalReason.TOTAL


@pytest.mark.parametrize(
    ("key", "network"),
    [
        ("token:a", ""),
        ("user:1", ""),
        ("certificate:192.0.2.1", ""),
        ("loopback:127.9.9.9", "network:loopback"),
        ("loopback:::1", "network:loopback"),
        ("address:192.0.2.77", "network:192.0.2.0/24"),
        ("address:2001:db8:0:1::/64", "network:2001:db8:0:1::/64"),
        ("anonymous", "network:"),
    ],
)
def test_an_anonymous_caller_has_a_network(key: str, network: str) -> None:
    assert network_key(key) == network


def test_a_caller_that_took_nothing_may_return_nothing() -> None:
    shares = ResourceUse(BOUNDS)
    shares.give("user:1", local=True, amount=0)
    assert (shares.used, shares.held("user:1")) == (0, 0)


def test_what_is_in_use_already_is_counted_beyond_the_bounds() -> None:
    shares = ResourceUse(ShareBounds(total=4, reserve=1, share=3, network=3))
    shares.add("address:192.0.2.1", local=False, amount=10)
    assert shares.refusal("address:192.0.2.1", local=False) is RefusalReason.CALLER
    shares.give("address:192.0.2.1", local=False, amount=10)
    assert shares.refusal("address:192.0.2.1", local=False) is None


@given(st.integers(1, 2**40), st.integers(1, 100), st.integers(0, 99))
def test_a_division_leaves_something_to_everybody(total: int, caller_percent: int, local_percent: int) -> None:
    bounds = ShareBounds.of(total, caller_percent=caller_percent, local_percent=local_percent)
    assert 1 <= bounds.share <= bounds.total == total
    assert 0 <= bounds.reserve < total


@pytest.mark.parametrize(
    ("identity", "key", "kind"),
    [
        ({"token": "north", "address": "192.0.2.1"}, "token:north", "token"),
        ({"certificate": "gate", "address": "192.0.2.1"}, "certificate:gate", "certificate"),
        ({"uid": 0}, "user:0", "user"),
        ({"address": "127.0.0.2"}, "loopback:127.0.0.2", "loopback"),
        ({"address": "::1"}, "loopback:::1", "loopback"),
        ({"address": "::ffff:127.0.0.1"}, "loopback:127.0.0.1", "loopback"),
        ({"address": "192.0.2.1"}, "address:192.0.2.1", "address"),
        ({"address": "::ffff:192.0.2.1"}, "address:192.0.2.1", "address"),
        ({"address": "2001:db8:0:1:2:3:4:5"}, "address:2001:db8:0:1::/64", "address"),
        ({"address": "fe80::1%eth0"}, "address:fe80::/64", "address"),
        ({"address": "no address"}, "address:no address", "address"),
        ({}, "anonymous", "anonymous"),
    ],
)
def test_the_strongest_identity_names_the_caller(identity: dict[str, object], key: str, kind: str) -> None:
    assert caller_key(**identity) == key  # type: ignore[arg-type]
    assert caller_class(key) == kind
