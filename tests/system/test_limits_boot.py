"""MemoryMax= and DeviceAllow= of the unit in a virtual machine (containers lack controllers). Needs root and qemu."""

from __future__ import annotations

import pytest

from tests.system.debian import SYSTEM, boot, debian, packages
from tests.system.serving.test_answer_memory import write_zeros

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

MIB = 1 << 20
PATIENT = "[Service]\nTimeoutStartSec=15min\nWatchdogSec=5min\n"
"""An emulated processor is slow."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Boot once; return what was written inside, by file name."""
    folder = tmp_path_factory.mktemp("limits")
    packages(folder / "upper/debs", "trixie", "amd64", "0.2.0", "edge-gateway")
    write_zeros(folder / "upper/srv/models")
    settings = folder / "upper/etc/systemd/system/edge-gateway.service.d/patient.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text(PATIENT)
    return boot(debian("trixie", f"{SYSTEM},linux-image-cloud-amd64"), folder, "inside_limits.sh", "machine")


def test_the_bound_of_data_follows_the_control_group(seen: dict[str, str]) -> None:
    assert int(seen["bound.usual"]) == pytest.approx(0.75 * float(seen["total"]), rel=0.01)
    assert int(seen["bound.limited"]) == pytest.approx(400 * MIB * 5 / 6, rel=0.01)


def test_a_call_that_wants_more_memory_fails_alone(seen: dict[str, str]) -> None:
    assert (seen["zeros.small"], seen["zeros.again"]) == ("200", "200")
    assert seen["zeros.large"] != "200"
    assert "memory" in seen["zeros.refusal"]
    assert seen["pid.before"] == seen["pid.after"]
    assert "oom_kill 0" in seen["events.bounded"].splitlines()


def test_a_service_that_is_killed_for_memory_starts_again_with_its_state(seen: dict[str, str]) -> None:
    assert int(seen["restarts.after"]) > int(seen["restarts.before"])
    assert seen["killed"]
    assert seen["zeros.restarted"] == "200"
    assert seen["kept.before"] == seen["kept.after"] != "[]\n"


def test_a_device_that_the_unit_does_not_allow_is_named(seen: dict[str, str]) -> None:
    assert "control group forbids" not in seen["doctor.outside"] + seen["doctor.allowed"]
    assert "the control group forbids the device" in seen["doctor.inside"]
    assert "DeviceAllow=/dev/dxg rw" in seen["doctor.inside"]
