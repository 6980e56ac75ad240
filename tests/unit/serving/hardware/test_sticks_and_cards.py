"""Coral, Movidius, Hailo, AMD and NVIDIA: devices that are plugged in."""

from __future__ import annotations

import pytest

from tests.devices.asking import Only, Probed, rung
from tests.devices.build import Entries, Link, Node, osrelease, pci
from tests.devices.catalogue import PI5, RYZEN, TREES


def test_coral_usb_before_its_first_use(only: Only) -> None:
    coral = only("pi4-coral-usb-fresh")
    assert (coral.kind, coral.device, coral.usable) == ("coral-usb", "/dev/bus/usb/001/004", True)
    assert rung(coral, "firmware")[0] is None


def test_coral_usb_after_its_first_use_is_the_same_device_to_the_cache(only: Only, probed: Probed) -> None:
    running = only("pi5-coral-usb-running")
    assert rung(running, "firmware")[:2] == (True, "running")
    (fresh,) = probed(
        {"/sys/bus/usb/devices/2-1/idVendor": "1a6e", "/sys/bus/usb/devices/2-1/idProduct": "089a"}
    ).accelerators
    assert (fresh.kind, fresh.name, fresh.facts) == (running.kind, running.name, running.facts)


def test_coral_usb_without_numbers_goes_by_its_address(only: Only) -> None:
    entries = {"/sys/bus/usb/devices/2-1/idVendor": "18d1\n", "/sys/bus/usb/devices/2-1/idProduct": "9302\n"}
    coral = only(entries)
    assert (coral.device, rung(coral, "node")[0], coral.usable) == ("2-1", None, True)


def test_coral_pcie(only: Only) -> None:
    coral = only("coral-pcie")
    assert (coral.kind, coral.device, coral.usable) == ("coral-pcie", "/dev/apex_0", True)


def test_coral_pcie_without_its_driver(only: Only) -> None:
    broken = only("coral-pcie-without-driver").broken
    assert broken is not None
    assert (broken.name, "gasket-dkms" in broken.remedy) == ("driver", True)


SECURE_BOOT: Entries = {"/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": b"\x06\0\0\0\x01"}


def test_a_hailo_whose_module_is_built_for_another_kernel(only: Only) -> None:
    hailo = PI5 | pci("0001:01:00.0", "1e60:2864", "0b4000") | osrelease("6.12.47-v8+")
    broken = only(hailo | {"/lib/modules/6.12.25-v8+/updates/dkms/hailo_pci.ko.xz": ""}).broken
    assert broken is not None
    assert "hailo_pci is built for 6.12.25-v8+, but 6.12.47-v8+ runs" in broken.detail


@pytest.mark.parametrize(
    ("device", "refused"),
    [("1ac1:089a", "Secure Boot refuses apex"), ("8086:5926", ""), ("1e60:2864", "Secure Boot refuses hailo_pci")],
)
def test_secure_boot_refuses_only_modules_that_no_kernel_brings(only: Only, device: str, refused: str) -> None:
    broken = only(RYZEN | SECURE_BOOT | pci("0000:03:00.0", device, "030000")).broken
    assert broken is not None
    assert broken.detail == (
        f"no driver is bound: {refused} unless its key is enrolled" if refused else "no driver is bound"
    )


@pytest.mark.parametrize(
    ("tree", "kind", "device"),
    [
        ("ncs1", "movidius-myriad-2", "1-2"),
        ("ncs2-boot", "movidius-myriad-x", "/dev/bus/usb/001/007"),
        ("ncs2-running", "movidius-myriad-x", "2-2"),
    ],
)
def test_movidius_is_found_and_never_usable(only: Only, tree: str, kind: str, device: str) -> None:
    stick = only(tree)
    assert (stick.kind, stick.device, stick.usable) == (kind, device, False)
    assert stick.broken is not None
    assert stick.broken.name == "runtime"
    assert "needs OpenVINO 2022.3" in stick.broken.detail
    assert "OpenVINO 2022.3" in stick.broken.remedy


def test_hailo8_is_reported_without_a_runtime(only: Only) -> None:
    hailo = only("pi5-hailo8")
    assert (hailo.kind, hailo.device) == ("hailo-8", "/dev/hailo0")
    assert "8L" in hailo.name
    assert hailo.broken is not None
    assert (hailo.broken.name, "no runtime" in hailo.broken.detail) == ("runtime", True)


def test_the_driver_of_the_10h_does_not_bind_a_hailo8(only: Only) -> None:
    ok, detail, remedy = rung(only("pi5-hailo8-wrong-driver"), "driver")
    assert (ok, detail) == (False, "hailo1x is loaded, which does not bind a Hailo-8")
    assert "hailo-all" in remedy


def test_a_hailo8_that_claims_the_wrong_driver(only: Only) -> None:
    hailo = only(PI5 | pci("0001:01:00.0", "1e60:2864", "0b4000", "hailo1x") | {"/dev/hailo0": Node()})
    assert rung(hailo, "driver")[0] is False
    assert rung(hailo, "node")[0] is False


def test_hailo10h(only: Only) -> None:
    hailo = only("hailo10h")
    assert (hailo.kind, hailo.device, rung(hailo, "driver")[0]) == ("hailo-10h", "/dev/hailo0", True)


def test_two_hailos_have_the_nodes_that_their_class_names(probed: Probed) -> None:
    both = (
        pci("0000:05:00.0", "1e60:2864", "0b4000", "hailo")
        | pci("0000:06:00.0", "1e60:2864", "0b4000", "hailo")
        | {
            "/sys/class/hailo_chardev/hailo0/device": Link("/sys/devices/pci0000:00/0000:06:00.0"),
            "/sys/class/hailo_chardev/hailo1/device": Link("/sys/devices/pci0000:00/0000:05:00.0"),
            "/dev/hailo0": Node(),
            "/dev/hailo1": Node(),
        }
    )
    assert [hailo.device for hailo in probed(both).accelerators] == ["/dev/hailo1", "/dev/hailo0"]


