"""An emulated arm64 machine: Debian 12 and the locked aarch64 wheels, kept in the user's cache; qemu's user mode."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.devices import catalogue
from tests.devices.build import Entry, arm_cpuinfo, build
from tests.system.installation import REPOSITORY, run

LOCK = REPOSITORY / "requirements" / "runtime.txt"
SUITE, PYTHON, WHEELS = "bookworm", "3.11", "aarch64-manylinux_2_36"
"""Debian 12, its Python and its glibc."""
INCLUDED = "base-files,libc6,libstdc++6,python3"
HANDLER = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")
PROGRAMS = ("qemu-aarch64-static", "update-binfmts", "mmdebstrap", "unshare")
NEEDED = "run `make debian-arm64`; it installs qemu-user-static, binfmt-support and mmdebstrap"
COMMAND = ("/usr/bin/python3", "-m", "gateway")


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
    packages: Path

    @property
    def command(self) -> tuple[str, ...]:
        """`edge-gateway`, to be followed by its arguments."""
        script = Path(__file__).with_name("arm64.sh")
        paths = (self.root, self.packages, self.folder / "machine", REPOSITORY, self.folder)
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


def machine(core: Core, folder: Path) -> Machine:
    """Make what is missing of the emulated machine: 440 MB of the cache, once per lock."""
    _can_emulate()
    cache = _cache()
    cache.mkdir(parents=True, exist_ok=True)
    root, packages = cache / "root", cache / "packages"
    if not root.exists():
        _debian(root)
    if not packages.exists():
        _wheels(packages)
    cores = os.cpu_count() or 1
    build(folder / "machine", {**arm_cpuinfo(*[core.part] * cores, features=core.features), **_cores(core, cores)})
    return Machine(core, folder, root, packages)


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


def _cache() -> Path:
    """Return one folder per lock, so that a new lock gets new packages."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    told = hashlib.sha256(LOCK.read_bytes() + f"{SUITE} {INCLUDED} {WHEELS}".encode()).hexdigest()[:12]
    return Path(home) / "edge-inference-gateway" / f"arm64-{told}"


def _can_emulate() -> None:
    assert os.geteuid() == 0, "root is needed to mount the emulated machine's folders"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    assert not missing, f"{', '.join(missing)} missing: {NEEDED}"
    if platform.machine() == "aarch64" or HANDLER.exists():
        return
    said = run("update-binfmts", "--enable", "qemu-aarch64", check=False)  # no systemd: the package could not
    assert HANDLER.exists(), f"the kernel does not hand arm64 programs to qemu ({said.stderr.strip()}): {NEEDED}"


def _debian(root: Path) -> None:
    """Unpack Debian's own packages, checked by its keys, without running any of their programs."""
    merged = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"
    made = root.with_name("root.new")
    shutil.rmtree(made, ignore_errors=True)
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    source = f"deb [signed-by={keys}] {_mirror()} {SUITE} main"
    run(
        "mmdebstrap", "--variant=extract", "--architectures=arm64", merged, f"--include={INCLUDED}", SUITE, made, source
    )
    made.rename(root)


def _mirror() -> str:
    """Return the URI from which this machine's own apt gets Debian."""
    told = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(LABEL)", "Created-By: Packages").stdout
    for uri, codename, label in (line.split(maxsplit=2) for line in told.splitlines()):
        if label == "Debian" and not codename.endswith(("-security", "-updates", "-backports")):
            return uri
    raise AssertionError("apt names no Debian mirror here; add one to its sources")


def _wheels(packages: Path) -> None:
    """Install the locked wheels for aarch64, checked by hash."""
    made = packages.with_name("packages.new")
    shutil.rmtree(made, ignore_errors=True)
    where = ("--python-platform", WHEELS, "--python-version", PYTHON, "--only-binary", ":all:", "--target", made)
    uv = Path(sys.executable).with_name("uv")
    run(uv, "pip", "install", "--quiet", "--no-deps", "--require-hashes", *where, "-r", LOCK)
    made.rename(packages)
