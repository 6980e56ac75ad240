"""`make deb`: Debian packages for one release and architecture, from the locks, without emulation.

The packages share one virtual environment, /usr/lib/edge-gateway; that of edge-fleet is /usr/lib/edge-fleet. Wheels for
the Python of the release are downloaded by hash and unpacked, and nothing in them is run. debhelper builds the packages
from packaging/debian and from what is generated here: version, wheels, launchers, licences, bill of materials.
"""

from __future__ import annotations

import argparse
import email.utils
import fnmatch
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path
from typing import Any

from install import SOURCE, InstallError, make_tools, run, say
from layout import REFERENCE
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from docs import terminal
from gateway import __version__
from gateway.common.domain.installation import VENDORS
from gateway.device.installer import environment

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
FLEET, GATEWAY, WORKSHOP = "edge-fleet", "edge-gateway", "edge-gateway-workshop"
OLDEST_GLIBC = 17
"""Minor version of the oldest glibc 2 that wheels are made for (manylinux2014, PEP 599)."""


@dataclass(frozen=True, slots=True)
class Release:
    """Release of a distribution: minor version of its Python 3, that of its glibc 2, suffix of versions for it."""

    python: int
    glibc: int
    suffix: str


RELEASES = {
    "bookworm": Release(11, 36, "deb12"),
    "jammy": Release(10, 35, "ubuntu22.04"),
    "noble": Release(12, 39, "ubuntu24.04"),
    "trixie": Release(13, 41, "deb13"),
}
EXTRAS = {
    GATEWAY: ("onnx", "pull"),
    "edge-gateway-openvino": ("openvino",),
    "edge-gateway-litert": ("litert",),
    "edge-gateway-llamacpp": ("llamacpp",),
    "edge-agent": ("agent",),
    "edge-gateway-camera": ("camera",),
    WORKSHOP: ("workshop",),
}
"""Extras of pyproject.toml that each package holds. A wheel that several need is in the first of them."""
QUANTIZERS = ("absl-py", "immutabledict", "networkx", "safetensors", "scipy")
"""What the tools of the extra `workshop` import. They name far more (requirements/workshop.in)."""
LOCKS: Mapping[str, tuple[str, ...]] = {
    "runtime.txt": (),
    "fleet.txt": (),
    "camera.txt": ("av",),
    "language.txt": (),
    "workshop.txt": ("nncf", "ai-edge-quantizer", *QUANTIZERS),
    "test.txt": ("onnx",),
}
"""Locked requirements, and which of them are wanted: all if none is named."""
LEFT_OUT = (
    *("openvino-telemetry", "polyfactory", "faker", "pip", "tzdata"),
    *("pygments", "markdown-it-py", "mdurl"),
)
"""Usage reporter, makers of examples, installer; the time zones that Debian's tzdata has; what Rich colours source
code and Markdown with, which no program here shows."""
DROPPED = (
    *("*/tests/*", "*/test/*", "*_tests.cpython-*", "*/test-*.sh", "*/.gitignore", "*.pyi", "*.pxd", "*/include/*"),
    *("*.dist-info/RECORD", "*.data/*", "*.a", "*.lib", "*.cmake", "numpy/f2py/*"),
    "onnxruntime/capi/libonnxruntime.so*",  # for programs in C: Python's module holds all of it
    *("PIL/_avif.*", "pillow.libs/libavif-*", "PIL/_imagingcms.*", "pillow.libs/liblcms2-*", "PIL/_imagingtk.*"),
    "numpy/_core/_simd.*",  # for the tests of numpy
    "numpy/distutils/*",  # builds extensions
    "yaml/_yaml.*",  # a faster reader of YAML, which nothing here asks for
)
"""Files of wheels that no program here reads."""
QUANTIZING = (
    "onnxruntime/quantization/*",
    "onnxruntime/transformers/*",
    "onnxruntime/tools/*",
    "onnxruntime/datasets/*",
)
"""Files of ONNX Runtime that only the workshop imports."""
QUANTIZING_NEEDS = ("coloredlogs", "humanfriendly", "mpmath", "sympy")
"""What those files import, and ONNX Runtime 1.23 names (for Python 3.10)."""
SCRIPTS = {
    "postinst": """case "$1" in
configure) py3compile -p {package} {home} ;;
triggered) [ ! -d /run/systemd/system ] || deb-systemd-invoke try-restart edge-gateway.service edge-agent.service ;;
esac
""",
    "prerm": "py3clean -p {package}\n",
}
"""Lines of maintainer scripts that debhelper does not write: byte code halves the time of a start."""
PURGED = {
    GATEWAY: "/var/lib/edge-gateway /var/cache/edge-gateway /etc/edge-gateway/conf.d/50-setup.toml "
    "/etc/edge-gateway/tokens /etc/systemd/system/edge-gateway.service.d/50-memory.conf",
    "edge-agent": "/var/lib/edge-agent /var/lib/edge-software",
    FLEET: "/var/lib/edge-fleet",
}
"""Folders of state and files of `edge-gateway setup` that `apt purge` removes."""
EMPTIED = {
    GATEWAY: "/etc/edge-gateway/conf.d /etc/edge-gateway /etc/systemd/system/edge-gateway.service.d",
    "edge-agent": "/etc/edge-gateway",
}
"""Folders that it removes if nothing else is in them."""

