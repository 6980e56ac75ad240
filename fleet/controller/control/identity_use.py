"""Decision whether one machine uses a device's identity, from the boots and the hardware in its reports. Pure.

A copy of a device's storage has the device's certificate, in another machine. Both report, each with a boot of its own.
Boots of one storage never alternate: their numbers grow, and a spool is sent in order.

| boot | hardware | use |
| --- | --- | --- |
| the present one | any | same |
| a new one | the same, or unknown | rebooted |
| a new one | other | moved |
| one that another boot followed | any | used twice |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gateway.common.domain.python310 import StrEnum

Hardware = Mapping[str, Sequence[str]]
"""Digests by fact, as `gateway/device/agent/report/report.py` makes them. A fact that is unknown is missing."""
FACTS = ("serial", "uuid", "macs")
"""Facts, the most reliable first: the first one that both machines have decides."""
BOOTS_LIMIT = 8


class IdentityUse(StrEnum):
    """Relation of a report to the reports before it."""

    SAME = "same"
    REBOOTED = "rebooted"
    MOVED = "moved"
    TWICE = "used twice"


@dataclass(frozen=True, slots=True)
class KnownMachine:
    """Machine that used the identity last. `before`: hardware of the machine before the last boot or change.

    `ended`: boots that another one followed, the newest last.
    """

    boot: int
    hardware: Hardware = field(default_factory=dict)
    before: Hardware = field(default_factory=dict)
    ended: Sequence[int] = ()


def judge(known: KnownMachine | None, boot: int, hardware: Hardware) -> tuple[IdentityUse, KnownMachine]:
    """Return how a report with this boot and hardware uses the identity, and what is known then."""
    known = known or KnownMachine(boot)
    if boot == known.boot:
        return IdentityUse.SAME, replace(known, hardware={**known.hardware, **hardware})
    moved = is_other(known.hardware, hardware)
    use = IdentityUse.TWICE if boot in known.ended else IdentityUse.MOVED if moved else IdentityUse.REBOOTED
    ended = [*(one for one in known.ended if one != boot), known.boot][-BOOTS_LIMIT:]
    return use, KnownMachine(boot, hardware if moved else {**known.hardware, **hardware}, known.hardware, ended)


def is_other(one: Hardware, another: Hardware) -> bool:
    """Return whether two machines differ in the first fact that both have. Without such a fact they do not."""
    shared = next((fact for fact in FACTS if one.get(fact) and another.get(fact)), None)
    return shared is not None and not set(one[shared]) & set(another[shared])
