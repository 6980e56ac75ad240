"""`make image`: an OCI image of Debian packages that `make deb` has built, without emulation and without root.

Packages of Debian and of packaging/deb.py are unpacked, and what their scripts would do is done here: byte code, users,
certificates. An image has three layers (Debian, wheels of others, our programs): an upgrade transfers the last one.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from deb import FLEET, GATEWAY, MACHINES, RELEASES, bill, commit_time_s, matches, version_for
from install import SOURCE, InstallError, run, say
from record import digest as digest_of

from gateway import __version__

SUITE = "trixie"
"""Newest stable release of Debian that packaging/deb.py builds for."""
BASE = ("base-files", "busybox", "ca-certificates", "tini")
"""Packages of Debian in every image, with what they need and what our packages need."""
UNUSED = (
    *("debconf", "debianutils", "dpkg", "libacl1", "libattr1", "libcap2", "libgmp10", "libmd0", "libpcre2-8-0"),
    *("libselinux1", "libsystemd0", "mawk", "openssl", "openssl-provider-legacy", "readline-common", "systemd", "tar"),
)
"""Packages that only installations need. test_image.py looks for libraries that would be missing."""
DROPPED = (
    *("usr/share/man/*", "usr/share/info/*", "usr/share/locale/*", "usr/share/lintian/*", "usr/share/debconf/*"),
    *("usr/share/bash-completion/*", "usr/share/base-files/*", "usr/share/doc-base/*", "usr/share/perl5/*"),
    *("usr/share/python3/*", "usr/share/applications/*", "usr/share/pixmaps/*", "usr/lib/*-linux-gnu/gconv/*"),
    *(
        "usr/lib/systemd",
        "usr/lib/systemd/*",
        "usr/lib/udev/*",
        "usr/lib/sysusers.d/*",
        "usr/lib/tmpfiles.d/*",
        "usr/sbin/*",
        "usr/bin/tini-static",
    ),
    *("etc/cron.daily/*", "etc/default/*", "etc/init.d/*", "etc/update-motd.d/*", "etc/skel/*", "boot", "media", "srv"),
    *("etc/systemd/*", "usr/games", "usr/include", "usr/share/dict"),
)
"""Paths that nothing in a container reads."""
DOCUMENTS = ("usr/share/doc/*/copyright", "usr/share/doc/*/sbom.cdx.json", "usr/share/doc/edge-*/fleet.toml")
"""Documents that stay."""
TOOLS = (
    *("cat", "chmod", "chown", "cp", "date", "df", "dirname", "du", "env", "find", "grep", "head", "id", "kill", "ln"),
    *("ls", "mkdir", "mktemp", "mv", "nslookup", "ps", "pwd", "readlink", "rm", "sed", "sh", "sleep", "sort", "stat"),
    *("tail", "test", "top", "touch", "tr", "vi", "wc", "wget", "xargs"),
)
"""Programs of busybox that have a link."""
USER = 65532
"""User and group of the programs in a container, which owners of volumes and files have to name."""
PARTS = (GATEWAY, "edge-gateway-openvino", "edge-gateway-litert")
"""Parts of the gateway's image, unless others are named."""
TITLES = {GATEWAY: "Edge inference gateway", FLEET: "Fleet controller of the edge inference gateway"}
PORTS = {GATEWAY: ("8000/tcp", "8001/tcp"), FLEET: ("8443/tcp",)}
LAYERS = ("packages of Debian", "wheels of others", "programs of the edge inference gateway")


