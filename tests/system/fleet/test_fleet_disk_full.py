"""The controller's disk is full: what would be stored is refused, what needs no room answered, and nothing is lost."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import resource
import signal
import sqlite3
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from fleet.controller.database import devices, migrate
from fleet.controller.database.engine import Database, open_database
from fleet.controller.database.errors import AwayError
from fleet.controller.database.place import read_place
from tests.simulators.asking import csr, made_of, new_key
from tests.simulators.controller import RunningController
from tests.simulators.databases import content
from tests.simulators.rolled_fleet import SLOT, document
from tests.simulators.served_fleet import ServedFleet, answered, roll_out, served_fleet, wait_until
from tests.simulators.uploading import OWNER_ROLE, put, release, signatures

pytestmark = pytest.mark.timeout(180)
ROOM_BYTES = 12 << 20
WAIT_S = 60
BATCH_ROWS, ROW_BYTES, BATCHES_LIMIT = 100, 4_000, 200
UNBOUNDED = {"serve": {"rates": {"device_per_s": 0.0, "address_per_s": 0.0}}}
QUICK = {**UNBOUNDED, "scheduler": {"tick_s": 0.2}, "database": {"lease_s": 3.0}}
BUILT_ON_OTHERS = {"resume", "draft", "sign"}
"""Operations that are refused for another reason while those before them are refused."""
Fill, Clear = Callable[[], None], Callable[[], None]


@contextmanager
def crowded(folder: Path, kind: str) -> Iterator[Callable[[int], tuple[Fill, Clear]]]:
    """Yield a way to take a process's disk away and to give it back.

    It is a small file system, or a limit of every file's size.
    """
    mounted = kind == "tmpfs" and _mount(folder)
    filler = folder / "filler"

    def fill() -> None:
        descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT)
        with suppress(OSError):
            while os.write(descriptor, bytes(4096)):
                pass
        os.close(descriptor)

    def ways(pid: int) -> tuple[Fill, Clear]:
        if mounted:
            return fill, filler.unlink
        journal = (folder / "fleet.sqlite-wal").stat().st_size
        limits = [(size, resource.RLIM_INFINITY) for size in (journal, resource.RLIM_INFINITY)]
        first, second = ((lambda limit=limit: _limit(pid, limit)) for limit in limits)
        return first, second

    try:
        yield ways
    finally:
        if mounted:
            subprocess.run(["/bin/umount", "--lazy", folder], check=True)


def _mount(folder: Path) -> bool:
    """Mount a small file system; return whether that is allowed here. If not, files are limited."""
    size = f"size={ROOM_BYTES}"
    done = subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], capture_output=True, check=False)
    return done.returncode == 0


def _limit(pid: int, limit: tuple[int, int]) -> None:
    resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)


class Newcomer:
    """A device that has a key, and a token to enrol with."""

    def __init__(self, fleet: ServedFleet, name: str) -> None:
        self._fleet, self._token, self._name = fleet, fleet.tokens(1)[0], name
        self.key = new_key()

    def enrol(self) -> httpx.Response:
        asked = {"token": self._token, "serial": self._name, "csr": csr(self.key), "agent": "1"}
        return self._fleet.operator().post("/v1/enrol", json=asked)


class Telling:
    """A device that enrolled and tells rows, numbered from 1."""

    def __init__(self, fleet: ServedFleet, folder: Path) -> None:
        newcomer = Newcomer(fleet, "camera-7")
        made = made_of(answered(newcomer.enrol()), newcomer.key)
        context = ssl.create_default_context(cafile=str(fleet.ca_file))
        context.load_cert_chain(made.write(folder))
        self.client = httpx.Client(base_url=fleet.replicas[0].url, verify=context, trust_env=False, timeout=30)
        fleet.clients.append(self.client)
        self._random = random.Random(7)

    def tell(self, batch: int) -> httpx.Response:
        """Send rows that no compression makes smaller in the database."""
        first = batch * BATCH_ROWS + 1
        return self.client.post("/v1/self/telemetry", content=self._lines(first), headers={"content-encoding": "gzip"})

    def assigned(self, nonce: str) -> httpx.Response:
        """Return the answer with an assignment that is signed for this nonce."""
        return self.client.get("/v1/self/assignment", params={"nonce": nonce})

    def _lines(self, first: int) -> bytes:
        at = datetime.now(UTC).isoformat()
        rows = [
            {"stream": "vitals", "boot_epoch": 1, "seq": seq, "at": at, "kind": "vitals", "class": "vitals"}
            | {"document": {"noise": self._random.randbytes(ROW_BYTES // 2).hex()}}
            for seq in range(first, first + BATCH_ROWS)
        ]
        return gzip.compress("\n".join(map(json.dumps, rows)).encode(), 1)


@pytest.mark.parametrize("kind", ["tmpfs", "limit"])
def test_a_full_disk_refuses_and_forgets_nothing(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "publisher"
    folder.mkdir()
    with crowded(folder, kind) as ways, served_fleet(folder, tables=UNBOUNDED) as fleet:
        fleet.replicas[0].start()
        telling = Telling(fleet, tmp_path)
        etag = telling.client.get("/v1/self/assignment").headers["etag"]
        assert telling.tell(0).json()["acknowledged"][0]["seq"] == BATCH_ROWS
        fill, clear = ways(fleet.replicas[0].pid)
        fill()
        batch = 1
        while (answer := telling.tell(batch)).status_code == 200 and batch < BATCHES_LIMIT:
            batch += 1
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["retry-after"]) >= 1
        assert "fleet.sqlite" in answer.json()["detail"]
        kept = telling.client.get("/v1/self/assignment", headers={"if-none-match": etag})
        assert kept.status_code == 304, kept.text
        assert telling.client.get("/repository/metadata/timestamp.json").status_code == 200
        clear()
        assert telling.tell(batch).json()["acknowledged"][0]["seq"] == (batch + 1) * BATCH_ROWS
        assert fleet.replicas[0].end() == 0
        assert _rows(folder / "fleet.sqlite") == ("ok", (batch + 1) * BATCH_ROWS)


def _leads(operator: httpx.Client) -> bool:
    return "\nedge_fleet_leader 1" in operator.get("/metrics").text


def _offered(operator: httpx.Client, rollout: str) -> list[str]:
    """Return the devices that were offered the release, by the recorded facts."""
    facts = answered(operator.get(f"{rollout}/facts", params={"limit": 1000}))["items"]
    assert [fact["seq"] for fact in facts] == [*range(1, len(facts) + 1)]
    return [fact["event"]["device"] for fact in facts if fact["event"].get("decision") == "offer"]


def _come_while_full(fleet: ServedFleet, name: str, fill: Fill) -> None:
    """Let another process enrol a device and take the last room: the controller sees both at once."""
    pid, come = fleet.replicas[0].pid, False
    while not come:
        os.kill(pid, signal.SIGSTOP)
        try:
            come = _come(fleet, name)
            if come:
                fill()
        finally:
            os.kill(pid, signal.SIGCONT)


def _come(fleet: ServedFleet, name: str) -> bool:
    """Enrol a device; return False where the controller was stopped while it wrote itself."""
    with suppress(AwayError), fleet.database.write() as connection:
        devices.enrol(connection, name, datetime.now(UTC))
        return True
    return False


def _refused(answer: httpx.Response) -> None:
    assert answer.status_code == 503, answer.text
    assert int(answer.headers["retry-after"]) >= 1
    assert "fleet.sqlite cannot be used now" in answer.json()["detail"]


@pytest.mark.parametrize("kind", ["tmpfs", pytest.param("limit", marks=pytest.mark.long)])
def test_devices_and_rollouts_wait_for_room_and_go_on_exactly_there(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "publisher"
    folder.mkdir()
    with crowded(folder, kind) as ways, served_fleet(folder, tables=QUICK) as fleet:
        fleet.repository.add_release(SLOT, "2")
        fleet.replicas[0].start()
        operator, telling, newcomer = fleet.operator(), Telling(fleet, tmp_path), Newcomer(fleet, "camera-9")
        wait_until(lambda: operator.get("/v1/releases").json()["items"], WAIT_S)
        started = roll_out(operator, document(waves=[{"percent": 100}], dynamic=True))
        rollout = f"/v1/rollouts/{started}"
        wait_until(lambda: _offered(operator, rollout) == ["camera-7"], WAIT_S)
        before = telling.assigned("one").json()["signed"]["version"]
        fill, clear = ways(fleet.replicas[0].pid)
        _come_while_full(fleet, "camera-8", fill)
        wait_until(lambda: not _leads(operator), WAIT_S)
        for ask in (lambda: telling.assigned("two"), newcomer.enrol, lambda: operator.post(f"{rollout}/pause")):
            _refused(ask())
        assert _offered(operator, rollout) == ["camera-7"]
        assert operator.get(rollout).json()["state"] == "running"
        clear()
        wait_until(lambda: _leads(operator) and len(_offered(operator, rollout)) == 2, WAIT_S)
        signed = telling.assigned("two").json()["signed"]
        assert (signed["version"], signed["nonce"]) == (before + 1, "two")
        assert answered(newcomer.enrol())["device"] == "camera-9"
        wait_until(lambda: len(_offered(operator, rollout)) == 3, WAIT_S)
        assert _offered(operator, rollout) == ["camera-7", "camera-8", "camera-9"]
        assert answered(operator.get("/v1/audit/verify"))["ok"]
        assert fleet.replicas[0].end() == 0
        assert _rows(folder / "fleet.sqlite") == ("ok", 0)


def _operations(fleet: ServedFleet, folder: Path, telling: Telling, newcomer: Newcomer) -> dict[str, Callable[[], Any]]:
    """Return what people, scripts and devices may ask, by name; each is done once, in this order."""
    operator, clock = fleet.operator(), datetime.now(UTC)
    workspace = SimpleNamespace(workspace=fleet.repository.workspace)
    made = release(cast(RunningController, SimpleNamespace(control=workspace, clock=lambda: clock)), folder, SLOT, "2")
    signed = signatures(made.draft, *fleet.repository.keys[OWNER_ROLE])
    other, spare = os.urandom(100_000), {"serial": "camera-5", "id": "camera-5"}
    role, token, key = f"/v1/drafts/{OWNER_ROLE}", fleet.operator().headers["authorization"][-8:], new_key()

    def post(path: str, **said: Any) -> Callable[[], httpx.Response]:
        return lambda: operator.post(path, json=said)

    def sent(content: bytes) -> httpx.Response:
        """Announce a file and send it from where it was cut off."""
        digest = hashlib.sha256(content).hexdigest()
        begun = operator.post("/v1/blobs", json={"digest": digest, "size_bytes": len(content)})
        if not begun.is_success or begun.json()["complete"]:
            return begun
        at = begun.json()["received_bytes"]
        return operator.patch(f"/v1/blobs/{digest}", params={"offset": at}, content=content[at:])

    return {
        "make a token": post("/v1/tokens", name=f"ci {token}", role="viewer"),
        "make an enrolment": post("/v1/enrolments", tags=["pilot"]),
        "register": post("/v1/devices", **spare),
        "enrol": newcomer.enrol,
        "renew": lambda: telling.client.post("/v1/self/certificate", json={"csr": csr(key)}),
        "inventory": lambda: telling.client.put("/v1/self/inventory", json={"arch": "x86_64", "noise": "y" * 9_000}),
        "label": lambda: operator.put("/v1/devices/camera-7/labels", json={"tags": ["lobby"], "site": "rome"}),
        "suspend": post("/v1/devices/camera-6/suspend", because="it smells"),
        "resume": post("/v1/devices/camera-6/resume", because="it was the lobby"),
        "diagnose": post("/v1/devices/camera-7/diagnostics"),
        "upload": lambda: sent(other),
        **{f"upload {digest[:8]}": (lambda content=content: sent(content)) for digest, content in made.files.items()},
        "draft": lambda: put(operator, made.draft),
        "sign": lambda: operator.post(f"{role}/signatures", json=signed),
        "publish": lambda: operator.post("/v1/publication"),
        "draft a rollout": lambda: operator.post("/v1/rollouts", json=document(target=f"models/acme/{SLOT}/1/release")),
        "revoke": post("/v1/devices/camera-6/revoke", because="it burns"),
    }


@pytest.mark.parametrize("kind", ["tmpfs", "limit"])
def test_every_operation_is_refused_whole_while_the_disk_is_full_and_done_afterwards(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "publisher"
    folder.mkdir()
    with crowded(folder, kind) as ways, served_fleet(folder, tables=UNBOUNDED) as fleet:
        fleet.repository.add_release(SLOT, "1")
        fleet.replicas[0].start()
        telling = Telling(fleet, tmp_path)
        answered(Newcomer(fleet, "camera-6").enrol())
        operations = _operations(fleet, tmp_path, telling, Newcomer(fleet, "camera-9"))
        fill, clear = ways(fleet.replicas[0].pid)
        fill()
        batch = 0
        while telling.tell(batch).status_code == 200 and batch < BATCHES_LIMIT:
            batch += 1
        before = content(fleet.database)
        for name, operation in operations.items():
            answer = operation()
            if name not in BUILT_ON_OTHERS:
                assert (answer.status_code, "retry-after" in answer.headers) == (503, True), f"{name}: {answer.text}"
            now = content(fleet.database)
            assert {table for table in now if now[table] != before[table]} == set(), name
        clear()
        for operation in operations.values():
            answered(operation())
        audit = answered(fleet.operator().get("/v1/audit"))["items"]
        published = [deed["details"]["published"] for deed in audit if deed["action"] == "publication.publish"]
        assert published == [{OWNER_ROLE: 2}]  # also if only its record had no room
        assert telling.tell(batch).json()["acknowledged"][0]["seq"] == (batch + 1) * BATCH_ROWS
        assert answered(fleet.operator().get("/v1/audit/verify"))["ok"]
        assert fleet.replicas[0].end() == 0
        assert _rows(folder / "fleet.sqlite") == ("ok", (batch + 1) * BATCH_ROWS)


def test_what_to_do_is_told(tmp_path: Path) -> None:
    with closing(open_database(read_place("", tmp_path))) as database:
        migrate.upgrade(database)
        with pytest.raises(AwayError, match="disk is full; free space on its disk"):
            _enrol_many(database)


def _enrol_many(database: Database) -> None:
    with database.write() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")
        for number in range(1000):
            devices.enrol(connection, f"camera-{number}", datetime.now(UTC))


def _rows(file: Path) -> tuple[str, int]:
    with closing(sqlite3.connect(file)) as opened:
        (sound,) = opened.execute("PRAGMA integrity_check").fetchone()
        (rows,) = opened.execute("SELECT count(DISTINCT seq) FROM telemetry").fetchone()
    return sound, rows
