from __future__ import annotations

from pathlib import Path

import pytest

from gateway.serving.domain.vitals import EnergyCounter, Vitals
from gateway.serving.hardware.tree import Tree
from gateway.serving.hardware.vitals import read_vitals
from tests.devices.build import Entries, Link, build
from tests.devices.catalogue import TREES

ZONE = "/sys/class/thermal/thermal_zone"
INA = "/sys/devices/platform/bus@0/1-0041/hwmon/hwmon4"
RAPL = "/sys/class/powercap/intel-rapl:0"
BATTERY = "/sys/class/power_supply/BAT1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def read(root: Path, entries: Entries) -> Vitals:
    return read_vitals(Tree(build(root, entries)))


def test_nothing_readable_is_nothing_known(root: Path) -> None:
    assert read(root, {}) == Vitals()


def test_heat_by_type_hottest_of_equal_ones_and_no_sensor_that_is_off(root: Path) -> None:
    zones = {0: ("cpu-thermal", "51500"), 1: ("acpitz", "27800"), 3: ("acpitz", "33000"), 7: ("cv0-thermal", "-256000")}
    entries = {f"{ZONE}{n}/type": f"{kind}\n" for n, (kind, _) in zones.items()}
    entries |= {f"{ZONE}{n}/temp": f"{millis}\n" for n, (_, millis) in zones.items()}
    entries |= {f"{ZONE}9/type": "broken\n", f"{ZONE}9/temp": "n/a\n", "/sys/class/thermal/cooling_device0/type": "fan"}
    entries |= {"/sys/class/apex/apex_0/temp": "42050\n"}
    assert read(root, entries).temperatures_c == {"cpu-thermal": 51.5, "acpitz": 33.0, "apex_0": 42.05}


def test_rails_of_a_jetson_without_the_sum_of_shunts(root: Path) -> None:
    entries: Entries = {
        f"{INA}/name": "ina3221\n",
        f"{INA}/in1_label": "VDD_IN\n",
        f"{INA}/in1_input": "5000\n",
        f"{INA}/curr1_input": "900\n",
        f"{INA}/in2_label": "sum of shunt voltages\n",
        f"{INA}/in2_input": "7\n",
        f"{INA}/curr2_input": "7\n",
        f"{INA}/in3_label": "VDD_SOC\n",
        "/sys/class/hwmon/hwmon4": Link("../../devices/platform/bus@0/1-0041/hwmon/hwmon4"),
        "/sys/bus/i2c/drivers/ina3221/1-0041": Link("/sys/devices/platform/bus@0/1-0041"),
        "/sys/class/hwmon/hwmon0/name": "coretemp\n",
    }
    assert read(root, entries).power_watts == {"VDD_IN": 4.5}


@pytest.mark.parametrize(
    ("status", "readings", "watts"),
    [
        ("Discharging", {"power_now": "7500000"}, {"BAT1": 7.5}),
        ("Discharging", {"voltage_now": "12000000", "current_now": "-500000"}, {"BAT1": 6.0}),
        ("Discharging", {"voltage_now": "12000000"}, {}),
        ("Charging", {"power_now": "7500000"}, {}),
    ],
)
def test_a_battery_tells_what_the_device_takes_only_while_it_discharges(
    root: Path, status: str, readings: dict[str, str], watts: dict[str, float]
) -> None:
    entries = {f"{BATTERY}/{key}": f"{value}\n" for key, value in readings.items()}
    entries |= {f"{BATTERY}/type": "Battery\n", f"{BATTERY}/status": f"{status}\n"}
    entries |= {"/sys/class/power_supply/AC/type": "Mains\n", "/sys/class/power_supply/AC/power_now": "1\n"}
    assert read(root, entries).power_watts == watts


def test_energy_of_whole_packages(root: Path) -> None:
    entries = {
        f"{RAPL}/name": "package-0\n",
        f"{RAPL}/energy_uj": "123456789\n",
        f"{RAPL}/max_energy_range_uj": "262143328850\n",
        f"{RAPL}:0/name": "core\n",
        f"{RAPL}:0/energy_uj": "1\n",
        f"{RAPL}:0/max_energy_range_uj": "262143328850\n",
        "/sys/class/powercap/intel-rapl:1/name": "package-1\n",
    }
    assert read(root, entries).energy == {"package-0": EnergyCounter(123456789, 262143328850)}


@pytest.mark.parametrize(("bits", "throttled"), [("50005", True), ("0x50000", False), ("0", False)])
def test_a_raspberry_pi_is_throttled_by_the_bits_of_now(root: Path, bits: str, throttled: bool) -> None:
    entries = {"/sys/devices/platform/soc/soc:firmware/get_throttled": f"{bits}\n"}
    assert read(root, entries).throttled is throttled


@pytest.mark.parametrize(("alarm", "throttled"), [("1", True), ("0", False), ("?", None)])
def test_the_under_voltage_alarm_where_there_are_no_bits(root: Path, alarm: str, throttled: bool | None) -> None:
    entries = {"/sys/class/hwmon/hwmon1/name": "rpi_volt\n", "/sys/class/hwmon/hwmon1/in0_lcrit_alarm": f"{alarm}\n"}
    assert read(root, entries).throttled is throttled


def test_memory_and_npu_busy_time(root: Path) -> None:
    entries = dict(TREES["intel-npu-and-gpu"]) | {
        "/proc/meminfo": "MemTotal: 100 kB\nMemAvailable:    64 kB\n",
        "/sys/devices/pci0000:00/0001:02:0b.0/npu_busy_time_us": "987654\n",
    }
    found = read(root, entries)
    assert (found.memory_available_bytes, found.npu_busy_us) == (65536, 987654)


def test_the_live_machine_has_memory() -> None:
    available = read_vitals(Tree(Path("/"))).memory_available_bytes
    assert available is not None
    assert available > 0
