"""Device profiles and policies: files that are published unchanged and that devices must be able to read. Pure."""

from __future__ import annotations

from datetime import datetime

from fleet.publisher.roles import POLICY, PROFILES
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.policy import Blackout, Policy, all_over, read_policy
from gateway.common.domain.profile import read_profile

SUFFIXES = {PROFILES: ".toml", POLICY: ".json"}
"""File suffix by role. The role is also the folder of publication."""


def check_content(role: str, content: bytes, file: str) -> None:
    """Check that a device can read the file. Raise ConfigurationError."""
    if role == POLICY:
        read_policy(content, file)
        return
    try:
        read_profile(content.decode(), file)
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"is not UTF-8 text (byte {error.start})", file=file) from None


def given_back(before: Policy, after: Policy, now: datetime) -> list[Blackout]:
    """Return begun blackouts of a policy that the next policy no longer lists up to now.

    Waits that were paused in these hours count as waited (decision 0021). Blackouts are omitted if all waits are over
    anyway.
    """
    return [
        one
        for one in before.blackouts
        if one.start < now < all_over(after, one.end)
        and not any(new.start <= one.start and min(one.end, now) <= new.end for new in after.blackouts)
    ]
