"""Publishing at a controller from elsewhere: CI with a publisher's token, key holders with their keys, an operator."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet.client.client import Access, Client, ClientSettings
from fleet.client.workspace import upload_file
from fleet.publisher.releases import Terms, model_files, plan_release, read_model
from fleet.publisher.signing import signed_with
from fleet.publisher.verify import verify
from gateway.common.domain.manifest import Artifact
from tests.simulators.controller import free_port
from tests.simulators.fleet_device import DEVICE, SLOT, FleetDevice
from tests.simulators.fleet_repository import model_folder
from tests.simulators.operator import until
from tests.simulators.publisher import MODELS, Publisher
from tests.simulators.served_fleet import Replica, ServedFleet, served_fleet

pytestmark = pytest.mark.timeout(300)
RELEASE = "models/acme/meter-reader/1/release"


class RemoteUser:
    """User on another machine: a folder of its own, an address, a token, and perhaps a key."""

    def __init__(self, folder: Path, url: str, ca_file: Path, token: str) -> None:
        self.shell = Publisher(folder)
        shutil.copy(ca_file, folder / "ca.pem")
        self.known = {"EDGE_FLEET_URL": url, "EDGE_FLEET_CA": "ca.pem", "EDGE_FLEET_TOKEN": token}

    @property
    def folder(self) -> Path:
        return self.shell.folder

    def run(self, *words: str | Path, code: int = 0) -> str:
        """Run a command there. Return its output."""
        done = self.shell.run(*words, environment=self.known, code=code)
        return done.stdout + done.stderr

    def told(self, *words: str | Path) -> Any:
        """Return the JSON that a command prints."""
        return json.loads(self.shell.run(*words, "--json", environment=self.known).stdout)


class Site:
    """`edge-fleet serve` as a process in a publisher's folder, whose owner acme needs two signatures."""

    def __init__(self, folder: Path) -> None:
        self.publisher = Publisher(folder / "publisher")
        self.publisher.begin()
        for name in ("ann", "ben"):
            self.publisher.run("keys", "new", name)
        self.publisher.run("delegate", "acme", "--key", "ann.pub", "ben.pub", "--threshold", "2")
        self.publisher.sign("targets", "alice")
        self.publisher.run("publish")
        self.folder, port = folder, free_port()
        home = self.publisher.folder
        (home / "fleet.toml").write_text(f'[listen]\naddresses = ["127.0.0.1:{port}"]\n[scheduler]\ntick_s = 0.2\n')
        words = [sys.executable, "-m", "fleet", "serve", "--log-level", "warning", "--dir", str(home)]
        self.replica = Replica(home, f"https://localhost:{port}", words)

    def token(self, name: str, role: str) -> str:
        """Create an API token in the database."""
        return self.publisher.run("tokens", "create", name, "--role", role, "--dir", ".").stdout.strip()

    def away(self, name: str, role: str, *keys: str) -> RemoteUser:
        """Return a user on another machine, with these keys: they are moved there."""
        token = self.token(name, role)
        found = RemoteUser(self.folder / name, self.replica.url, self.publisher.folder / "authority" / "ca.pem", token)
        for key in keys:
            shutil.move(self.publisher.folder / f"{key}.pem", found.folder)
            shutil.copy(self.publisher.folder / f"{key}.pub", found.folder)
        return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.replica.start()
    yield made
    made.replica.end()


