"""The container image, run by runc with what Docker gives a container that has no rights: detection, answers, upgrade.

Needs root, mmdebstrap, umoci, skopeo, runc, nsenter and mosquitto. There is no engine: `docker run` has not been tried.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from tests.simulators.served_fleet import wait_until
from tests.system.installation import REPOSITORY, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]

LIMIT_S = 1500.0
OLD, NEW = "0.2.0", "0.2.1"
PARTS = ("edge-gateway", "edge-gateway-openvino", "edge-gateway-litert")
COMPOSE = REPOSITORY / "packaging/compose"
STATE = "/var/lib/edge-gateway"
FLEET_STATE = "/var/lib/edge-fleet"
USER = 65532
OUTSIDE = "192.0.2.1"
"""Address in the network of a container that is not its loopback (TEST-NET-1, RFC 5737)."""
MASKED = ("/sys/devices/virtual/powercap", "/proc/acpi", "/proc/keys", "/proc/interrupts")
"""Paths that Docker hides in addition to those of umoci."""
REFUSED = (
    *(
        "acct",
        "add_key",
        "bpf",
        "clock_settime",
        "delete_module",
        "fsopen",
        "get_mempolicy",
        "init_module",
        "io_uring_setup",
    ),
    *("kcmp", "kexec_load", "keyctl", "mbind", "mount", "move_pages", "name_to_handle_at", "open_by_handle_at"),
    *("perf_event_open", "personality", "pivot_root", "process_vm_readv", "ptrace", "reboot", "set_mempolicy", "setns"),
    *("swapon", "syslog", "umount2", "unshare", "userfaultfd"),
)
"""System calls that Docker's profile refuses to a process without capabilities."""
MODEL = "/usr/share/edge-gateway/models/meter-reader"
CALL = f"""
import sys, numpy as np, tritonclient.grpc as grpc, urllib.request as web
token, golden = sys.argv[1:]
client = grpc.InferenceServerClient("{OUTSIDE}:8001")
frame = np.load(golden)["input.image"][:1]
image = grpc.InferInput("image", list(frame.shape), "FP32")
image.set_data_from_numpy(frame)
try:
    client.infer("meter-reader", [image])
    print("answered without a token")
except grpc.InferenceServerException as error:
    print(error.status())
answer = client.infer("meter-reader", [image], headers={{"authorization": f"Bearer {{token}}"}})
print(answer.as_numpy("scores").shape)
asked = web.Request("http://{OUTSIDE}:8000/v2/models/meter-reader", headers={{"Authorization": f"Bearer {{token}}"}})
print(web.urlopen(asked, timeout=20).status)
"""


class Images:
    """Images of two versions and of the fleet controller, unpacked where a container needs them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def build(self, version: str, *parts: str) -> None:
        """Build the image of `parts`, with its packages, by the source of another version."""
        debs, source = self.folder / "debs" / version, self.folder / f"source-{version}"
        if not debs.exists():
            left_out = shutil.ignore_patterns(".venv*", ".git", "build", "dist", ".*cache")
            shutil.copytree(REPOSITORY, source, symlinks=True, ignore=left_out)
            stated = source / "gateway/__init__.py"
            stated.write_text(re.sub(r'__version__ = ".*"', f'__version__ = "{version}"', stated.read_text()))
            self._make(source, "deb.py", "--suite", "trixie", "--dest", debs)
        self._make(source, "image.py", *parts, "--debs", debs, "--dest", self.folder / "archives")
        layout = self.folder / f"{parts[0]}-{version}"
        layout.mkdir()
        run("tar", "-xf", self.archive(parts[0], version), "-C", layout)

    def archive(self, program: str, version: str) -> Path:
        return self.folder / "archives" / f"{program}_{version}_amd64.oci.tar"

    def _make(self, source: Path, program: str, *words: str | Path) -> None:
        environ = {**os.environ, "ZSTD_LEVEL": "1", "SOURCE_DATE_EPOCH": "1790000000"}
        run(sys.executable, "-B", f"packaging/{program}", *words, cwd=source, env=environ, limit_s=LIMIT_S)

    def unpack(self, program: str, version: str) -> Path:
        """Return a bundle for runc: the root, and a configuration with Docker's rules."""
        bundle = self.folder / f"bundle-{program}-{version}"
        run(
            "umoci",
            "unpack",
            "--image",
            f"{self.folder}/{program}-{version}:{program}:{version}",
            bundle,
            limit_s=LIMIT_S,
        )
        config = json.loads((bundle / "config.json").read_text())
        config["process"]["terminal"] = False
        config["process"]["capabilities"] = {name: [] for name in config["process"]["capabilities"]}
        config["root"]["readonly"] = True
        config["mounts"] = [mount for mount in config["mounts"] if not mount["destination"].startswith("/var/lib")]
        config["linux"]["maskedPaths"] += MASKED
        rule = {"names": REFUSED, "action": "SCMP_ACT_ERRNO"}
        config["linux"]["seccomp"] = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}
        (bundle / "config.json").write_text(json.dumps(config))
        return bundle


