"""Expiry of signed roles: offline roles that people sign, and online roles that this controller signs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from fleet.controller.monitoring.alert_rules import RuleValue
from fleet.controller.monitoring.readings import repository
from fleet.publisher.roles import ONLINE, SNAPSHOT
from fleet.publisher.verify import expiries
from fleet.publisher.workspace import Workspace

ONLINE_SHARE = 0.25
"""Share of an online role's validity. Less than this remains only if maintenance fails to renew it."""


def signed_roles(workspace: Workspace, now: datetime, notice_d: float) -> Iterable[RuleValue]:
    """Yield a reading for every published role. Raise ConfigurationError."""
    settings = workspace.settings
    for found in expiries(workspace.published(), now):
        if found.what in ONLINE:
            life_d = settings.snapshot_expiry_d if found.what == SNAPSHOT else settings.timestamp_expiry_d
            yield repository(found.what, found.expires, now, life_d * ONLINE_SHARE, "edge-fleet publish")
        else:
            remedy = f"edge-fleet renew {found.what}, and have it signed"
            yield repository(found.what, found.expires, now, notice_d, remedy)