MAINTAINER = "Edge inference gateway <packages@edge-inference-gateway.invalid>"
FFMPEG = """
av holds FFmpeg (libavcodec, libavformat, libavutil and others) and the libraries that it uses. Its makers built them
from https://github.com/PyAV-Org/pyav-ffmpeg, which names each source and its licence. Sources of FFmpeg:
https://ffmpeg.org/releases/
"""


@dataclass(frozen=True, slots=True)
class Wheel:
    """Downloaded or built wheel."""

    file: Path

    @property
    def name(self) -> str:
        return str(canonicalize_name(self.file.name.split("-")[0]))

    @property
    def version(self) -> str:
        return self.file.name.split("-")[1]

    @property
    def metadata(self) -> Message:
        with zipfile.ZipFile(self.file) as archive:
            (name,) = (name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            return HeaderParser().parsestr(archive.read(name).decode())

    @property
    def licence(self) -> str:
        """Licence in one line, as its makers named it."""
        fields = self.metadata
        trove = [text.rpartition(" :: ")[2] for text in fields.get_all("Classifier", []) if text.startswith("License")]
        named = fields.get("License-Expression") or (fields.get("License") or "").strip().split("\n")[0][:80]
        return named or ", ".join(trove) or "see its folder"

    @property
    def component(self) -> dict[str, Any]:
        """Entry of this wheel in a bill of materials."""
        hashes = [{"alg": "SHA-256", "content": hashlib.sha256(self.file.read_bytes()).hexdigest()}]
        licences = [{"license": {"name": self.licence}}]
        return {**component(self.name, self.version), "hashes": hashes, "licenses": licences}

    def needs(self, extras: Sequence[str], target: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the distributions that it needs on the target, with their extras."""
        for text in self.metadata.get_all("Requires-Dist", []):
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({**target, "extra": one}) for one in ("", *extras)):
                yield str(canonicalize_name(needed.name)), tuple(needed.extras)

    def unpack(self, site: Path, wanted: Sequence[str] = ("*",), unwanted: Sequence[str] = ()) -> None:
        """Extract the files that match `wanted`, but neither `unwanted` nor DROPPED. Raise InstallError."""
        with zipfile.ZipFile(self.file) as archive:
            for entry in archive.infolist():
                name = re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", entry.filename)
                if entry.is_dir() or not matches(name, wanted) or matches(name, (*unwanted, *DROPPED)):
                    continue
                if ".." in Path(name).parts or name.startswith("/"):
                    raise InstallError(f"{self.file.name} has a file outside its folder: {entry.filename}")
                (site / name).parent.mkdir(parents=True, exist_ok=True)
                (site / name).write_bytes(archive.read(entry))


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a path matches one of the patterns, in which "*" also stands for slashes."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def locked(lock: str) -> Iterator[tuple[Requirement, str]]:
    """Yield the requirements of a lock, each with the lines of its hashes."""
    text = re.sub(r"(?m)^#.*\n?", "", (SOURCE / "requirements" / lock).read_text())
    for block in re.split(r"\n(?=\S)", text.strip()):
        line, _, hashes = block.partition(" \\\n")
        yield Requirement(line), hashes


def component(name: str, version: str) -> dict[str, Any]:
    """Return the entry of a distribution of the Python Package Index in a bill of materials."""
    reference = f"pkg:pypi/{name}@{version}"
    return {"type": "library", "name": name, "version": version, "purl": reference, "bom-ref": reference}


def bill(whole: Mapping[str, Any], components: Sequence[Mapping[str, Any]]) -> str:
    """Return a bill of materials (CycloneDX 1.6, JSON)."""
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": whole}}
    return json.dumps({**head, "components": components}, indent=1) + "\n"


def version_for(suite: str) -> str:
    """Return the version of the packages for a release. A development version sorts before its release."""
    return f"{__version__.replace('.dev', '~dev')}+{RELEASES[suite].suffix}"


def commit_time_s() -> int:
    """Return the time of the present commit (UNIX time), or $SOURCE_DATE_EPOCH."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    asked = ("git", "log", "-1", "--format=%ct")
    return int(subprocess.run(asked, cwd=SOURCE, check=True, capture_output=True, text=True).stdout)


@dataclass(frozen=True)
class Build:
    """Packages of one release and architecture, in a work folder. `tools`: a Python with pip and hatchling."""

    suite: str
    architecture: str
    work: Path
    tools: Path

    @property
    def release(self) -> Release:
        return RELEASES[self.suite]

    @cached_property
    def time_s(self) -> int:
        """Time of all files and of the changelog: two builds of one commit are equal."""
        return commit_time_s()

    @cached_property
    def target(self) -> dict[str, str]:
        """Environment markers of the target (PEP 508)."""
        python = f"3.{self.release.python}"
        return {
            "implementation_name": "cpython", "os_name": "posix", "platform_machine": MACHINES[self.architecture],
            "platform_python_implementation": "CPython", "platform_system": "Linux", "sys_platform": "linux",
            "python_version": python, "python_full_version": f"{python}.0", "extra": "",
        }  # fmt: skip

    @property
    def version(self) -> str:
        return version_for(self.suite)

    def lock(self) -> str:
        """Return the locked requirements of the target. pip would evaluate their markers for its own Python."""
        found: dict[str, str] = {}
        for lock, wanted in LOCKS.items():
            for needed, hashes in locked(lock):
                name = str(canonicalize_name(needed.name))
                applies = needed.marker is None or needed.marker.evaluate(self.target)
                if applies and name not in LEFT_OUT and (not wanted or name in wanted):
                    found.setdefault(name, f"{needed.name}{needed.specifier} \\\n{hashes}")
        return "\n".join(found.values())

    def download(self) -> dict[str, Wheel]:
        """Return the locked wheels by name."""
        machine = MACHINES[self.architecture]
        tags = [f"manylinux_2_{minor}_{machine}" for minor in range(self.release.glibc, OLDEST_GLIBC - 1, -1)]
        tags += [f"manylinux2014_{machine}", f"manylinux_2_12_{machine}"]
        folder, requirements = self.work / "wheels", self.work / "requirements.txt"
        requirements.write_text(self.lock())
        pip = (self.tools, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps")
        options = ("--require-hashes", "--only-binary", ":all:", "--implementation", "cp")
        platforms = [word for tag in tags for word in ("--platform", tag)]
        python = ("--python-version", f"3.{self.release.python}")
        run(*pip, *options, *python, *platforms, "-d", folder, "-r", requirements)
        return {wheel.name: wheel for wheel in map(Wheel, sorted(folder.glob("*.whl")))}

    def parts(self, ours: Wheel, wheels: Mapping[str, Wheel]) -> dict[str, dict[str, Wheel]]:
        """Return the wheels of each package."""

        def closure(extras: Sequence[str]) -> dict[str, Wheel]:
            found, waiting = dict[str, Wheel](), list(ours.needs(extras, self.target))
            while waiting:
                name, more = waiting.pop()
                if name in wheels and name not in found:
                    found[name] = wheels[name]
                    waiting += wheels[name].needs(more, self.target)
            return found

        taken: dict[str, dict[str, Wheel]] = {}
        for package, extras in EXTRAS.items():
            needed = closure(extras) | ({name: wheels[name] for name in QUANTIZERS} if package == WORKSHOP else {})
            before = {name for others in taken.values() for name in others}
            before |= set() if package == WORKSHOP else set(QUANTIZING_NEEDS)
            taken[package] = {name: wheel for name, wheel in needed.items() if name not in before}
        taken[GATEWAY][ours.name] = ours
        return {**taken, FLEET: {ours.name: ours, **closure(("fleet",))}}

    def stage(self, package: str, wheels: Mapping[str, Wheel], everything: Mapping[str, Wheel]) -> None:
        """Lay out the files of a package, and what debhelper needs for it."""
        root, name = self.work / "source/stage" / package, FLEET if package == FLEET else GATEWAY
        home, debian = root / "usr/lib" / name, self.work / "source/debian"
        site = home / f"lib/python3.{self.release.python}/site-packages"
        for wheel in wheels.values():
            wheel.unpack(site, unwanted=() if package == FLEET else ("fleet/*", *QUANTIZING))
        if package == WORKSHOP:
            everything["onnxruntime"].unpack(site, wanted=QUANTIZING)
        if package == GATEWAY:
            first = f"import sys; sys.path.insert(len(sys.path) - 1, {VENDORS!r})\n"  # before the last, this folder
            (site / "vendors.pth").write_text(first)
        if package in {GATEWAY, FLEET}:
            (home / "bin").mkdir()
            (home / "bin/python3").symlink_to(f"/usr/bin/python3.{self.release.python}")
            (home / "pyvenv.cfg").write_text(
                f"home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.{self.release.python}\n"
            )
        documents = root / "usr/share/doc" / package
        documents.mkdir(parents=True)
        whole = {"type": "application", "name": package, "version": self.version}
        (documents / "sbom.cdx.json").write_text(bill(whole, [wheel.component for _, wheel in sorted(wheels.items())]))
        (debian / f"{package}.copyright").write_text(self.licences(package, wheels))
        for script, text in SCRIPTS.items():
            body = text.format(package=package, home=f"/usr/lib/{name}")
            (debian / f"{package}.{script}").write_text(f"#!/bin/sh\nset -e\n{body}#DEBHELPER#\n")
        if folders := PURGED.get(package):
            emptied = f"rmdir {EMPTIED[package]} 2>/dev/null || true" if package in EMPTIED else ":"
            body = f'if [ "$1" = purge ]; then rm -rf {folders}; {emptied}; fi\n'
            (debian / f"{package}.postrm").write_text(f"#!/bin/sh\nset -e\n{body}#DEBHELPER#\n")

    def licences(self, package: str, wheels: Mapping[str, Wheel]) -> str:
        """Return the text of `copyright`: our licence, and that of each wheel with the place of its texts."""
        lines = [
            (SOURCE / "packaging/debian/copyright").read_text(),
            f"{package} holds these distributions of the Python Package Index. The texts of their licences are in",
            "*.dist-info, next to their code:",
            *(f"  {wheel.name} {wheel.version}: {wheel.licence}" for _, wheel in sorted(wheels.items())),
            FFMPEG if "av" in wheels else "",
        ]
        return "\n".join(lines)

    def add_programs(self) -> None:
        """Add launchers, samples and units, which are those of `make install` with /usr in place of its prefix."""
        for program, package in {**environment.PROGRAMS, FLEET: "fleet"}.items():
            owner = "edge-agent" if program == "edge-software" else program
            launcher = environment.launcher_text(program, package)
            home = self.work / "source/stage" / owner / "usr/lib" / (FLEET if program == FLEET else GATEWAY)
            (home / "bin").mkdir(parents=True, exist_ok=True)
            (home / "bin" / program).write_text(launcher)
            (home / "bin" / program).chmod(0o755)
            link = self.work / "source/stage" / owner / "usr/bin" / program
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(f"../lib/{home.name}/bin/{program}")
            terminal.main(str(link.parent.with_name("share")), time.strftime("%F", time.gmtime(self.time_s)), program)
        debian = self.work / "source/debian"
        for owner in (GATEWAY, "edge-agent", FLEET):
            unit = (SOURCE / "systemd" / f"{owner}.service").read_text()
            unit = re.sub(r"/usr/local/share/doc/edge-gateway", f"/usr/share/doc/{owner}", unit)
            (debian / f"{owner}.service").write_text(re.sub(r"/usr/local/bin|/opt/edge-fleet/bin", "/usr/bin", unit))
            documents = self.work / "source/stage" / owner / "usr/share/doc" / owner
            shutil.copy(SOURCE / "packaging/README.md", documents)
            if owner == GATEWAY:
                share = self.work / "source/stage" / owner / "usr/share" / owner
                share.mkdir()
                for name in ("models.md", REFERENCE):
                    shutil.copy(SOURCE / "packaging" / name, share)
                for name in ("device_profiles", "models"):
                    site = f"../../lib/edge-gateway/lib/python3.{self.release.python}/site-packages"
                    (share / name).symlink_to(f"{site}/gateway/_share/{name}")
            if owner != FLEET:
                etc = self.work / "source/stage" / owner / "etc/edge-gateway"
                (etc / "conf.d" if owner == GATEWAY else etc).mkdir(parents=True)
                shutil.copy(SOURCE / "packaging" / f"{owner}.toml", etc)
        shutil.copy(SOURCE / "packaging/fleet.toml", documents)
        for owner in (GATEWAY, FLEET):
            shutil.copy(SOURCE / "systemd" / f"{owner}.sysusers", debian)
        folders = (SOURCE / "systemd/edge-gateway.tmpfiles").read_text()
        (debian / f"{GATEWAY}.tmpfiles").write_text(folders.replace("/usr/local", "/usr"))
        shutil.copy(SOURCE / "systemd/40-edge-gateway.rules", debian / f"{GATEWAY}.udev")

    def write_source(self) -> None:
        """Write the files of debhelper that depend on the release: changelog, dependencies, lintian's overrides."""
        debian = self.work / "source/debian"
        when = email.utils.formatdate(self.time_s)
        head = f"edge-inference-gateway ({self.version}) {self.suite}; urgency=medium"
        entry = f"{head}\n\n  * CHANGELOG.md says what is new.\n\n -- {MAINTAINER}  {when}\n"
        (debian / "changelog").write_text(entry)
        needed = f"libc6 (>= 2.28), python3 (>= 3.{self.release.python}~), python3 (<< 3.{self.release.python + 1}~)"
        control = debian / "control"
        control.write_text(control.read_text().replace("${python:Depends}", needed))
        overrides = (debian / "overrides").read_text()
        for package in (*EXTRAS, FLEET):
            (debian / f"{package}.lintian-overrides").write_text(overrides)

    def run(self, destination: Path) -> list[Path]:
        """Build, and return the packages. Raises InstallError, OSError, CalledProcessError."""
        shutil.copytree(SOURCE / "packaging/debian", self.work / "source/debian")
        say("building the wheel")
        run(self.tools, "-m", "hatchling", "build", "-t", "wheel", "-d", self.work / "ours", cwd=SOURCE)
        (ours,) = map(Wheel, (self.work / "ours").glob("*.whl"))
        say(f"downloading the locked wheels of {self.suite} {self.architecture} (about 200 MB)")
        wheels = self.download()
        for package, chosen in self.parts(ours, wheels).items():
            self.stage(package, chosen, wheels)
        self.add_programs()
        self.write_source()
        for path in sorted((self.work / "source").rglob("*"), reverse=True):
            os.utime(path, (self.time_s, self.time_s), follow_symlinks=False)
        say("building the packages")
        built = {**os.environ, "SOURCE_DATE_EPOCH": str(self.time_s), "DEB_BUILD_OPTIONS": "parallel=2"}
        words = (
            "dpkg-buildpackage",
            "--build=binary",
            "--no-check-builddeps",
            "--unsigned-changes",
            f"--host-arch={self.architecture}",
        )
        done = subprocess.run(words, cwd=self.work / "source", env=built, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InstallError(
                f"dpkg-buildpackage ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"
            )
        destination.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(file, destination)) for file in sorted(self.work.glob("*.deb"))]


def main() -> int:
    """Build; 0 fine, 2 usage, 3 something needed is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", choices=sorted(RELEASES), default="bookworm", help="release that they are for")
    parser.add_argument("--arch", choices=sorted(MACHINES), default="amd64", help="architecture that they are for")
    parser.add_argument("--dest", type=Path, default=SOURCE / "dist", help="folder of the packages")
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="edge-deb-") as folder:
            work = Path(folder)
            packages = Build(arguments.suite, arguments.arch, work, make_tools(work)).run(arguments.dest)
    except (InstallError, OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"packaging/deb.py: {error}\n")
        return 3
    for package in packages:
        say(f"{package.stat().st_size / 1e6:8.1f} MB  {package}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
