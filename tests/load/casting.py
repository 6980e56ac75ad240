"""Properties of the simulated devices: names, hardware and behaviour, drawn from one seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.common.domain.python310 import StrEnum
from tests.load.settings import Settings


class Behaviour(StrEnum):
    """Behaviour of a device (`BehaviourShares` describes each)."""

    HONEST = "honest"
    LYING = "lying"
    REPLAYING = "replaying"
    FLOODING = "flooding"
    FAILING = "failing"
    SILENT = "silent"


COMMITTING = frozenset({Behaviour.HONEST, Behaviour.REPLAYING, Behaviour.FLOODING})
"""Behaviours whose devices run what they are offered in the end."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """A kind of device. `percent`: its share of the fleet."""

    profile: str
    accelerators: tuple[str, ...]
    board: str
    arch: str
    cores: int
    memory_bytes: int
    percent: int


GIB = 2**30
HARDWARE = (
    Hardware("raspberry-pi-5", (), "Raspberry Pi 5 Model B Rev 1.0", "aarch64", 4, 8 * GIB, 30),
    Hardware("raspberry-pi-4", (), "Raspberry Pi 4 Model B Rev 1.4", "aarch64", 4, 4 * GIB, 20),
    Hardware("coral", ("coral-usb",), "Raspberry Pi 4 Model B Rev 1.4", "aarch64", 4, 4 * GIB, 15),
    Hardware("hailo", ("hailo-8",), "Raspberry Pi 5 Model B Rev 1.0", "aarch64", 4, 8 * GIB, 10),
    Hardware("jetson-orin", ("nvidia-jetson-gpu",), "NVIDIA Jetson Orin Nano", "aarch64", 6, 8 * GIB, 10),
    Hardware("intel-npu", ("intel-gpu", "intel-npu"), "NUC14RVH", "x86_64", 16, 16 * GIB, 5),
    Hardware("generic-x86", (), "Standard PC", "x86_64", 2, 4 * GIB, 10),
)


@dataclass(frozen=True, slots=True)
class Character:
    """Properties of a device before it starts. `number` counts from 0."""

    number: int
    name: str
    part: Behaviour
    hardware: Hardware


def cast(settings: Settings) -> tuple[Character, ...]:
    """Return the properties of all devices.

    The same seed and number of devices give the same result. Shares are exact, rounded to whole devices.
    """
    count, shares = settings.devices, settings.shares
    parts: list[Behaviour] = []
    for part in Behaviour:
        parts += [part] * round(count * getattr(shares, part.value, 0.0) / 100.0)
    parts = (parts + [Behaviour.HONEST] * count)[:count]
    chance = random.Random(settings.seed)
    chance.shuffle(parts)
    drawn = chance.choices(HARDWARE, [hardware.percent for hardware in HARDWARE], k=count)
    return tuple(
        Character(number, f"{settings.prefix}-{number + 1:06}", part, hardware)
        for number, (part, hardware) in enumerate(zip(parts, drawn, strict=True))
    )


def inventory(character: Character) -> Mapping[str, Any]:
    """Return the inventory in the form of `edge-gateway probe --json`."""
    hardware = character.hardware
    return {
        "arch": hardware.arch,
        "board": {"model": hardware.board, "compatible": None},
        "cpu": {"vendor": None, "model": None, "cores": hardware.cores, "features": None},
        "memory_bytes": hardware.memory_bytes,
        "accelerators": [
            {"kind": kind, "name": kind, "device": f"/dev/{kind}", "usable": True, "rungs": []}
            for kind in hardware.accelerators
        ],
        "profile": hardware.profile,
    }
