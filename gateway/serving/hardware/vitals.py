"""Power, temperature and memory, read from a tree. Bounded, never raises; the sources are listed per function."""

from __future__ import annotations

import re

from gateway.serving.domain.vitals import EnergyCounter, Vitals
from gateway.serving.hardware.board import read_memory_bytes
from gateway.serving.hardware.bus import PCI_ADDRESS, PCI_DRIVERS
from gateway.serving.hardware.intel import NPU_DRIVER
from gateway.serving.hardware.tree import Tree

THERMAL = "/sys/class/thermal"
APEX = "/sys/class/apex"
HWMON = "/sys/class/hwmon"
INA3221 = "/sys/bus/i2c/drivers/ina3221"
INA3221_CHANNELS = range(1, 4)
BATTERIES = "/sys/class/power_supply"
RAPL = "/sys/class/powercap"
PI_THROTTLED = (
    "/sys/devices/platform/soc/soc:firmware/get_throttled",
    "/sys/devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled",
)
PI_THROTTLED_NOW = 0xF
"""Bits 0 to 3: under-voltage, frequency capped, throttled, soft temperature limit. Higher bits are about the past."""
TEMPERATURES_C = (-55.0, 200.0)
"""Plausible range. A value outside is from a sensor that is off (Jetsons report -256 °C for a sleeping cluster)."""


def read_vitals(tree: Tree) -> Vitals:
    """Read the vitals once.

    `npu_busy_us` must not be read more often than once a second, because the driver wakes the NPU for it.
    """
    return Vitals(
        temperatures_c=_temperatures(tree),
        power_watts=_rails(tree) | _batteries(tree),
        energy=_energy(tree),
        memory_available_bytes=read_memory_bytes(tree, "MemAvailable"),
        throttled=_throttled(tree),
        npu_busy_us=_npu_busy_us(tree),
    )


def _temperatures(tree: Tree) -> dict[str, float]:
    """Return thermal zones by type (numbers change between boots) and Edge TPUs; the hottest if a type occurs twice."""
    places = [
        (tree.line(f"{THERMAL}/{zone}/type"), f"{THERMAL}/{zone}/temp")
        for zone in tree.names(THERMAL)
        if zone.startswith("thermal_zone")
    ]
    places += [(name, f"{APEX}/{name}/temp") for name in tree.names(APEX)]
    found: dict[str, float] = {}
    for name, path in places:
        millidegrees = tree.integer(path)
        if name and millidegrees is not None and TEMPERATURES_C[0] <= millidegrees / 1000 <= TEMPERATURES_C[1]:
            found[name] = max(millidegrees / 1000, found.get(name, TEMPERATURES_C[0]))
    return found


def _rails(tree: Tree) -> dict[str, float]:
    """Return the power of each labelled rail of a Jetson's INA3221: mV times mA. "sum of shunt voltages" is no rail."""
    rails: dict[str, float] = {}
    for folder in _ina3221_folders(tree):
        for channel in INA3221_CHANNELS:
            label = tree.line(f"{folder}/in{channel}_label")
            millivolts, milliamperes = (tree.integer(f"{folder}/{kind}{channel}_input") for kind in ("in", "curr"))
            if label and "shunt" not in label and millivolts is not None and milliamperes is not None:
                rails[label] = millivolts * milliamperes / 1e6
    return rails


def _ina3221_folders(tree: Tree) -> tuple[str, ...]:
    places = [f"{HWMON}/{name}" for name in tree.names(HWMON) if tree.line(f"{HWMON}/{name}/name") == "ina3221"]
    for chip in tree.names(INA3221):
        places += [f"{INA3221}/{chip}/hwmon/{name}" for name in tree.names(f"{INA3221}/{chip}/hwmon")]
    return tuple(dict.fromkeys(found for place in places if (found := tree.resolve(place))))


def _batteries(tree: Tree) -> dict[str, float]:
    """Return the power of each discharging battery (µW, or µV times µA).

    A charging one says nothing about the device.
    """
    watts: dict[str, float] = {}
    for name in tree.names(BATTERIES):
        folder = f"{BATTERIES}/{name}"
        if tree.line(f"{folder}/type") == "Battery" and tree.line(f"{folder}/status") == "Discharging":
            power, voltage, current = (tree.integer(f"{folder}/{key}_now") for key in ("power", "voltage", "current"))
            if power is not None:
                watts[name] = abs(power) / 1e6
            elif voltage is not None and current is not None:
                watts[name] = abs(voltage * current) / 1e12
    return watts


def _energy(tree: Tree) -> dict[str, EnergyCounter]:
    """Return RAPL packages (AMD uses the same names).

    Since Linux 5.10 only root reads them, unless a udev rule grants it.
    """
    counters: dict[str, EnergyCounter] = {}
    for zone in tree.names(RAPL):
        if re.fullmatch(r"intel-rapl:[0-9]+", zone):
            folder = f"{RAPL}/{zone}"
            name = tree.line(f"{folder}/name") or zone
            energy, limit = tree.integer(f"{folder}/energy_uj"), tree.integer(f"{folder}/max_energy_range_uj")
            if energy is not None and limit is not None:
                counters[name] = EnergyCounter(energy, limit)
    return counters


def _throttled(tree: Tree) -> bool | None:
    """Return the Raspberry Pi firmware's throttling bits, else its under-voltage alarm."""
    for path in PI_THROTTLED:
        if bits := tree.hexadecimal(path):
            return bool(int(bits, 16) & PI_THROTTLED_NOW)
    for name in tree.names(HWMON):
        if tree.line(f"{HWMON}/{name}/name") == "rpi_volt":
            alarm = tree.integer(f"{HWMON}/{name}/in0_lcrit_alarm")
            return None if alarm is None else alarm != 0
    return None


def _npu_busy_us(tree: Tree) -> int | None:
    folder = f"{PCI_DRIVERS}/{NPU_DRIVER}"
    readings = (
        tree.integer(f"{folder}/{name}/npu_busy_time_us") for name in tree.names(folder) if PCI_ADDRESS.fullmatch(name)
    )
    return next((reading for reading in readings if reading is not None), None)
