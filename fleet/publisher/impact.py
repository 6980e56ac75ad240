"""Effect of a publication on devices: releases that they run and may no longer install. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fleet.publisher.repository import Published
from fleet.publisher.roles import owner_role
from gateway.common.terminal.tables import counted
from gateway.common.trust.distrust import Distrust
from gateway.common.trust.targets import Withdrawal, check_floor, floor_of, read_withdrawal


@dataclass(frozen=True, slots=True)
class Impact:
    """Effect on one release: `devices` run `target` in `slot`, and `why` it may not be installed.

    `stops`: the devices are ordered to stop it.
    """

    target: str
    slot: str
    devices: int
    why: str
    stops: bool

    @property
    def sentence(self) -> str:
        """Return the impact in words, with what to do."""
        runs = f"{counted(self.devices, 'device')} {'runs' if self.devices == 1 else 'run'} {self.target}"
        where = f"{runs} in the slot {self.slot}"
        if self.stops:
            return f"{where}: ORDERED TO STOP IT AT ONCE, {self.why}"
        return f"{where}, which is not installed any more ({self.why}); a rollout moves them, until then they go on"


def impacts(running: Mapping[tuple[str, str], int], before: Published, after: Published) -> Iterator[Impact]:
    """Yield what `after` bars and `before` did not. `running`: number of devices by slot and target's path."""
    for (slot, path), devices in sorted(running.items()):
        why, stops = barred(after, path)
        if why and (why, stops) != barred(before, path):
            yield Impact(path, slot, devices, why, stops)


def barred(published: Published, path: str) -> tuple[str, bool]:
    """Return why a release may not be installed ("": it may), and whether devices are ordered to stop it."""
    target = published.target(path)
    if target is None:
        return "it is not published", False
    try:
        if withdrawal := read_withdrawal(target):
            return "its owner withdrew it", withdrawal is Withdrawal.REMOVE
        check_floor(path, lambda owner, model: floor_of(published.roles[owner_role(owner)].signed, owner, model))
    except Distrust as error:
        return error.what, False
    return "", False
