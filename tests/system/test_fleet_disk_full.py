"""The controller's disk is full: what would be stored is refused, what needs no room answered, and nothing is lost."""

from __future__ import annotations

import gzip
import json
import os
import random
import resource
import sqlite3
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.simulators.served_fleet import ServedFleet, answered, served_fleet

pytestmark = pytest.mark.timeout(180)
ROOM_BYTES = 12 << 20
BATCH_ROWS, ROW_BYTES, BATCHES_LIMIT = 100, 4_000, 200
Fill, Clear = Callable[[], None], Callable[[], None]


@contextmanager
def crowded(folder: Path, kind: str) -> Iterator[Callable[[int], tuple[Fill, Clear]]]:
    """Ways to take a process's disk away and to give it back: a small file system, or a limit of every file's size."""
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
        largest = max(file.stat().st_size for file in folder.glob("fleet.sqlite*"))
        limits = [(size, resource.RLIM_INFINITY) for size in (largest + 4096, resource.RLIM_INFINITY)]
        first, second = ((lambda limit=limit: _limit(pid, limit)) for limit in limits)
        return first, second

    try:
        yield ways
    finally:
        if mounted:
            subprocess.run(["/bin/umount", "--lazy", folder], check=True)


def _mount(folder: Path) -> bool:
    """Whether that is allowed here; where not, files are limited."""
    size = f"size={ROOM_BYTES}"
    done = subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], capture_output=True, check=False)
    return done.returncode == 0


def _limit(pid: int, limit: tuple[int, int]) -> None:
    resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)


class Telling:
    """A device that enrolled and tells rows, numbered from 1."""

    def __init__(self, fleet: ServedFleet, folder: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
        asked = {"token": fleet.tokens(1)[0], "serial": "camera-7", "csr": request.public_bytes(Encoding.PEM).decode()}
        made = answered(fleet.operator().post("/v1/enrol", json={**asked, "agent": "1"}))
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        (folder / "camera.pem").write_text(made["certificate"] + pem)
        context = ssl.create_default_context(cafile=str(fleet.ca_file))
        context.load_cert_chain(folder / "camera.pem")
        self.client = httpx.Client(base_url=fleet.replicas[0].url, verify=context, trust_env=False, timeout=30)
        self._random = random.Random(7)

    def tell(self, batch: int) -> httpx.Response:
        """Rows that no compression makes smaller in the database."""
        first = batch * BATCH_ROWS + 1
        return self.client.post("/v1/self/telemetry", content=self._lines(first), headers={"content-encoding": "gzip"})

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
    rates = {"serve": {"rates": {"device_per_s": 0.0, "address_per_s": 0.0}}}
    with crowded(folder, kind) as ways, served_fleet(folder, tables=rates) as fleet:
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
        telling.client.close()
        assert fleet.replicas[0].end() == 0
        assert _rows(folder / "fleet.sqlite") == ("ok", (batch + 1) * BATCH_ROWS)


def _rows(file: Path) -> tuple[str, int]:
    with closing(sqlite3.connect(file)) as opened:
        (sound,) = opened.execute("PRAGMA integrity_check").fetchone()
        (rows,) = opened.execute("SELECT count(DISTINCT seq) FROM telemetry").fetchone()
    return sound, rows
