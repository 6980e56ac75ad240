"""Root trees of machines of every family, from public facts (PCI and USB ids, device-tree strings, kernel names).

Addresses, numbers of nodes and frequencies are made up; what the detector must recognise is not.
"""

from __future__ import annotations

from tests.devices.build import Entries, Folder, Link, Node, arm_cpuinfo, device_tree, pci, usb, x86_cpuinfo

A72 = "fp asimd evtstrm crc32 cpuid"
A76 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
CORE_ULTRA = x86_cpuinfo("GenuineIntel", "Intel(R) Core(TM) Ultra 7", 4, "avx2 avx_vnni")
RYZEN = x86_cpuinfo("AuthenticAMD", "AMD Ryzen 7", 8, "avx2 avx512_vnni avx512_bf16")
XEON = x86_cpuinfo("GenuineIntel", "Intel(R) Xeon(R)", 2, "avx2 avx512_vnni amx_int8 amx_bf16")
PI4 = device_tree("Raspberry Pi 4 Model B Rev 1.4", "raspberrypi,4-model-b", "brcm,bcm2711") | arm_cpuinfo(
    *["0xd08"] * 4, features=A72
)
PI5 = device_tree("Raspberry Pi 5 Model B Rev 1.0", "raspberrypi,5-model-b", "brcm,bcm2712") | arm_cpuinfo(
    *["0xd0b"] * 4, features=A76
)
RK3588 = device_tree("Radxa ROCK 5B", "radxa,rock-5b", "rockchip,rk3588") | arm_cpuinfo(
    *["0xd05"] * 4, *["0xd0b"] * 4, features=A76
)
RB3 = device_tree("Qualcomm RB3 Gen 2", "qcom,qcs6490-rb3gen2", "qcom,qcm6490") | arm_cpuinfo(
    *["0xd05"] * 4, *["0xd41"] * 4, features=A76
)
NPU_NODE = {"accel/accel0": Node(0o660)}
RENDER_NODE = {"drm/card0": Node(0o660), "drm/renderD128": Node(0o660)}


def tegra_release(major: int, revision: str) -> Entries:
    """Return the first line of /etc/nv_tegra_release, as L4T writes it."""
    return {"/etc/nv_tegra_release": f"# R{major} (release), REVISION: {revision}, GCID: 1, EABI: aarch64\n"}


def jetson(board: str, chip: str, major: int, revision: str) -> Entries:
    """Return a Jetson's device tree and release."""
    return device_tree(f"NVIDIA {board}", f"nvidia,{board.lower()}", f"nvidia,{chip}") | tegra_release(major, revision)


def gpu_devfreq(entry: str, name: str) -> Entries:
    """Return a Jetson GPU: a platform device with devfreq, its node's name NUL-terminated."""
    home = f"/sys/devices/platform/bus@0/{entry}"
    return {
        f"{home}/of_node/name": f"{name}\0",
        f"{home}/devfreq/{entry}/device": Link("../.."),
        f"{home}/devfreq/{entry}/cur_freq": "306000000\n",
        f"/sys/class/devfreq/{entry}": Link(f"../../devices/platform/bus@0/{entry}/devfreq/{entry}"),
        "/sys/class/net/lo/mtu": "65536\n",
    }


def dsp(state: str) -> Entries:
    """Return a Qualcomm board with its two DSPs; the compute one is in `state`."""
    return RB3 | {
        "/sys/class/remoteproc/remoteproc0/name": "adsp\n",
        "/sys/class/remoteproc/remoteproc0/state": "running\n",
        "/sys/class/remoteproc/remoteproc2/name": "cdsp\n",
        "/sys/class/remoteproc/remoteproc2/state": f"{state}\n",
        "/dev/fastrpc-adsp": Node(),
        "/dev/fastrpc-cdsp": Node(),
    }