def test_a_release_of_ci_reaches_a_device(site: Site, tmp_path: Path, state: Path) -> None:
    ci, operator = site.away("ci", "publisher"), site.away("olga", "operator")
    ann, ben = (site.away(name, "publisher", name) for name in ("ann", "ben"))
    add = ("model", "add", MODELS / SLOT / "1", "--owner", "acme", "--edge-gateway", ci.shell.gateway)
    said = ci.run(*add, "--remote")
    assert f"drafted models-acme, version 1: {site.replica.url}/v1/drafts/models-acme" in said
    assert "next: edge-fleet drafts sign ROLE --key KEY" in said
    assert ci.run("drafts", "sign", "models-acme", "--key", "nobody.pem", code=2)
    assert "publish needs the role admin or operator" in ci.run("publish", "--remote", code=1)

    signed = ann.run("drafts", "sign", "models-acme", "--key", "ann.pem", "--yes")
    assert f"adds {RELEASE}" in signed
    assert "waits: it lacks 1 signature" in signed
    ben.run("drafts", "download", "models-acme", "--out", "usb.json")  # signed where there is no network
    ben.shell.run("sign", "usb.json", "--key", "ben.pem", "--yes")
    assert "complete: edge-fleet publish --remote" in ben.run("drafts", "upload", "usb.json")

    (waiting,) = operator.told("drafts", "list")["drafts"]
    assert (waiting["role"], waiting["missing"], waiting["waits"]) == ("models-acme", 0, "")
    assert "published models-acme, version 1" in operator.run("publish", "--remote")
    assert operator.told("drafts", "list")["drafts"] == []
    assert site.publisher.told("verify")["ok"]
    assert not [file for file in site.publisher.folder.rglob("*") if file.name in {"ann.pem", "ben.pem"}]

    device = FleetDevice(tmp_path / "device", state)
    device.configure(fetch={"document_deadline_s": 20.0, "read_timeout_s": 10.0, "blob_deadline_s": 60.0})
    with device.powered():
        _enrol(device, operator)
        _rolled_out(operator)
        done = device.sync()
        assert (done.code, done.told["state"]) == (0, "in-step"), done.err
        assert list(device.serving) == ["1"]


def _enrol(device: FleetDevice, operator: RemoteUser) -> None:
    operator.run("devices", "token", "--device", DEVICE, "--out", "device.token")
    token, ca_file = operator.folder / "device.token", operator.folder / "ca.pem"
    url = operator.known["EDGE_FLEET_URL"]
    done = device.agent("enrol", url, "--token-file", str(token), "--ca", str(ca_file))
    assert done.code == 0, done.err


def _rolled_out(operator: RemoteUser) -> None:
    until(lambda: operator.told("releases", "list")["releases"], "the leader does not read the release")
    spec = ("--target", "acme/meter-reader/1", "--query", "all", "--waves", "100%", "--soak", "0s")
    rollout = operator.told("rollouts", "create", *spec)["id"]
    operator.run("rollouts", "approve", rollout, "--yes")
    operator.run("rollouts", "start", rollout)
    until(lambda: operator.told("rollouts", "devices", rollout)["devices"], "no device is offered the release")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    with served_fleet(tmp_path_factory.mktemp("fleet") / "controller") as made:
        made.replicas[0].start()
        yield made


def _killed(replica: Replica) -> None:
    assert replica.process
    assert replica.process.stdout
    assert replica.process.wait(90) == -9
    replica.process.stdout.close()


def test_a_killed_controller_goes_on_with_an_upload(fleet: ServedFleet, tmp_path: Path) -> None:
    """Bytes that came before the kill are not sent again."""
    content = b"".join(number.to_bytes(8, "big") for number in range(3_000_000))
    digest, replica = sha256(content).hexdigest(), fleet.replicas[0]
    operator = fleet.operator()
    operator.post("/v1/blobs", json={"digest": digest, "size_bytes": len(content)})
    (part,) = fleet.repository.workspace.uploads.glob(f"{digest}.{len(content)}.*")
    pieces = _slowly(content, lambda: part.stat().st_size > 4_000_000, lambda: replica.end(9))
    with pytest.raises(httpx.TransportError):
        operator.patch(f"/v1/blobs/{digest}", content=pieces)
    replica.start()
    held = fleet.operator().get(f"/v1/blobs/{digest}").json()["received_bytes"]
    assert 4_000_000 < held < len(content)
    sizes: list[int] = []
    (tmp_path / "file").write_bytes(content)
    client = Client(Access(replica.url, fleet.token, str(fleet.ca_file)))
    upload_file(client, tmp_path / "file", Artifact("file", digest, len(content)), sizes.append)
    assert (sizes[0], sum(sizes)) == (held, len(content))
    assert fleet.operator().get(f"/v1/blobs/{digest}").json()["complete"]


