"""Root trees after public reports: the facts that each thread gives, and words that name its cause.

Addresses that no thread shows are the kernel's usual ones or made up.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.devices.build import Entries, Folder, Link, Node, arm_cpuinfo, osrelease, pci, usb, x86_cpuinfo
from tests.devices.catalogue import A76, CORE_ULTRA, PI5, RENDER_NODE, RYZEN, XEON, dsp


@dataclass(frozen=True)
class Report:
    """What a machine shows; `says`: words of `doctor`, which finds a problem if `is_fault`; `profile` None: any."""

    root: Entries
    says: tuple[str, ...]
    profile: str | None = None
    is_fault: bool = True


HIDDEN: Entries = {
    "/proc/device-tree": Link("/sys/firmware/devicetree/base"),
    "/sys/firmware": Folder(),
    "/.dockerenv": "",
    "/dev/null": Node(),
}
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
CORAL, HAILO8 = pci("0000:03:00.0", "1ac1:089a", "088000"), pci("0001:01:00.0", "1e60:2864", "0b4000", "hailo")
IGPU = pci("0000:00:02.0", "8086:5926", "030000", "i915", RENDER_NODE)
WSL: Entries = {
    "/proc/sys/kernel/osrelease": "6.6.87.2-microsoft-standard-WSL2\n",
    "/sys/bus/pci/devices": Folder(),
    "/dev/dxg": Node(),
}
NVIDIA = pci("0000:01:00.0", "10de:2684", "030000", "nvidia") | {"/dev/nvidia0": Node()}


def soc0(family: str, number: str, machine: str) -> Entries:
    """Return what the kernel says of the chip where no device tree is visible."""
    names = {"family": family, "soc_id": number, "machine": machine}
    return {f"/sys/devices/soc0/{name}": f"{text}\n" for name, text in names.items()}


def module(name: str, version: str = "") -> Entries:
    """Return a loaded module."""
    return {f"/sys/module/{name}/version": f"{version}\n"} if version else {f"/sys/module/{name}/refcnt": "0\n"}


def rk35(cores: Entries, entry: str) -> Entries:
    """Return a Rockchip board in a container: devfreq is visible, the NPU's driver is part of the kernel."""
    return HIDDEN | cores | {f"/sys/class/devfreq/{entry}/cur_freq": "1000000000\n"}


A55, A55_A76 = arm_cpuinfo(*["0xd05"] * 4, features=A76), arm_cpuinfo("0xd05", "0xd0b", features=A76)

