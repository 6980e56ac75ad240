"""Preview of a specification on the fleet as it is now, before anything is created."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet.controller.control.membership import device_of, pages
from fleet.controller.control.rollouts import Rollouts
from fleet.controller.control.rollouts_record import live_rollouts
from fleet.controller.control.scheduler import zones_of
from fleet.controller.control.slot_ownership import claimed
from fleet.controller.database.devices import EnrolmentState as Standing
from fleet.controller.rollouts.query import QueriedDevice, matches
from fleet.controller.rollouts.query_parser import parse
from fleet.controller.rollouts.schedule import SITE, known_zone
from fleet.controller.rollouts.spec import CANARY, Spec
from fleet.controller.rollouts.state import stratum_of
from fleet.controller.rollouts.waves import places

ZONES_SHOWN = 20
VERSIONS_SHOWN = 20
"""Versions that a preview shows, the most frequent first; the others are counted together."""


@dataclass(frozen=True, slots=True)
class Preview:
    """Numbers of matching devices.

    By set of accelerators (`strata`), by wave, `held` by other rollouts, and by the version that they report in the
    slot (`running`; "": none; `running_others`: devices with other versions).
    """

    devices: int
    strata: Mapping[str, int]
    waves: Mapping[int, int]
    held: int
    unknown_zones: Sequence[str]
    running: Mapping[str, int]
    running_others: int


def preview(rolling: Rollouts, spec: Spec) -> Preview:
    """Match every device of the fleet against the query, and count. Raise AwayError."""
    held, strata, zones, counted = _held(rolling, spec), Counter[str](), set[str](), 0
    running = Counter[str]()
    for device in _matching(rolling, spec):
        strata[stratum_of(device.accelerators)] += 1
        zones.add(device.zone)
        counted += device.id in held
        running[device.versions.get(spec.slot, "")] += 1
    devices = sum(strata.values())
    by_site = any(window.zone == SITE for window in spec.windows)
    unknown = sorted(zone for zone in zones if not known_zone(zone)) if by_site else []
    versions = dict(running.most_common(VERSIONS_SHOWN))
    return Preview(
        devices,
        dict(sorted(strata.items())),
        wave_sizes(spec, strata),
        counted,
        unknown[:ZONES_SHOWN],
        versions,
        devices - sum(versions.values()),
    )


def wave_sizes(spec: Spec, strata: Mapping[str, int]) -> dict[int, int]:
    """Return how many devices each wave takes if none joins or leaves."""
    devices, taken, sizes = sum(strata.values()), 0, dict[int, int]()
    for wave in range(spec.first_wave, spec.last_wave + 1):
        if wave == CANARY and spec.canary:
            size = sum(min(count, spec.canary.per_accelerator) for count in strata.values())
        else:
            size = min(devices - taken, places(spec.waves[wave - 1], devices, taken, 0))
        sizes[wave] = size
        taken += size
    return sizes


def _matching(rolling: Rollouts, spec: Spec) -> Iterable[QueriedDevice]:
    query, zones = parse(spec.query), zones_of(rolling.settings)
    for page in pages(rolling.database, rolling.settings.devices_per_tick):
        enrolled = (device_of(known, zones) for known in page if known.state is Standing.ENROLLED)
        yield from (device for device in enrolled if matches(query, device))


def _held(rolling: Rollouts, spec: Spec) -> frozenset[str]:
    settings = rolling.database.settings
    with rolling.database.read() as connection:
        others = [one for one in live_rollouts(connection, settings) if one.slot == spec.slot]
        return claimed(connection, rolling.states, spec, others, settings)
