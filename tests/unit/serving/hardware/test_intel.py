from __future__ import annotations

import pytest

from gateway.common.domain.inventory import RUNGS
from tests.devices.asking import Only, Probed, rung
from tests.devices.build import Link, Node, pci
from tests.devices.catalogue import CORE_ULTRA, NPU_NODE, TREES


@pytest.mark.parametrize("flat_links", [False, True])
def test_npu_and_gpu_are_found_wherever_they_sit(probed: Probed, flat_links: bool) -> None:
    npu, gpu = probed("intel-npu-and-gpu", flat_links=flat_links).accelerators
    assert (npu.kind, npu.name, npu.device) == ("intel-npu", "Intel NPU (Lunar Lake)", "/dev/accel/accel0")
    assert (gpu.kind, gpu.device) == ("intel-gpu", "/dev/dri/renderD128")
    for accelerator in (npu, gpu):
        assert tuple(found.name for found in accelerator.rungs) == RUNGS
        assert accelerator.usable
    assert [found.ok for found in npu.rungs] == [True] * 5 + [None] * 5
    assert [found.ok for found in gpu.rungs] == [True, True, None, True, True] + [None] * 5
    assert npu.facts["pci_id"] == "8086:643e"


@pytest.mark.parametrize("device", ["7d1d", "ad1d", "643e", "b03e", "fd3e"])
def test_every_npu_generation_has_a_name(only: Only, device: str) -> None:
    npu = only(CORE_ULTRA | pci("0000:00:0b.0", f"8086:{device}", "120000", "intel_vpu", NPU_NODE))
    assert npu.usable
    assert device not in npu.name


def test_an_npu_newer_than_the_table_is_known_by_its_driver(only: Only) -> None:
    assert only("intel-npu-of-tomorrow").name == "Intel NPU (8086:ffff)"


def test_a_missing_driver_is_the_first_broken_rung(only: Only) -> None:
    npu = only("intel-npu-without-driver")
    assert npu.broken is not None
    assert npu.broken.name == "driver"
    assert "sudo modprobe intel_vpu" in npu.broken.remedy
    assert npu.device == "0000:00:0b.0"
    assert rung(npu, "firmware")[0] is False
    assert "intel-fw-npu" in rung(npu, "firmware")[2]
    assert rung(npu, "node")[0] is False
    assert rung(npu, "permission")[0] is None


def test_another_driver_on_the_npu_is_named(only: Only) -> None:
    assert rung(only("intel-npu-passed-through"), "driver")[:2] == (False, "vfio-pci is bound, not intel_vpu")


def test_an_accel_node_of_another_driver_is_not_the_npus(only: Only) -> None:
    entries = dict(TREES["intel-npu-without-driver"]) | {
        "/sys/class/accel/accel0/device/driver": Link("../../../../bus/platform/drivers/rocket"),
        "/dev/accel/accel0": Node(),
    }
    assert rung(only(entries), "node")[0] is False


def test_only_the_owner_may_open_it(only: Only) -> None:
    ok, detail, remedy = rung(only("intel-gpu-locked"), "permission")
    assert ok is False
    assert detail.startswith("/dev/dri/renderD128 has mode 0600")
    assert "udev" in remedy
    assert "usermod -aG render" in remedy


def test_cards_without_vendor_and_device_are_skipped(probed: Probed) -> None:
    assert probed("plain-x86").accelerators == ()


def test_a_gpu_known_only_to_the_drm_class(only: Only) -> None:
    gpu = only(
        {
            "/sys/class/drm/renderD130/device/vendor": "0x8086\n",
            "/sys/class/drm/renderD130/device/device": "0x7d55\n",
            "/sys/class/drm/renderD130/device/class": "0x030000\n",
            "/sys/class/drm/renderD130/device/uevent": "DRIVER=i915\nPCI_SLOT_NAME=0000:00:02.0\n",
            "/dev/dri/renderD130": Node(),
        }
    )
    assert (gpu.kind, gpu.device, gpu.usable) == ("intel-gpu", "/dev/dri/renderD130", True)
    assert rung(gpu, "bus")[1] == "PCI 8086:7d55 at 0000:00:02.0"


def test_a_tree_without_dev_says_nothing_about_nodes(only: Only) -> None:
    gpu = only(CORE_ULTRA | pci("0000:00:02.0", "8086:46d1", "030000", "i915"))
    assert rung(gpu, "node")[0] is None
    assert gpu.usable
    assert gpu.device == "0000:00:02.0"