REPORTS: dict[str, Report] = {
    "jperkin/node-rpio#154": Report(
        HIDDEN
        | {
            "/proc/cpuinfo": arm_cpuinfo("0xd08", features="fp asimd")["/proc/cpuinfo"]
            + "Model\t: Raspberry Pi 4 Model B Rev 1.4\n"
        },  # type: ignore[operator]
        ("device tree is hidden", "/proc/cpuinfo shows brcm,bcm2711", "none is expected"),
        "raspberry-pi-4",
        is_fault=False,
    ),
    "ultralytics/ultralytics#18449": Report(
        HIDDEN | arm_cpuinfo("0xd42", features=A76) | soc0("Tegra", "35", "NVIDIA Jetson Orin Nano Developer Kit"),
        ("nvidia-jetson-gpu", "node: there is no /dev/nvgpu", "soc0 shows nvidia,tegra234"),
        "jetson-orin",
    ),
    "flashrt-project/FlashRT#7": Report(
        HIDDEN | soc0("Tegra", "38", "NVIDIA Jetson AGX Thor Developer Kit") | module("nvidia"),
        ("nvidia-jetson-gpu", "node: there is no /dev/nvgpu", "--runtime nvidia"),
        "jetson",
    ),
    "NVIDIA/nvidia-docker#1021": Report(
        HIDDEN
        | arm_cpuinfo("0x004", features="fp asimd", implementer="0x4e")
        | {f"/dev/{name}": Node() for name in ("nvhost-ctrl", "nvhost-ctrl-gpu", "nvmap", "nvhost-gpu")},
        ("/dev/nvhost-ctrl shows nvidia,tegra194"),
        "jetson-xavier",
        is_fault=False,
    ),
    "airockchip/rknn-toolkit2#33": Report(
        rk35(A55_A76, "fdab0000.npu") | {"/dev/dri/renderD129": Node()},
        ("rockchip-npu", "no runtime", "fdab0000.npu shows rockchip,rk3588", "systempaths=unconfined"),
        "rockchip-rk3588",
    ),
    "invisiofficial/rk-llama.cpp#19": Report(
        HIDDEN | A55_A76 | {"/dev/mpp_service": Node(), "/dev/dri/renderD129": Node()},
        ("runtime: this product", "/dev/mpp_service shows rockchip,rk3588", "librknnrt.so", "systempaths=unconfined"),
        "rockchip-rk3588",
    ),
    "blakeblackshear/frigate#8382": Report(
        rk35(A55, "fde40000.npu"),
        ("node of the NPU in /dev/dri", "fde40000.npu shows rockchip,rk3568"),
        "generic-arm64",
    ),
    "blakeblackshear/frigate-hass-addons#241": Report(
        PI5
        | HAILO8
        | module("hailo_pci", "4.21.0")
        | {
            "/dev/hailo0": Node(),
            "/usr/lib/libhailort.so": Link("libhailort.so.4.19.0"),
            "/usr/lib/libhailort.so.4.19.0": "",
        },
        ("library: the driver is 4.21.0, libhailort.so is 4.19.0", "install HailoRT 4.21.0"),
    ),
    "hailo-ai/hailo-rpi5-examples#142": Report(
        PI5
        | HAILO8
        | module("hailo_pci", "4.21.0")
        | {"/dev/hailo0": Node(), "/lib/firmware/hailo/hailo8_fw.4.20.0.bin": ""},
        ("firmware: the driver is 4.21.0, the firmware in /lib/firmware/hailo is 4.20.0",),
    ),
    "SEAME-pt/Team5_Senna_Tech#224": Report(
        PI5 | HAILO8 | osrelease("6.6.63-v8-16k+") | module("hailo_pci", "4.20.0") | {"/dev/hailo0": Node()},
        ("pages of 16 KiB", "max_desc_page_size", "force_desc_page_size=4096"),
    ),
    "home-assistant/operating-system#3663": Report(
        PI5 | HAILO8 | module("hailo_pci", "4.17.0") | {"/dev/hailo0": Node(), "/lib/firmware/brcm/wifi.bin": ""},
        ("firmware: there is no file in /lib/firmware/hailo",),
    ),
    "raspberrypi/firmware#1895": Report(
        PI5 | pci("0000:05:00.0", "1e60:2864", "0b4000") | module("hailo_pci", "4.17.0") | {"/dev/null": Node()},
        ("no driver is bound, although module hailo_pci is loaded", "interrupts"),
    ),
    "jsapede/frigate-proxmox-docker-openvino#2": Report(
        XEON | IGPU | {"/dev/dri/renderD128": Node(0o660, group=0)},
        ("permission: /dev/dri/renderD128 has mode 0660", "udev"),
    ),
    "TheHellSite/proxmox_collection#1": Report(
        XEON | IGPU | {"/dev/dri/renderD128": Node(0o660, group=65534)},
        ("permission: /dev/dri/renderD128 has mode 0660", "gid=NUMBER"),
    ),
    "tteck/Proxmox#24": Report(
        XEON | pci("0000:00:02.0", "8086:5927", "030000", "i915") | {"/dev/null": Node()},
        ("node: there is no /dev/dri/renderD", "in Proxmox dev0: NODE"),
    ),
    "intel/linux-npu-driver#31": Report(
        CORE_ULTRA
        | pci("0000:00:0b.0", "8086:7d1d", "120000")
        | module("intel_vpu")
        | {"/lib/firmware/i915/tgl_guc_70.bin": "", "/dev/null": Node()},
        ("firmware: there is no file in /lib/firmware/intel/vpu", "intel-fw-npu"),
    ),
    "amd/xdna-driver#282": Report(
        x86_cpuinfo("AuthenticAMD", "AMD Ryzen 9 7940HS w/ Radeon 780M Graphics", 1, "avx2")
        | pci("0000:c5:00.1", "1022:1502", "118000")
        | module("amdxdna")
        | {"/lib/firmware/amdgpu/gc_11_0_1.bin": "", "/dev/null": Node()},
        ("amd-npu", "firmware: there is no file in /lib/firmware/amdnpu"),
    ),
    "amd/xdna-driver#389": Report(
        x86_cpuinfo("AuthenticAMD", "AMD Ryzen 7 7840HS w/ Radeon 780M Graphics", 1, "avx2")
        | {"/sys/bus/pci/devices": Folder()}
        | module("amdxdna"),
        ("amd-npu", "7840HS w/ Radeon 780M Graphics has one and module amdxdna is loaded", "firmware set-up"),
    ),
    "lxc/incus-os#891": Report(
        XEON | pci("0000:0c:00.0", "8086:e212", "030000") | module("xe") | {"/dev/null": Node()},
        ("no driver is bound, although module xe is loaded", "grep -iE 'xe|firmware'"),
    ),
    "oddmario/NVIDIA-Ubuntu-Driver-Guide#4": Report(
        RYZEN
        | NVIDIA
        | {
            "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31\n",
            "/usr/lib/x86_64-linux-gnu/libcuda.so.1": Link("libcuda.so.550.107.02"),
            "/usr/lib/x86_64-linux-gnu/libcuda.so.550.107.02": "",
        },
        ("library: the driver is 550.90.07, libcuda.so is 550.107.02", "restart"),
    ),
    "beclab/Olares#3963": Report(
        RYZEN | pci("0000:01:00.0", "10de:2684", "030000", "NovaCore") | {"/dev/null": Node()},
        ("NovaCore is bound, not nvidia", "blacklist"),
    ),
    "microsoft/pai#2962": Report(
        XEON | pci("0000:01:00.0", "10de:1b80", "030000", "nouveau") | {"/dev/null": Node()},
        ("nouveau is bound, not nvidia", "nouveau and nova have no CUDA"),
    ),
    "microsoft/WSL#40842": Report(
        CORE_ULTRA | WSL,
        ("intel-npu", "Core(TM) Ultra 7 has one", "WSL2 passes on only GPUs"),
    ),
    "microsoft/onnxruntime#27286": Report(
        RYZEN | WSL | {"/usr/lib/wsl/lib/libcuda.so.1": ""},
        ("WSL2 passes on only GPUs, as /dev/dxg"),
        "nvidia-gpu",
        is_fault=False,
    ),
    "ROCm/legacy-rocm-build#1643": Report(
        RYZEN | pci("0000:03:00.0", "1002:73bf", "030000", "amdgpu", RENDER_NODE),
        ("there is no /dev/kfd: no compute", "CONFIG_HSA_AMD"),
    ),
    "KyleGospo/gasket-dkms#20": Report(
        XEON
        | CORAL
        | osrelease("6.14.0-24-generic")
        | {
            "/lib/modules/6.11.0-29-generic/updates/dkms/apex.ko.zst": "",
            "/lib/modules/6.14.0-24-generic/modules.dep": "",
            "/dev/null": Node(),
        },
        ("apex is built for 6.11.0-29-generic, but 6.14.0-24-generic runs", "dkms autoinstall"),
    ),
    "google/gasket-driver#11": Report(
        XEON
        | CORAL
        | osrelease("6.2.11-300.fc38.x86_64")
        | {
            "/lib/modules/6.2.11-300.fc38.x86_64/extra/apex.ko.xz": "",
            SECURE_BOOT: b"\x06\0\0\0\x01",
            "/dev/null": Node(),
        },
        ("Secure Boot refuses apex", "mokutil --import"),
    ),
    "google-coral/edgetpu#742": Report(
        XEON | CORAL | module("apex") | module("gasket", "1.1.4") | {"/dev/null": Node()},
        ("no driver is bound, although module apex is loaded", "dmesg"),
    ),
    "google/gasket-driver#19": Report(
        XEON | pci("0000:65:00.0", "1ac1:089a", "088000", "apex") | module("apex") | {"/dev/null": Node()},
        ("node: there is no /dev/apex_*", "modprobe -r apex gasket"),
    ),
    "magic-blue-smoke/Dual-Edge-TPU-Adapter#71": Report(
        XEON | {"/sys/bus/pci/devices": Folder()} | module("apex"),
        ("coral-pcie", "module apex is loaded, but none is on the bus", "the slot has PCIe"),
    ),
    "magic-blue-smoke/Dual-Edge-TPU-Adapter#57": Report(
        XEON
        | pci("0000:03:00.0", "1ac1:089a", "088000", "vfio-pci")
        | pci("0000:04:00.0", "1ac1:089a", "088000", "vfio-pci")
        | {"/dev/null": Node()},
        ("coral-pcie at 0000:04:00.0", "vfio-pci is bound, not apex", "virtual machine"),
    ),
    "openvinotoolkit/openvino#6609": Report(
        XEON | usb("1-2", "03e7", "2485", (1, 7), Node(0o664)),
        ("movidius-myriad-x", "needs OpenVINO 2022.3"),
    ),
    "qualcomm-linux/kernel#1086": Report(
        {path: entry for path, entry in dsp("offline").items() if path != "/dev/fastrpc-cdsp"},
        ("firmware: remoteproc2 (cdsp) is offline", "echo start"),
        "qualcomm",
    ),
    "radxa-docs/docs#1303": Report(
        HIDDEN | A55_A76 | soc0("Snapdragon", "498", "QCS6490") | {"/dev/fastrpc-cdsp": Node(0o600)},
        ("permission: /dev/fastrpc-cdsp has mode 0600", "soc0 shows qcom,qcs6490"),
        "qualcomm",
    ),
}
