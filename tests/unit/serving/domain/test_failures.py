"""Failed authentications of an address: a burst, then a rate; a bounded number of addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.access import FailureBounds
from gateway.common.domain.addresses import address_group
from gateway.serving.domain.failures import Failures

SECOND_NS = 1_000_000_000


def test_a_burst_then_a_rate() -> None:
    failures = Failures(FailureBounds(burst=3, per_s=0.5))
    assert [failures.count("a", 0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert failures.count("a", 0) == 2.0
    assert failures.count("b", 0) == 0.0
    assert failures.count("a", SECOND_NS) == 1.0
    assert failures.count("a", 2 * SECOND_NS) == 0.0
    assert failures.count("a", 2 * SECOND_NS) == 2.0
    assert [failures.count("a", 1000 * SECOND_NS) for _ in range(4)] == [0.0, 0.0, 0.0, 2.0]


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("uid:1000", "uid:1000"),
        ("", ""),
    ],
)
def test_groups(address: str, group: str) -> None:
    assert address_group(address) == group


@given(st.lists(st.tuples(st.text(max_size=8), st.integers(0, SECOND_NS))))
def test_memory_is_bounded(counted: list[tuple[str, int]]) -> None:
    failures = Failures(FailureBounds(burst=1, per_s=1.0, addresses=4))
    now_ns = 0
    for address, after_ns in counted:
        now_ns += after_ns
        assert 0.0 <= failures.count(address, now_ns) <= 1.0
        assert len(failures) <= 4