def test_amd_gpu(only: Only) -> None:
    gpu = only("amd-gpu")
    assert (gpu.kind, gpu.device, gpu.usable) == ("amd-gpu", "/dev/dri/renderD128", True)
    assert rung(gpu, "permission")[1].startswith("/dev/kfd")


def test_amd_gpu_with_a_locked_compute_node(only: Only) -> None:
    assert rung(only(dict(TREES["amd-gpu"]) | {"/dev/kfd": Node(0o600)}), "permission")[0] is False


def test_amd_gpu_with_the_old_driver(only: Only) -> None:
    gpu = only(RYZEN | pci("0000:01:00.0", "1002:6811", "030000", "radeon", {"drm/renderD128": Node()}))
    assert rung(gpu, "driver")[:2] == (False, "radeon is bound, not amdgpu")


def test_nvidia_gpu_takes_name_and_node_from_the_driver(only: Only) -> None:
    gpu = only("nvidia-gpu")
    assert (gpu.kind, gpu.name, gpu.device) == ("nvidia-gpu", "NVIDIA GeForce RTX 4090", "/dev/nvidia3")
    assert (gpu.usable, gpu.facts["driver"]) == (True, "nvidia 550.54.14")


def test_nouveau_is_no_driver_for_inference_and_sound_no_gpu(probed: Probed) -> None:
    nvidia, amd = probed("amd-and-nvidia").accelerators
    assert (nvidia.kind, amd.kind) == ("nvidia-gpu", "amd-gpu")
    assert rung(nvidia, "driver")[0] is False
    assert "nouveau" in rung(nvidia, "driver")[1]
    assert "no compute" in rung(amd, "node")[1]


def test_an_npu_of_amd_is_reported_without_a_runtime(probed: Probed) -> None:
    gpu, npu = probed("amd-npu").accelerators
    assert (gpu.broken and gpu.broken.detail) == "there is no /dev/kfd: no compute"
    assert (npu.kind, npu.device, rung(npu, "driver")[1]) == ("amd-npu", "/dev/accel/accel0", "amdxdna is bound")
    assert npu.broken is not None
    assert npu.broken.name == "runtime"


@pytest.mark.parametrize(("speed", "slow"), [("12", True), ("480", True), ("5000", False), ("", False)])
def test_a_coral_on_usb_2_works_and_is_called_slow(only: Only, speed: str, slow: bool) -> None:
    coral = only(dict(TREES["pi4-coral-usb-fresh"]) | {"/sys/bus/usb/devices/1-1.2/speed": f"{speed}\n"})
    assert coral.usable
    assert [("USB 2" in found.detail, "USB 3 port" in found.remedy) for found in coral.warnings] == [
        (True, True)
    ] * slow


@pytest.mark.parametrize("pages", [{"/proc/self/smaps": "KernelPageSize:   16 kB\n"}, osrelease("6.6.20+rpt-rpi-2712")])
def test_a_coral_on_pcie_needs_pages_of_4_kib(only: Only, pages: Entries) -> None:
    broken = only(dict(TREES["coral-pcie"]) | pages).broken
    assert broken is not None
    assert (broken.name, "16 KiB" in broken.detail, "kernel=kernel8.img" in broken.remedy) == ("driver", True, True)


@pytest.mark.parametrize("pages", [{}, {"/proc/self/smaps": "KernelPageSize:   4 kB\n"}, osrelease("6.6.20-v8+")])
def test_a_coral_on_pcie_works_with_pages_of_4_kib(only: Only, pages: Entries) -> None:
    assert only(dict(TREES["coral-pcie"]) | pages).usable


@pytest.mark.parametrize(
    ("option", "warned"),
    [
        ({}, ["driver"]),
        ({"/sys/module/hailo_pci/parameters/force_desc_page_size": "0\n"}, ["driver"]),
        ({"/sys/module/hailo_pci/parameters/force_desc_page_size": "4096\n"}, []),
        ({"/etc/modprobe.d/hailo_pci.conf": "options hailo_pci force_desc_page_size=4096\n"}, []),
    ],
)
def test_a_hailo8_whose_driver_forces_small_pages_is_fine(only: Only, option: Entries, warned: list[str]) -> None:
    hailo = only(dict(TREES["pi5-hailo8"]) | osrelease("6.6.20+rpt-rpi-2712") | option)
    assert [found.name for found in hailo.warnings] == warned


def test_equal_versions_of_hailo_are_fine_and_the_running_firmware_is_not_checked(only: Only) -> None:
    versions = {
        "/sys/module/hailo_pci/version": "4.21.0\n",
        "/usr/lib/libhailort.so.4.21.0": "",
        "/lib/firmware/hailo/hailo8_fw.4.21.0.bin": "",
    }
    hailo = only(dict(TREES["pi5-hailo8"]) | versions)
    assert rung(hailo, "library")[0] is None
    assert rung(hailo, "firmware")[:2] == (None, rung(hailo, "firmware")[1])
    assert "could not be checked" in rung(hailo, "firmware")[1]


@pytest.mark.parametrize(("sign", "ok"), [({}, False), ({"/.dockerenv": ""}, None)])
def test_missing_firmware_is_not_told_in_a_container(only: Only, sign: Entries, ok: bool | None) -> None:
    hailo = only(dict(TREES["pi5-hailo8"]) | {"/lib/firmware/regulatory.db": ""} | sign)
    assert rung(hailo, "firmware")[0] is ok