def test_an_upload_survives_a_restart_of_the_controller(fleet: ServedFleet, tmp_path: Path) -> None:
    """The controller ends after the first piece, and is not back when its state is asked for."""
    content = b"".join(number.to_bytes(8, "little") for number in range(400_000))
    digest, replica = sha256(content).hexdigest(), fleet.replicas[0]
    (tmp_path / "file").write_bytes(content)
    sizes: list[int] = []
    pauses: list[float] = []

    def received(size: int) -> None:
        sizes.append(size)
        if size and sum(sizes) == 1_048_576:
            replica.end(9)

    def paused(wait_s: float) -> None:
        pauses.append(wait_s)
        if len(pauses) == 2:
            replica.start()

    settings = ClientSettings(piece_bytes=1_048_576)
    client = Client(Access(replica.url, fleet.token, str(fleet.ca_file)), settings, paused)
    upload_file(client, tmp_path / "file", Artifact("file", digest, len(content)), received)
    assert (sum(sizes), len(pauses)) == (len(content), 2)
    assert fleet.operator().get(f"/v1/blobs/{digest}").json()["complete"]


def _slowly(content: bytes, reached: Callable[[], bool], then: Callable[[], object]) -> Iterator[bytes]:
    """Yield pieces of half of the content, then nothing more once `then` was called."""
    for offset in range(0, len(content) // 2, 1_048_576):
        yield content[offset : offset + 1_048_576]
    until(reached, "nothing arrives")
    then()
    yield content[-1:]


PUBLISHED_FILES = 6
"""Two files of the release, its document, the owner's metadata, snapshot and timestamp."""


SAMPLE = (0, PUBLISHED_FILES - 1)
"""Sample of the beginnings of a publication, in `make test`."""
BEGINNINGS = [
    pytest.param(after, marks=() if after in SAMPLE else pytest.mark.long) for after in range(PUBLISHED_FILES + 1)
]


@pytest.mark.parametrize("after", BEGINNINGS)
def test_a_killed_publication_leaves_a_repository_that_verifies(fleet: ServedFleet, after: int) -> None:
    replica, work, version = fleet.replicas[0], fleet.repository.workspace, str(after + 1)
    document = {"models-acme": _signed_draft(fleet, version)}
    before = fleet.repository.published
    _begin_to_be_killed(replica, after)
    restarted = threading.Event()
    client = Client(Access(replica.url, fleet.token, str(fleet.ca_file)), sleep=lambda _: restarted.wait(90))
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(client.ask, "POST", "/v1/publication")
        _killed(replica)
        assert verify(work.public, datetime.now(UTC), work.settings).findings == ()
        is_out = fleet.repository.published.timestamp != before.timestamp
        assert is_out == (after == PUBLISHED_FILES)
        replica.start()
        restarted.set()
        published = answer.result(90)["published"]
    assert published == ({} if is_out else document)
    assert verify(work.public, datetime.now(UTC), work.settings).findings == ()
    assert fleet.repository.published.target(f"models/acme/{SLOT}/{version}/release")
    assert not work.drafts()
    newest = fleet.operator().get("/v1/audit").json()["items"][0]
    assert (newest["action"], newest["details"]["published"]) == ("publication.publish", document)


def _begin_to_be_killed(replica: Replica, after: int) -> None:
    replica.end()
    usual = replica.words
    killed = ["tests.simulators.killed_publication" if part == "fleet" else part for part in usual]
    replica.words = [*killed[: killed.index("serve")], str(after), *killed[killed.index("serve") :]]
    replica.start()
    replica.words = usual


def _signed_draft(fleet: ServedFleet, version: str) -> int:
    """Let a release wait that its owner has signed. Return the version of the owner's document."""
    repository, work = fleet.repository, fleet.repository.workspace
    folder = model_folder(work.folder / "made" / SLOT / version, SLOT, version, {"only": f"model {version}".encode()})
    planned = plan_release(repository.drafting(), read_model(folder, work.settings), "acme", Terms())
    for file in model_files(planned.release):
        work.stage_blob(folder / file.path, file)
    work.stage(planned.target, planned.content)
    work.save([signed_with(planned.draft, repository.keys["models-acme"][0])])
    return int(planned.draft.metadata.signed.version)