TREES: dict[str, Entries] = {
    "plain-x86": XEON
    | {
        "/proc/meminfo": "MemTotal:       16303456 kB\nMemFree: 1 kB\nMemAvailable:    8151728 kB\n",
        "/sys/class/dmi/id/sys_vendor": "LENOVO\n",
        "/sys/class/dmi/id/product_name": "ThinkEdge SE30\n",
        "/sys/devices/platform/simple-framebuffer.0/drm/card0/device": Link("../.."),
        "/sys/class/drm/card0": Link("../../devices/platform/simple-framebuffer.0/drm/card0"),
        "/sys/class/drm/card1/dev": "226:1\n",
        "/sys/class/drm/version": "drm 1.1.0 20060810\n",
        "/dev/dri/card0": Node(0o660),
    },
    "intel-npu-and-gpu": CORE_ULTRA
    | pci("0000:00:02.0", "8086:64a0", "030000", "xe", RENDER_NODE)
    | pci("0001:02:0b.0", "8086:643e", "120000", "intel_vpu", NPU_NODE),
    "intel-npu-without-driver": CORE_ULTRA
    | pci("0000:00:0b.0", "8086:b03e", "120000")
    | {"/lib/firmware/regulatory.db": "", "/dev/null": Node()},
    "intel-npu-passed-through": CORE_ULTRA
    | pci("0000:00:0b.0", "8086:7d1d", "120000", "vfio-pci")
    | {"/dev/null": Node()},
    "intel-npu-of-tomorrow": CORE_ULTRA | pci("0000:00:0b.0", "8086:ffff", "120000", "intel_vpu", NPU_NODE),
    "intel-gpu-only": CORE_ULTRA | pci("0000:00:02.0", "8086:46d1", "030000", "i915", RENDER_NODE),
    "intel-gpu-locked": CORE_ULTRA
    | pci("0000:00:02.0", "8086:46d1", "030000", "i915", {"drm/renderD128": Node(0o600)}),
    "amd-gpu": RYZEN
    | pci("0000:c4:00.0", "1002:15bf", "030000", "amdgpu", {"drm/renderD128": Node()})
    | {"/dev/kfd": Node()},
    "amd-npu": RYZEN
    | pci("0000:c5:00.0", "1002:1586", "038000", "amdgpu", {"drm/renderD128": Node()})
    | pci("0000:c5:00.1", "1022:17f0", "118000", "amdxdna", NPU_NODE),
    "amd-and-nvidia": RYZEN
    | pci("0000:c4:00.0", "1002:15bf", "038000", "amdgpu", {"drm/renderD128": Node()})
    | pci("0000:01:00.0", "10de:28e0", "030200", "nouveau", {"drm/renderD129": Node()})
    | pci("0000:01:00.1", "10de:22be", "040300", "snd_hda_intel"),
    "nvidia-gpu": RYZEN
    | pci("0000:01:00.0", "10de:2684", "030000", "nvidia")
    | {
        "/proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t NVIDIA GeForce RTX 4090\nDevice Minor: \t 3\n",
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22\n",
        "/dev/nvidia3": Node(),
        "/dev/nvidiactl": Node(),
    },
    "coral-pcie": XEON | pci("0000:03:00.0", "1ac1:089a", "088000", "apex", {"apex/apex_0": Node(0o660)}),
    "coral-pcie-without-driver": XEON | pci("0000:03:00.0", "1ac1:089a", "088000") | {"/dev/null": Node()},
    "pi4-coral-usb-fresh": PI4 | usb("1-1.2", "1a6e", "089a", (1, 4), Node(0o664)),
    "pi5-coral-usb-running": PI5 | usb("2-1", "18d1", "9302", (2, 3), Node(0o660)),
    "ncs1": XEON | usb("1-2", "03e7", "2150"),
    "ncs2-boot": XEON | usb("1-2", "03e7", "2485", (1, 7), Node()),
    "ncs2-running": XEON | usb("2-2", "03e7", "f63b"),
    "pi4": PI4,
    "pi5": PI5,
    "pi3": device_tree("Raspberry Pi 3 Model B Plus Rev 1.3", "raspberrypi,3-model-b-plus", "brcm,bcm2837")
    | arm_cpuinfo(*["0xd03"] * 4, features=A72),
    "pi5-hailo8": PI5 | pci("0001:01:00.0", "1e60:2864", "0b4000", "hailo") | {"/dev/hailo0": Node()},
    "pi5-hailo8-wrong-driver": PI5
    | pci("0001:01:00.0", "1e60:2864", "0b4000")
    | {"/sys/module/hailo1x": Folder(), "/dev/null": Node()},
    "hailo10h": XEON | pci("0000:05:00.0", "1e60:45c4", "0b4000", "hailo1x") | {"/dev/hailo0": Node()},
    "jetson-nano": jetson("P3450-0000", "tegra210", 32, "7.6")
    | gpu_devfreq("57000000.gpu", "gpu")
    | {"/dev/nvhost-ctrl-gpu": Node(0o660)},
    "jetson-tx2": jetson("Quill", "tegra186", 32, "7.1") | gpu_devfreq("17000000.gp10b", "gp10b"),
    "jetson-xavier": jetson("P3509-0000", "tegra194", 35, "4.1")
    | gpu_devfreq("17000000.gv11b", "gv11b")
    | arm_cpuinfo(*["0x004"] * 6, features="fp asimd aes asimdhp", implementer="0x4e"),
    "jetson-orin": jetson("P3737-0000", "tegra234", 36, "3.0")
    | gpu_devfreq("17000000.ga10b", "ga10b")
    | {"/dev/nvgpu/igpu0/ctrl": Node(), "/dev/nvhost-gpu": Node()},
    "jetson-thor": jetson("P3834-0008", "tegra264", 38, "2.0")
    | pci("0000:01:00.0", "10de:2b00", "030000", "nvidia")
    | {"/sys/module/nvidia": Folder(), "/sys/class/net/lo/mtu": "65536\n", "/dev/nvidia0": Node()},
    "jetson-in-a-container": tegra_release(36, "4.7"),
    "jetson-plain-kernel": jetson("P3737-0000", "tegra234", 36, "3.0")
    | {"/sys/class/net/lo/mtu": "65536\n", "/dev/null": Node()},
    "jetson-with-coral": jetson("P3737-0000", "tegra234", 36, "3.0") | usb("1-3", "1a6e", "089a"),
    "rk3588-vendor": RK3588
    | {
        "/sys/kernel/debug/rknpu/version": "RKNPU driver: v0.9.3\n",
        "/sys/class/devfreq/fdab0000.npu/cur_freq": "1000000000\n",
        "/dev/dri/renderD128": Node(),
        "/dev/dri/renderD129": Node(),
        "/sys/class/drm/renderD128/device/uevent": "DRIVER=panthor\n",
        "/sys/class/drm/renderD129/device/uevent": "DRIVER=RKNPU\n",
    },
    "rk3588-mainline": RK3588
    | {
        "/sys/class/accel/accel0/device/driver": Link("../../../../bus/platform/drivers/rocket"),
        "/sys/bus/platform/drivers/rocket/fdab0000.npu": Folder(),
        "/dev/accel/accel0": Node(),
    },
    "rk3568-without-driver": device_tree("ROCK 3A", "radxa,rock3a", "rockchip,rk3568") | {"/dev/null": Node()},
    "rk3399": device_tree("ROCK 4", "radxa,rockpi4", "rockchip,rk3399"),
    "qcs6490": dsp("running"),
    "qcs6490-dsp-off": dsp("offline"),
    "qcs6490-audio-dsp-only": RB3 | {"/dev/fastrpc-adsp": Node()},
}
