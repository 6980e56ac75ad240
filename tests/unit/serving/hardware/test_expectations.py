"""Accelerators that are expected and absent, and the words where nothing is."""

from __future__ import annotations

import pytest

from gateway.serving.hardware.probe import MODULES
from tests.devices.asking import Probed
from tests.devices.build import Folder, pci, x86_cpuinfo
from tests.devices.catalogue import TREES, XEON

BUS = {"/sys/bus/pci/devices": Folder()}


@pytest.mark.parametrize("module", MODULES)
def test_a_loaded_module_implies_its_accelerator(probed: Probed, module: str) -> None:
    (remark,) = probed(XEON | BUS | {f"/sys/module/{module}": Folder()}).remarks
    assert (remark.subject, bool(remark.remedy)) == (MODULES[module][0], True)
    assert f"because module {module} is loaded, but none is on the bus" in remark.detail


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Intel(R) Core(TM) Ultra 5 135H", "intel-npu"),
        ("Intel(R) Core(TM) Ultra 9 285K", "intel-npu"),
        ("Intel(R) Core(TM) i7-13700H", None),
        ("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", "amd-npu"),
        ("AMD Ryzen AI 9 HX 370 w/ Radeon 890M", "amd-npu"),
        ("AMD Ryzen 7 PRO 8840U w/ Radeon 780M Graphics", "amd-npu"),
        ("AMD Ryzen 5 7540U w/ Radeon 740M Graphics", None),
        ("AMD Ryzen 7 7730U with Radeon Graphics", None),
        ("AMD Ryzen 9 7940HS w/ Radeon 780M Graphics", "amd-npu"),
        ("AMD Ryzen 9 7945HX with Radeon Graphics", None),
        ("AMD Ryzen 9 7945HX3D with Radeon Graphics", None),
    ],
)
def test_processors_with_an_npu(probed: Probed, name: str, kind: str | None) -> None:
    found = probed(x86_cpuinfo("vendor", name, 1, "avx2") | BUS).remarks
    assert [remark.subject for remark in found if remark.remedy] == ([kind] if kind else [])


def test_an_accelerator_that_is_present_is_not_missed(probed: Probed) -> None:
    loaded = {"/sys/module/intel_vpu": Folder(), "/sys/module/xe": Folder()}
    assert probed(dict(TREES["intel-npu-and-gpu"]) | loaded).remarks == ()


def test_nothing_is_missed_where_no_bus_can_be_looked_at(probed: Probed) -> None:
    found = probed(x86_cpuinfo("GenuineIntel", "Intel(R) Core(TM) Ultra 7", 1, "avx2"))
    assert [remark.remedy for remark in found.remarks] == [""]


@pytest.mark.parametrize(("flags", "virtual"), [("avx2", False), ("avx2 hypervisor", True)])
def test_where_nothing_is_expected_it_says_so(probed: Probed, flags: str, virtual: bool) -> None:
    found = probed(x86_cpuinfo("GenuineIntel", "Intel(R) N100", 1, flags) | pci("0000:00:1f.0", "8086:54b1", "060100"))
    (remark,) = found.remarks
    assert remark.detail.startswith("none is expected")
    assert ("virtual machine" in remark.detail) is virtual
    assert found.notes == (f"accelerators: {remark.detail}",)
