"""An emulated arm64 machine: Debian 13 with the arm64 packages of this tree, in qemu's user mode."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.devices import catalogue
from tests.devices.build import Entry, arm_cpuinfo, build
from tests.system.debian import LIMIT_S, debian, packages
from tests.system.installation import REPOSITORY, run

INCLUDED = "systemd-standalone-sysusers,python3,libstdc++6,libgomp1"
WANTED = "edge-gateway edge-gateway-openvino edge-gateway-litert"
COMMAND = ("/usr/lib/edge-gateway/bin/python3", "-m", "gateway")
HANDLER = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")
PROGRAMS = ("qemu-aarch64-static", "update-binfmts", "mmdebstrap", "arch-test", "unshare")
NEEDED = "run `make debian-arm64`; it installs qemu-user-static, binfmt-support, arch-test and mmdebstrap"


@dataclass(frozen=True, slots=True)
class Core:
    """A core that qemu imitates, and what an arm64 kernel says of it."""

    name: str
    part: str
    midr: str
    features: str


A72 = Core("cortex-a72", "0xd08", "0x00000000410fd083", catalogue.A72)
"""The Raspberry Pi 4's: no dot product, no half precision."""
A76 = Core("cortex-a76", "0xd0b", "0x00000000414fd0b1", catalogue.A76)
"""The Raspberry Pi 5's: both."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Emulated machine that runs `edge-gateway` on arm64. Both machines see `folder` under the same name."""

    core: Core
    folder: Path
    root: Path

    @property
    def command(self) -> tuple[str, ...]:
        """`edge-gateway`, to be followed by its arguments."""
        script = Path(__file__).with_name("arm64.sh")
        paths = (self.root, self.folder / "machine", REPOSITORY, self.folder)
        return ("unshare", "--mount", "bash", *map(str, (script, *paths)), *COMMAND)

    @property
    def environ(self) -> Mapping[str, str]:
        """Variables that the command needs in addition to this process's environment."""
        return {"QEMU_CPU": self.core.name, "LC_ALL": "C.UTF-8", "HOME": "/root"}

    def ask(self, *arguments: str | Path) -> tuple[int, str]:
        """Exit code and standard output; what was said on standard error is shown where there is no output."""
        environ = {**os.environ, **self.environ}
        done = run(*self.command, *arguments, check=False, env=environ)
        assert done.stdout, f"{arguments} ended with {done.returncode} and said nothing but {done.stderr}"
        return done.returncode, done.stdout


def installed(folder: Path) -> Path:
    """Return the root of a Debian in which dpkg installed the packages; their scripts ran in emulation."""
    _can_emulate()
    packages(folder / "debs", "trixie", "arm64", "0.2.0", WANTED)
    root = folder / "root"
    run("cp", "--archive", debian("trixie", INCLUDED, "arm64"), root)
    (folder / "debs").rename(root / "debs")
    run("chroot", root, "sh", "-c", "dpkg --install /debs/*.deb && edge-gateway --version", limit_s=LIMIT_S)
    return root


def machine(core: Core, folder: Path, root: Path) -> Machine:
    """Make the emulated machine with this core."""
    cores = os.cpu_count() or 1
    build(folder / "machine", {**arm_cpuinfo(*[core.part] * cores, features=core.features), **_cores(core, cores)})
    return Machine(core, folder, root)


def _cores(core: Core, count: int) -> dict[str, Entry]:
    """Return what an arm64 kernel shows of `count` equal cores in /sys; OpenVINO dies where it finds no topology."""
    home, whole = "/sys/devices/system/cpu", _mask((1 << count) - 1)
    found: dict[str, Entry] = {f"{home}/{name}": f"0-{count - 1}\n" for name in ("possible", "present", "online")}
    for number in range(count):
        alone = _mask(1 << number)
        topology = {"core_id": f"{number}\n", "physical_package_id": "0\n", "core_cpus": alone, "package_cpus": whole}
        topology |= {"thread_siblings": alone, "core_siblings": whole}
        found |= {f"{home}/cpu{number}/topology/{name}": text for name, text in topology.items()}
        found[f"{home}/cpu{number}/regs/identification/midr_el1"] = f"{core.midr}\n"
    return found


def _mask(bits: int) -> str:
    """Return a set of processors as sysfs writes it: groups of 32 bits in hex."""
    digits = f"{bits:x}"
    digits = digits.zfill(-(-len(digits) // 8) * 8)
    return ",".join(digits[start : start + 8] for start in range(0, len(digits), 8)) + "\n"


def _can_emulate() -> None:
    assert os.geteuid() == 0, "root is needed to mount the emulated machine's folders"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    assert not missing, f"{', '.join(missing)} missing: {NEEDED}"
    if platform.machine() == "aarch64" or HANDLER.exists():
        return
    said = run("update-binfmts", "--enable", "qemu-aarch64", check=False)  # no systemd: the package could not
    assert HANDLER.exists(), f"the kernel does not hand arm64 programs to qemu ({said.stderr.strip()}): {NEEDED}"