@dataclass(frozen=True)
class Image:
    """Image of `parts`: our packages in `debs`, and further packages of Debian. `work` is an empty folder."""

    architecture: str
    parts: Sequence[str]
    debs: Path
    work: Path

    @property
    def program(self) -> str:
        """Name of the program that it runs, of its user and of its folder of state."""
        return FLEET if FLEET in self.parts else GATEWAY

    @property
    def root(self) -> Path:
        return self.work / "root"

    @property
    def state(self) -> str:
        return f"/var/lib/{self.program}"

    @cached_property
    def ours(self) -> list[Path]:
        """Files of our packages. Raises InstallError for one that was not built."""
        if self.program not in self.parts:
            raise InstallError(f"PARTS='{' '.join(self.parts)}' names neither {GATEWAY} nor {FLEET}; add one of them")
        ours = [part for part in self.parts if part.startswith("edge-")]
        files = [self.debs / f"{part}_{version_for(SUITE)}_{self.architecture}.deb" for part in ours]
        if absent := [file.name for file in files if not file.is_file()]:
            command = f"make deb SUITE={SUITE} ARCH={self.architecture}"
            raise InstallError(f"{self.debs} has no {', '.join(absent)}; run: {command}")
        return files

    def fetch(self, architecture: str, packages: Sequence[str], to: Path) -> None:
        """Download packages of Debian with what they need, and unpack those that are used."""
        archives = self.work / f"archives-{architecture}"
        archives.mkdir()
        hook = f'cp "$1"/var/cache/apt/archives/*.deb {archives}'
        options = ("--variant=extract", f"--architectures={architecture}", f"--include={','.join(packages)}")
        try:
            run("mmdebstrap", "--quiet", "--format=null", *options, f"--extract-hook={hook}", SUITE, "-")
        except subprocess.CalledProcessError as error:
            wanted = f"Debian {SUITE} {architecture}: {' '.join(packages)}"
            raise InstallError(f"mmdebstrap failed, see above; is each of these a package of {wanted}?") from error
        for file in sorted(archives.iterdir()):
            if file.name.partition("_")[0] not in UNUSED:
                self.unpack(file, to)

    def unpack(self, file: Path, to: Path) -> None:
        """Unpack a package. Its control file tells scanners of images what is inside."""
        # Packages that name /lib in place of /usr/lib: dpkg-deb --extract would put a folder in place of the link.
        to.mkdir(exist_ok=True)
        words = ("tar", "--extract", "--keep-directory-symlink", "--no-same-owner", "--preserve-permissions", "-C", to)
        reading = ("dpkg-deb", "--fsys-tarfile", str(file))
        with subprocess.Popen(reading, stdout=subprocess.PIPE) as opened:
            subprocess.run([str(word) for word in words], stdin=opened.stdout, check=True)
        if opened.returncode:
            raise InstallError(f"dpkg-deb cannot read {file}; delete it and run this again")
        control = _control(file)
        known = to / "var/lib/dpkg/status.d" / file.name.partition("_")[0]
        known.parent.mkdir(parents=True, exist_ok=True)
        known.write_text(f"{control.rstrip()}\nStatus: install ok installed\n")

    def compile(self) -> None:
        """Compile to byte code, by the Python of the release for this machine, which need not have that release."""
        here = next((name for name, machine in MACHINES.items() if machine == platform.machine()), "")
        root = self.root
        if here != self.architecture:
            root = self.work / "native"
            self.fetch(here, ("base-files", "python3"), root)
        loader = next(root.glob("usr/lib/*-linux-gnu/ld-linux-*"))
        python = (loader, "--library-path", loader.parent, root / f"usr/bin/python3.{RELEASES[SUITE].python}")
        options = ("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", self.root, "-p", "/")
        fixed = {**os.environ, "PYTHONHOME": str(root / "usr"), "PYTHONHASHSEED": "0"}
        subprocess.run([str(word) for word in (*python, *options, self.root / "usr/lib")], check=True, env=fixed)

    def configure(self) -> None:
        """Do what the scripts of the packages would do, and add the entry and its configuration."""
        etc = self.root / "etc"
        owner = f"{self.program}:x:{USER}:{USER}:{TITLES[self.program]}:{self.state}:/bin/sh\n"
        (etc / "passwd").write_text(f"root:x:0:0:root:/root:/bin/sh\n{owner}")
        (etc / "group").write_text(f"root:x:0:\n{self.program}:x:{USER}:\n")
        certificates = sorted((self.root / "usr/share/ca-certificates/mozilla").glob("*.crt"))
        (etc / "ssl/certs").mkdir(parents=True, exist_ok=True)
        (etc / "ssl/certs/ca-certificates.crt").write_text("".join(file.read_text() for file in certificates))
        (etc / "ssl/cert.pem").symlink_to("certs/ca-certificates.crt")
        for tool in TOOLS:
            if not os.path.lexists(self.root / "usr/bin" / tool):
                (self.root / "usr/bin" / tool).symlink_to("busybox")
        (self.root / self.state[1:]).mkdir(mode=0o750, parents=True, exist_ok=True)
        if self.program == GATEWAY:
            (self.root / self.state[1:] / "models").mkdir(exist_ok=True)
            (self.root / self.state[1:] / "models/README.md").symlink_to("/usr/share/edge-gateway/models.md")
            shutil.copy(SOURCE / "packaging/image/edge-gateway.toml", etc / "edge-gateway")
            shutil.copy(SOURCE / "packaging/image/entry", self.root / "usr/bin/edge-gateway-entry")

    def layer_of(self, name: str) -> int:
        """Return the layer of a path: an index of LAYERS, or -1 if it is left out."""
        if matches(name, DROPPED) or (matches(name, ("usr/share/doc/*/*",)) and not matches(name, DOCUMENTS)):
            return -1
        if matches(name, ("*/site-packages/gateway*", "*/site-packages/fleet*", "*/site-packages/edge_inference*")):
            return 2
        if matches(name, ("usr/lib/edge-*/lib*",)):
            return 1
        return 2 if matches(name, ("*edge-*",)) else 0

    def pack(self, layer: int, to: Path) -> tuple[str, str]:
        """Write a layer to the folder of blobs. Return its digest, and that of its content before compression."""
        place = to / f"layer-{layer}"
        with tarfile.open(place, "w", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted(self.root.rglob("*")):
                name = str(path.relative_to(self.root))
                if self.layer_of(name) == layer:
                    archive.add(path, name, recursive=False, filter=self.made_equal)
        content = digest_of(place)
        run("gzip", "--no-name", place)
        packed = place.with_suffix(".gz")
        digest = digest_of(packed)
        packed.rename(to / digest)
        return digest, content

    def made_equal(self, entry: tarfile.TarInfo) -> tarfile.TarInfo:
        """Set what differs between two builds, and the owner of the folder of state and of what is in it."""
        entry.uid = entry.gid = USER if entry.name.startswith(self.state[1:]) else 0
        entry.uname, entry.gname, entry.mtime = "", "", 0
        return entry

    def configuration(self, contents: Sequence[str], made: str) -> dict[str, object]:
        """Return the configuration of the image (OCI image specification 1.0)."""
        command = ("/usr/bin/edge-gateway-entry",) if self.program == GATEWAY else ("/usr/bin/edge-fleet",)
        variables = {
            "PATH": "/usr/bin", "HOME": self.state, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1",
            "STATE_DIRECTORY": self.state, "EDGE_FLEET_DIR": f"/var/lib/{FLEET}",
            "EDGE_GATEWAY_IMAGE": " ".join(self.parts),  # gateway/common/domain/installation.py: remedies
        }  # fmt: skip
        labels = {
            "title": self.program, "description": TITLES[self.program], "version": __version__,
            "licenses": "Apache-2.0", "created": made,
        }  # fmt: skip
        return {
            "created": made,
            "architecture": self.architecture,
            "os": "linux",
            "config": {
                "User": f"{USER}:{USER}",
                "ExposedPorts": {port: {} for port in PORTS[self.program]},
                "Env": [f"{name}={value}" for name, value in variables.items()],
                "Entrypoint": ["/usr/bin/tini", "--", *command],
                "Cmd": ["run" if self.program == GATEWAY else "serve"],
                "Volumes": {self.state: {}},
                "WorkingDir": self.state,
                "Labels": {f"org.opencontainers.image.{name}": text for name, text in labels.items()},
                "StopSignal": "SIGTERM",
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{content}" for content in contents]},
            "history": [{"created": made, "created_by": "make image", "comment": text} for text in LAYERS],
        }

    def write(self, destination: Path, time_s: int) -> tuple[Path, str]:
        """Write the archive of an OCI layout, which `docker load` takes too. Return its path and the digest."""
        blobs = self.work / "layout/blobs/sha256"
        blobs.mkdir(parents=True)
        layers = [self.pack(layer, blobs) for layer in range(len(LAYERS))]
        made = dt.datetime.fromtimestamp(time_s, dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

        def described(kind: str, digest: str) -> dict[str, object]:
            form = f"application/vnd.oci.image.{kind}"
            return {"mediaType": form, "digest": f"sha256:{digest}", "size": (blobs / digest).stat().st_size}

        def stored(document: object) -> str:
            text = json.dumps(document).encode()
            digest = hashlib.sha256(text).hexdigest()
            (blobs / digest).write_bytes(text)
            return digest

        config = stored(self.configuration([content for _, content in layers], made))
        head = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json"}
        packed = [described("layer.v1.tar+gzip", digest) for digest, _ in layers]
        manifest = stored({**head, "config": described("config.v1+json", config), "layers": packed})
        name = f"{self.program}:{__version__}"
        listed = {
            **described("manifest.v1+json", manifest),
            "platform": {"os": "linux", "architecture": self.architecture},
            "annotations": {
                "io.containerd.image.name": f"docker.io/library/{name}",
                "org.opencontainers.image.ref.name": name,
            },
        }
        index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [listed]}
        places = [f"blobs/sha256/{digest}" for digest in (config, *(digest for digest, _ in layers))]
        layout = self.work / "layout"
        (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        (layout / "index.json").write_text(json.dumps(index))
        # For `docker load` without the image store of containerd.
        docker = [{"Config": places[0], "RepoTags": [name], "Layers": places[1:]}]
        (layout / "manifest.json").write_text(json.dumps(docker))
        destination.mkdir(parents=True, exist_ok=True)
        archive = destination / f"{self.program}_{__version__}_{self.architecture}.oci.tar"
        with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as file:
            for path in sorted(layout.rglob("*")):
                file.add(path, path.relative_to(layout), recursive=False, filter=self.made_equal)
        return archive, manifest

    def bill(self, archive: Path) -> str:
        """Return the bill of materials: the packages of Debian, and what those of ours list."""
        listed = [json.loads(file.read_text()) for file in self.root.glob("usr/share/doc/edge-*/sbom.cdx.json")]
        found = {one["bom-ref"]: one for document in listed for one in document["components"]}
        for file in (self.root / "var/lib/dpkg/status.d").iterdir():
            name, version = re.findall(r"(?m)^(?:Package|Version): (.*)$", file.read_text())
            kind = "edge-inference-gateway" if name.startswith("edge-") else "debian"
            reference = f"pkg:deb/{kind}/{name}@{version}?arch={self.architecture}&distro={SUITE}"
            entry = {"type": "library", "name": name, "version": version, "purl": reference, "bom-ref": reference}
            found[reference] = entry
        hashes = [{"alg": "SHA-256", "content": digest_of(archive)}]
        whole = {"type": "container", "name": archive.name, "version": __version__, "hashes": hashes}
        return bill(whole, [found[reference] for reference in sorted(found)])

    def build(self, destination: Path, time_s: int) -> tuple[Path, str]:
        """Build, and return the archive and its digest. Raises InstallError, OSError, CalledProcessError.

        The bill of materials (CycloneDX) is next to the archive.
        """
        needed = [dependency for file in self.ours for dependency in _control(file, "Depends").split(",")]
        names = {dependency.split()[0] for dependency in needed}
        further = {part for part in self.parts if not part.startswith("edge-")}
        say(f"unpacking Debian {SUITE} {self.architecture}")
        wanted = {name for name in names if not name.startswith("edge-") and name not in UNUSED} | further | set(BASE)
        self.fetch(self.architecture, sorted(wanted), self.root)
        for file in self.ours:
            self.unpack(file, self.root)
        say("compiling")
        self.compile()
        self.configure()
        say("packing")
        archive, digest = self.write(destination, time_s)
        archive.with_name(f"{archive.name}.cdx.json").write_text(self.bill(archive))
        return archive, digest


def _control(file: Path, *fields: str) -> str:
    """Return the control file of a package, or the value of a field."""
    asked = ("dpkg-deb", "--field", str(file), *fields)
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout


def main() -> int:
    """Build; 0 fine, 2 usage, 3 something needed is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = "our packages, and packages of Debian such as ocl-icd-libopencl1"
    parser.add_argument("parts", nargs="*", default=PARTS, help=f"{parts} (default: {' '.join(PARTS)})")
    parser.add_argument("--arch", choices=sorted(MACHINES), default="amd64", help="architecture of the image")
    parser.add_argument("--debs", type=Path, default=SOURCE / "dist", help="folder of our packages")
    parser.add_argument("--dest", type=Path, default=SOURCE / "build/image", help="folder of the image")
    arguments = parser.parse_args()
    os.umask(0o022)
    try:
        with tempfile.TemporaryDirectory(prefix="edge-image-") as folder:
            image = Image(arguments.arch, arguments.parts, arguments.debs, Path(folder))
            archive, digest = image.build(arguments.dest, commit_time_s())
    except (InstallError, OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"packaging/image.py: {error}\n")
        return 3
    say(f"{archive.stat().st_size / 1e6:8.1f} MB  {archive}\n  sha256:{digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
