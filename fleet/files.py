"""Device profiles and policies: files that are published as they are, and that devices must be able to read. Pure."""

from __future__ import annotations

from datetime import datetime

from fleet.roles import POLICY, PROFILES
from gateway.domain.errors import ConfigurationError
from gateway.domain.policy import Blackout, Policy, all_over, read_policy
from gateway.domain.profile import read_profile

SUFFIXES = {PROFILES: ".toml", POLICY: ".json"}
"""By role, which is the folder they are published in, too."""


def check_content(role: str, content: bytes, file: str) -> None:
    """Raises ConfigurationError where a device could not read it."""
    if role == POLICY:
        read_policy(content, file)
        return
    try:
        read_profile(content.decode(), file)
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"is not UTF-8 text (byte {error.start})", file=file) from None


def given_back(before: Policy, after: Policy, now: datetime) -> list[Blackout]:
    """Blackouts of a policy that have begun, and that the one after it lists no more up to now: hours that stood still
    in them count as waited (decision 0021). Those are left out of which all waits are over anyway."""
    return [
        one
        for one in before.blackouts
        if one.start < now < all_over(after, one.end)
        and not any(new.start <= one.start and min(one.end, now) <= new.end for new in after.blackouts)
    ]
