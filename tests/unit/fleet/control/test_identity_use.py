"""Decision whether one machine uses a device's identity: what is a reboot, a moved card, and a copy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.control.identity_use import BOOTS_LIMIT, Hardware, IdentityUse, KnownMachine, is_other, judge
from fleet.controller.control.reports import hardware

A: Hardware = {"serial": ["a"], "macs": ["m1", "m2"]}
B: Hardware = {"serial": ["b"], "macs": ["m3"]}
NOTHING: Hardware = {}
SAME, REBOOTED, MOVED, TWICE = IdentityUse


def uses(*reports: tuple[int, Hardware]) -> list[IdentityUse]:
    """Return the decision on each report. What is known goes through the database's JSON in between."""
    known, found = None, []
    for boot, facts in reports:
        use, after = judge(known, boot, facts)
        known = KnownMachine(**json.loads(json.dumps(asdict(after))))
        found.append(use)
    return found


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        pytest.param([(1, A), (1, A), (2, A), (2, A)], [SAME, SAME, REBOOTED, SAME], id="reboot"),
        pytest.param([(1, NOTHING), (2, NOTHING), (3, NOTHING)], [SAME, REBOOTED, REBOOTED], id="container"),
        pytest.param([(1, NOTHING), (2, A)], [SAME, REBOOTED], id="upgrade of an older agent"),
        pytest.param([(1, A), (2, NOTHING), (3, A)], [SAME, REBOOTED, REBOOTED], id="facts away for a boot"),
        pytest.param([(1, A), (2, NOTHING), (3, B)], [SAME, REBOOTED, MOVED], id="compared with what was known"),
        pytest.param([(1, A), (2, B), (3, B)], [SAME, MOVED, REBOOTED], id="card in a spare board"),
        pytest.param([(1, A), (2, B), (3, A), (4, A)], [SAME, MOVED, MOVED, REBOOTED], id="and back"),
        pytest.param([(1, A), (2, B), (1, A), (2, B)], [SAME, MOVED, TWICE, TWICE], id="copy"),
        pytest.param([(1, NOTHING), (2, NOTHING), (1, NOTHING)], [SAME, REBOOTED, TWICE], id="copies without facts"),
        pytest.param([(2, A), (1, A), (2, A)], [SAME, REBOOTED, TWICE], id="the copy's boot has the lower number"),
        pytest.param([(2, A), (1, A), (1, A)], [SAME, REBOOTED, SAME], id="a lost store and a wrong clock"),
        pytest.param([(1, A), (2, B), (1, A), (3, A)], [SAME, MOVED, TWICE, REBOOTED], id="only one goes on"),
    ],
)
def test_reports_in_their_order(reports: Sequence[tuple[int, Hardware]], expected: Sequence[IdentityUse]) -> None:
    assert uses(*reports) == expected


def test_a_copy_that_boots_often_is_noticed_and_what_is_kept_is_bounded() -> None:
    reports = [(boot, A) for turn in range(5) for boot in (1, *range(10 * turn + 2, 10 * turn + 2 + BOOTS_LIMIT - 1))]
    assert uses(*reports).count(TWICE) == 4
    known = None
    for boot in range(100):
        _, known = judge(known, boot, A)
    assert known
    assert known.ended == list(range(99 - BOOTS_LIMIT, 99))


@pytest.mark.parametrize(
    ("one", "another", "other"),
    [
        ({"serial": ["a"], "uuid": ["x"]}, {"serial": ["a"], "uuid": ["y"]}, False),
        ({"uuid": ["x"], "macs": ["m"]}, {"uuid": ["x"], "macs": ["n"]}, False),  # an adapter was replaced
        ({"uuid": ["x"], "macs": ["m"]}, {"uuid": ["y"], "macs": ["m"]}, True),
        ({"macs": ["m", "n"]}, {"macs": ["n", "o"]}, False),
        ({"macs": ["m"]}, {"macs": ["n"]}, True),
        ({"serial": ["a"]}, {"macs": ["n"]}, False),
        ({}, {"serial": ["a"]}, False),
    ],
)
def test_the_first_fact_that_both_have_decides(one: Hardware, another: Hardware, *, other: bool) -> None:
    assert is_other(one, another) is is_other(another, one) is other


values = st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=5)


@given(st.dictionaries(st.sampled_from(["serial", "uuid", "macs", "other"]), values) | values)
def test_what_a_device_sends_is_digests_or_nothing(sent: object) -> None:
    found = hardware({"hardware": sent})
    assert all(digests and all(0 < len(one) <= 64 for one in digests) for digests in found.values())
    assert found.keys() <= {"serial", "uuid", "macs"}
