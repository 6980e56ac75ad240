"""A publisher with a bucket: blobs are there before metadata names them, and devices are sent to it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fleet.config import load_config
from tests.simulators.controller import controlling
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.publisher import MODELS, Publisher
from tests.simulators.s3_server import BUCKET, KEYS, S3Server, s3_server

pytestmark = pytest.mark.timeout(180)
FILES = {hashlib.sha256(file.read_bytes()).hexdigest() for file in (MODELS / "activity/1").rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def _name_bucket(folder: Path, endpoint: str) -> None:
    text = f'[blobs.s3]\nbucket = "{BUCKET}"\nendpoint = "{endpoint}"\nretries = 0\nretry_timeout_s = 2.0\n'
    (folder / "fleet.toml").write_text(text)


def test_a_publication_waits_for_the_bucket_and_is_found_there(s3: S3Server, tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "publisher")
    publisher.begin()
    publisher.run("model", "add", MODELS / "activity/1", "--owner", "acme", "--edge-gateway", publisher.gateway)
    publisher.sign("models-acme", "acme")
    before = (publisher.public / "metadata/timestamp.json").read_bytes()
    _name_bucket(publisher.folder, "http://127.0.0.1:9")
    refused = publisher.run("publish", code=3)
    assert "the bucket fleet at http://127.0.0.1:9" in refused.stderr
    assert (publisher.public / "metadata/timestamp.json").read_bytes() == before
    _name_bucket(publisher.folder, s3.endpoint)
    assert publisher.told("publish")["uploaded"] > 0
    assert {name.rpartition("/")[2] for name in s3.names()} <= FILES
    assert publisher.told("publish", "--mirror")["uploaded"] == 0
    assert publisher.told("verify")["ok"]


def test_a_device_is_sent_to_the_bucket_and_finds_the_bytes(s3: S3Server, tmp_path: Path) -> None:
    repository = FleetRepository(tmp_path)
    repository.add_owner("acme")
    repository.add_release("door-reader", "1", variants={"only": b"the bytes"})
    _name_bucket(tmp_path, s3.endpoint)
    (blob,) = (f for f in (repository.public / "blobs/sha256").iterdir() if f.read_bytes() == b"the bytes")
    with controlling(tmp_path, load_config(tmp_path), repository) as controller, controller.client(None) as device:
        path = f"/repository/blobs/sha256/{blob.name}"
        missing = device.get(path)
        assert httpx.get(missing.headers["location"], trust_env=False).status_code == 404
        s3.client().put_object(Bucket=BUCKET, Key=f"blobs/sha256/{blob.name}", Body=blob.read_bytes())
        sent = device.get(path)
        assert sent.status_code == 302
        assert httpx.get(sent.headers["location"], trust_env=False).content == b"the bytes"
