"""Devices of each wave: exact shares, canaries of each kind of hardware, an order that cannot be chosen."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.rollouts.spec import Wave
from fleet.controller.rollouts.state import Member, rank_of, stratum_of
from fleet.controller.rollouts.waves import canaries, next_in_line, places, share

STRATA = ("cpu", "hailo-8", "coral-usb")


def member(number, stratum="cpu", rollout="r-1"):
    return Member(f"d-{number}", rank_of(rollout, f"d-{number}"), stratum)


members = st.lists(st.integers(0, 300), unique=True).flatmap(
    lambda numbers: st.tuples(*(st.sampled_from(STRATA).map(lambda s, n=n: member(n, s)) for n in numbers))
)


@pytest.mark.parametrize(
    ("devices", "percent", "expected"),
    [
        (30, 10.0, 3),
        (1000, 0.1, 1),
        (1000, 16.1, 161),
        (1001, 0.1, 2),
        (3, 10.0, 1),
        (700, 0.7, 5),
        (10**6, 33.3, 333_000),
        (0, 50.0, 0),
    ],
)
def test_a_share_is_exact_and_rounded_up(devices, percent, expected):
    assert share(devices, percent) == expected


@given(st.integers(0, 10**6), st.decimals("0.001", 100, places=3))
def test_a_share_is_never_a_device_too_many(devices, percent):
    found = share(devices, float(percent))
    assert (found - 1) * Decimal(100) < devices * percent <= found * Decimal(100) or devices == 0


def test_places_are_of_all_devices_in_percent_and_of_this_wave_in_numbers():
    assert places(Wave(percent=10.0), devices=200, taken=7, taken_here=2) == 13
    assert places(Wave(percent=10.0), devices=50, taken=7, taken_here=2) == 0
    assert places(Wave(count=10), devices=200, taken=7, taken_here=2) == 8
    assert places(Wave(count=10), devices=200, taken=70, taken_here=12) == 0


@given(members, st.integers(0, 50), st.randoms())
def test_the_line_does_not_depend_on_who_lists_it(waiting, number, random):
    shuffled = list(waiting)
    random.shuffle(shuffled)
    line = next_in_line(waiting, number)
    assert line == next_in_line(shuffled, number)
    assert line == next_in_line(waiting, len(waiting))[:number]


@given(members, st.just(member(301)), st.integers(1, 20))
def test_who_joins_takes_a_place_and_leaves_the_order_as_it_was(waiting, newcomer, number):
    before = next_in_line(waiting, number)
    after = [one for one in next_in_line([*waiting, newcomer], number) if one != newcomer]
    assert after == before[: len(after)]


def test_another_rollout_begins_with_other_devices():
    one = {m.device for m in next_in_line([member(n) for n in range(1000)], 100)}
    other = {m.device for m in next_in_line([member(n, rollout="r-2") for n in range(1000)], 100)}
    assert 0 < len(one & other) < 30


@given(members, st.integers(1, 4))
def test_canaries_are_of_every_kind_as_many_as_asked_for(waiting, per_accelerator):
    there = Counter(m.stratum for m in waiting)
    chosen = canaries(waiting, (), per_accelerator)
    assert Counter(m.stratum for m in chosen) == {stratum: min(n, per_accelerator) for stratum, n in there.items()}
    for left_out in {*waiting} - {*chosen}:
        assert all(m.rank < left_out.rank for m in chosen if m.stratum == left_out.stratum)


@given(members, st.integers(1, 4), st.data())
def test_canaries_taken_one_by_one_are_those_taken_at_once(waiting, per_accelerator, data):
    at_once = canaries(waiting, (), per_accelerator)
    taken = at_once[: data.draw(st.integers(0, len(at_once)))]
    rest = [m for m in waiting if m not in taken]
    assert [*taken, *canaries(rest, taken, per_accelerator)] == list(at_once)


def test_devices_with_the_same_kinds_of_accelerators_are_alike():
    assert stratum_of(()) == "cpu"
    assert (
        stratum_of(("hailo-8", "coral-usb", "hailo-8")) == stratum_of(("coral-usb", "hailo-8")) == "coral-usb+hailo-8"
    )
