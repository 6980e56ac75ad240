"""Power, temperature and memory of a device at one time. Values that the machine does not report are None or absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EnergyCounter:
    """Counter of microjoules that restarts at zero after `max_range_uj`."""

    energy_uj: int
    max_range_uj: int


@dataclass(frozen=True, slots=True)
class Vitals:
    """Vitals: `temperatures_c` by zone type, `power_watts` by rail or battery, `energy` by RAPL zone.

    `throttled`: the firmware slows the processor now. `npu_busy_us` counts up since boot.
    """

    temperatures_c: Mapping[str, float] = field(default_factory=dict)
    power_watts: Mapping[str, float] = field(default_factory=dict)
    energy: Mapping[str, EnergyCounter] = field(default_factory=dict)
    memory_available_bytes: int | None = None
    throttled: bool | None = None
    npu_busy_us: int | None = None
