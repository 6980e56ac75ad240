"""Blackouts that a newer policy gives back, though hours stood still in them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from fleet.publisher.files import given_back
from gateway.common.domain.policy import Blackout, Policy, earliest

NOW = datetime(2027, 12, 28, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def blackout(start_h: int, end_h: int) -> Blackout:
    """Return a blackout from so many hours after now, to so many."""
    return Blackout(NOW + start_h * HOUR, NOW + end_h * HOUR)


def policy(*blackouts: Blackout, share: float = 10.0, profiles: tuple[str, ...] = (), delay_h: float = 0.0) -> Policy:
    return Policy(share, profiles, delay_h, blackouts, removal_hold_h=0.0, removal_share_percent_per_hour=100.0)


@pytest.mark.parametrize(
    ("before", "after", "back"),
    [
        (blackout(-5, 5), (), True),
        (blackout(-5, 5), (blackout(-5, 5),), False),
        (blackout(-5, 5), (blackout(-5, 1),), False),  # as one is ended early
        (blackout(-5, 5), (blackout(-6, 0),), False),
        (blackout(-5, 5), (blackout(-5, -1),), True),
        (blackout(-5, 5), (blackout(-4, 5),), True),
        (blackout(5, 9), (), False),  # not begun
        (blackout(-9, -5), (), True),  # over, and some still wait that began in it
        (blackout(-9, -5), (blackout(-9, -5),), False),
        (blackout(-19, -10), (), False),  # all are over that began in it
        (blackout(-19, -10), (blackout(-8, -7),), True),  # unless they stood still in another since
    ],
)
def test_what_has_begun_and_is_listed_no_more(before: Blackout, after: tuple[Blackout, ...], back: bool) -> None:
    assert given_back(policy(before), policy(*after), NOW) == ([before] if back else [])


def test_the_waits_of_the_newer_policy_count() -> None:
    before = policy(blackout(-60, -50))
    assert given_back(before, policy(share=1.0), NOW) == list(before.blackouts)
    assert given_back(before, policy(profiles=("lab", "hall"), delay_h=24.0), NOW) == list(before.blackouts)


@pytest.mark.parametrize("share", [0.1, 1.0, 7.0, 33.0, 100.0])
def test_what_is_not_told_frees_nobody(share: float) -> None:
    """Held against when the devices may begin."""
    for end_h in range(-1100, 0, 25):
        past = blackout(end_h - 9, end_h)
        before, after = policy(past, share=share), policy(share=share)
        if not given_back(before, after, NOW):
            begun = past.end - HOUR
            for device in map(str, range(50)):
                assert earliest(before, device, "d", begun, begun, "p") <= NOW