class Container:
    """Container of a bundle, in `folder`. `mounts`: what is at a path inside."""

    def __init__(self, bundle: Path, folder: Path, mounts: Mapping[str, Path], *arguments: str) -> None:
        folder.mkdir()
        self._log, self._runc = folder / "log", ("runc", "--root", str(folder / "runc"))
        self._name = folder.name
        config = json.loads((bundle / "config.json").read_text())
        config["process"]["args"][3:] = arguments or config["process"]["args"][3:]
        config["root"]["path"] = str(bundle / "rootfs")
        for place, source in mounts.items():
            mount = {"destination": place, "type": "bind", "source": str(source), "options": ["bind", "rw"]}
            config["mounts"].append(mount)
        (folder / "config.json").write_text(json.dumps(config))
        with self._log.open("wb") as log:
            words = (*self._runc, "run", "--bundle", folder, self._name)
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def ended(self) -> int:
        """Return the exit code."""
        return self._process.wait(60)

    def exec(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as `docker exec` does."""
        return run(*self._runc, "exec", self._name, *command, check=False)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        wait_until(lambda: holds() or self._process.poll() is not None, LIMIT_S)
        assert holds(), f"it ended before {what}: {self.log[-3000:]}"

    def until_ready(self) -> None:
        ask = ("wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8000/v2/health/ready")
        self.until(lambda: self.exec(*ask).returncode == 0, "it was ready")

    def in_network(self, *command: str | Path) -> tuple[str | Path, ...]:
        """Return a command of this machine for the network of the container, which also has the address OUTSIDE."""
        pid = json.loads(run(*self._runc, "state", self._name).stdout)["pid"]
        return ("nsenter", f"--net=/proc/{pid}/ns/net", *command)

    def stop(self) -> int:
        """Stop it as `docker stop` does, and return the exit code."""
        run(*self._runc, "kill", self._name, "TERM")
        return self.ended()

    def remove(self) -> None:
        if self._process.poll() is None:
            run(*self._runc, "kill", "--all", self._name, "KILL", check=False)
            self._process.wait(60)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    built = Images(tmp_path_factory.mktemp("image"))
    for version in (OLD, NEW):
        built.build(version, *PARTS)
    built.build(OLD, "edge-fleet")
    yield built
    shutil.rmtree(built.folder)  # gigabytes that pytest must not keep


@pytest.fixture(scope="module")
def bundle(images: Images) -> Path:
    return images.unpack("edge-gateway", OLD)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Container]]:
    """Yield what starts containers, which end with the test."""
    found: list[Container] = []

    def start(bundle: Path, mounts: Mapping[str, Path], *arguments: str) -> Container:
        found.append(Container(bundle, tmp_path / f"edge-image-{os.getpid()}-{len(found)}", mounts, *arguments))
        return found[-1]

    yield start
    for container in found:
        container.remove()


def _volume(folder: Path, owner: int = USER) -> Path:
    folder.mkdir()
    os.chown(folder, owner, owner)
    return folder


def _is_elf(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(4) == b"\x7fELF"


def _layers(archive: Path, form: str = "oci-archive") -> list[str]:
    found = json.loads(run("skopeo", "inspect", f"{form}:{archive}").stdout)
    return list(found["Layers"])


def test_docker_and_oci_tools_read_the_archive(images: Images) -> None:
    archive = images.archive("edge-gateway", OLD)
    assert len(_layers(archive)) == 3
    assert len(_layers(archive, "docker-archive")) == 3
    labels = json.loads(run("skopeo", "inspect", f"oci-archive:{archive}").stdout)["Labels"]
    assert labels["org.opencontainers.image.version"] == OLD


def test_an_upgrade_transfers_only_our_programs(images: Images) -> None:
    old, new = (_layers(images.archive("edge-gateway", version)) for version in (OLD, NEW))
    assert old[:2] == new[:2]
    assert old[2] != new[2]


@pytest.mark.parametrize("program", ["edge-gateway", "edge-fleet"])
def test_every_shared_library_that_is_needed_is_there(images: Images, program: str) -> None:
    root = images.folder / f"{program}-{OLD}-root"
    run("umoci", "unpack", "--image", f"{images.folder}/{program}-{OLD}:{program}:{OLD}", root)
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    binaries = [path for path in files if "vendors" not in path.parts and _is_elf(path)]  # plugins of LiteRT for NPUs
    known = {path.name for path in root.rglob("*.so*")} | {"libOpenCL.so.1"}  # OpenVINO's plugin for graphics
    said = run("readelf", "--wide", "--dynamic", *binaries).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", said))
    assert len(binaries) > 50
    assert sorted(needed - known) == []


def test_the_machine_is_detected(bundle: Path, started: Callable[..., Container], tmp_path: Path) -> None:
    container = started(bundle, {STATE: _volume(tmp_path / "state")}, "probe")
    assert container.ended() == 0
    assert re.search("processor +\\S", container.log)


def test_a_container_serves_callers_with_the_token_and_stops(
    bundle: Path, started: Callable[..., Container], tmp_path: Path
) -> None:
    state = _volume(tmp_path / "state")
    container = started(bundle, {STATE: state})
    container.until_ready()
    assert container.exec("sh", "-c", "touch /usr/x || touch /tmp/x").returncode, "the root can be written"
    inside = container.exec(
        "edge-gateway", "infer", "meter-reader", "--npz", f"{MODEL}/1/golden.npz", "--url", "127.0.0.1:8000"
    )
    assert inside.returncode == 0, inside.stderr
    run(*container.in_network("ip", "address", "add", f"{OUTSIDE}/32", "dev", "lo"))
    token = (state / "token").read_text().strip()
    golden = REPOSITORY / "models/meter-reader/1/golden.npz"
    assert run(*container.in_network(sys.executable, "-c", CALL, token, golden)).stdout.splitlines() == [
        "StatusCode.UNAUTHENTICATED",
        "(1, 10)",
        "200",
    ]
    assert (state / "tokens").stat().st_mode & 0o777 == 0o600
    video = container.exec("edge-gateway", "infer", "meter-reader", "--video", "/x.mp4", "--url", "127.0.0.1:8000")
    assert f"make image PARTS='{' '.join(PARTS)} edge-gateway-camera'" in video.stderr
    assert {"onnx", "openvino", "litert"} <= set(
        re.findall(r"✓ runtime (\w+)", container.exec("edge-gateway", "doctor").stdout)
    )
    orphan = container.exec("sh", "-c", "sleep 0.2 >/dev/null & echo $!").stdout.strip()
    container.until(lambda: container.exec("test", "-e", f"/proc/{orphan}").returncode == 1, "a child was reaped")
    assert container.stop() == 0
    events = [json.loads(line)["event"] for line in container.log.splitlines() if line.startswith("{")]
    assert events[-1] == "stopped"


def test_an_upgrade_by_tag_keeps_the_volume(
    images: Images, bundle: Path, started: Callable[..., Container], tmp_path: Path
) -> None:
    state = _volume(tmp_path / "state")
    old = started(bundle, {STATE: state})
    old.until_ready()
    token = (state / "token").read_text()
    assert old.stop() == 0
    new = started(images.unpack("edge-gateway", NEW), {STATE: state})
    new.until_ready()
    assert f'"version":"{NEW}"' in new.exec("wget", "-q", "-O", "-", "http://127.0.0.1:8000/v2").stdout.replace(" ", "")
    assert (state / "token").read_text() == token
    assert "made a token" not in new.log


def test_a_volume_of_another_user_is_named(bundle: Path, started: Callable[..., Container], tmp_path: Path) -> None:
    container = started(bundle, {STATE: _volume(tmp_path / "state", owner=0)})
    assert container.ended() == 2
    assert f"chown -R {USER}:{USER}" in container.log


def test_the_gateway_of_compose_is_healthy_and_finds_its_broker(
    bundle: Path, started: Callable[..., Container], tmp_path: Path
) -> None:
    service = yaml.safe_load((COMPOSE / "gateway/compose.yaml").read_text())["services"]["gateway"]
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost mosquitto\n")
    settings = COMPOSE / "gateway/edge-gateway.toml"
    mounts = {STATE: _volume(tmp_path / "state"), "/etc/edge-gateway/edge-gateway.toml": settings, "/etc/hosts": hosts}
    container = started(bundle, mounts)
    container.until_ready()
    broker = tmp_path / "mosquitto.conf"
    text = (COMPOSE / "gateway/mosquitto.conf").read_text().replace("/mosquitto/data/", f"{tmp_path}/broker/")
    broker.write_text(f"{text}user root\n")
    (tmp_path / "broker").mkdir()
    with subprocess.Popen(container.in_network("mosquitto", "-c", broker), stdout=subprocess.DEVNULL) as running:
        container.until(lambda: "broker connection made" in container.log, "it found the broker")
        running.terminate()
    assert container.exec(*service["healthcheck"]["test"][1:]).returncode == 0


def test_the_controller_of_compose_answers_behind_its_proxy(
    images: Images, started: Callable[..., Container], tmp_path: Path
) -> None:
    """By the commands of the page, with files in place of PostgreSQL and S3."""
    bundle, state = images.unpack("edge-fleet", OLD), _volume(tmp_path / "fleet")
    page = (REPOSITORY / "packaging/CONTAINER.md").read_text()
    commands = re.findall(r"^fleet (.+)$", page, re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        once = started(bundle, {FLEET_STATE: state}, *command.split())
        assert once.ended() == 0, f"{command}: {once.log}"
    settings = (COMPOSE / "fleet/fleet.toml").read_text().partition("[database]")[0]
    (state / "fleet.toml").write_text(settings)
    container = started(bundle, {FLEET_STATE: state})
    service = yaml.safe_load((COMPOSE / "fleet/compose.yaml").read_text())["services"]["controller"]
    container.until(lambda: container.exec(*service["healthcheck"]["test"][1:]).returncode == 0, "it was healthy")
    issue = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=fleet.example")
    names = ("-addext", "subjectAltName=DNS:fleet.example")
    run(*issue, *names, "-keyout", tmp_path / "fleet.key", "-out", tmp_path / "fleet.pem")
    blocks = (COMPOSE / "fleet/nginx.conf").read_text()
    for found, here in (
        ("/var/lib/edge-fleet/", f"{state}/"),
        ("/etc/nginx/tls/", f"{tmp_path}/"),
        ("//s3:", "//127.0.0.1:"),
    ):
        assert found in blocks
        blocks = blocks.replace(found, here)
    around = (
        f"user root; daemon off; pid {tmp_path}/pid; error_log stderr; events {{}} http {{ access_log off;\n{blocks}}}"
    )
    (tmp_path / "nginx.conf").write_text(around)
    asked = ("curl", "--silent", "--cacert", str(tmp_path / "fleet.pem"), "--resolve", "fleet.example:8443:127.0.0.1")
    root = (*asked, "https://fleet.example:8443/repository/metadata/timestamp.json")
    with subprocess.Popen(container.in_network("nginx", "-p", tmp_path, "-c", tmp_path / "nginx.conf")) as running:
        container.until(
            lambda: "timestamp" in run(*container.in_network(*root), check=False).stdout, "the proxy answered"
        )
        running.terminate()
    assert container.stop() == 0
