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
from tests.simulators.s3_trouble import cut_back, cut_there, refuse, troubled

pytestmark = pytest.mark.timeout(180)
PART_BYTES = 65_536
TROUBLES = (("part 2", refuse(503)), ("part 2", cut_there), ("complete", refuse(500)))


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def _name_bucket(folder: Path, endpoint: str, retries: int = 0) -> None:
    text = f'[blobs.s3]\nbucket = "{BUCKET}"\nendpoint = "{endpoint}"\npart_bytes = {PART_BYTES}\n'
    (folder / "fleet.toml").write_text(f"{text}retries = {retries}\nretry_timeout_s = 5.0\n")


def _sign_release(publisher: Publisher, model: str) -> dict[str, int]:
    """What waits to be published; its files' sizes, by digest."""
    publisher.begin()
    publisher.run("model", "add", MODELS / model, "--owner", "acme", "--edge-gateway", publisher.gateway)
    publisher.sign("models-acme", "acme")
    contents = [file.read_bytes() for file in (MODELS / model).rglob("*") if file.is_file()]
    return {hashlib.sha256(content).hexdigest(): len(content) for content in contents}


def test_a_publication_waits_for_the_bucket_and_is_found_there(s3: S3Server, tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "publisher")
    files = _sign_release(publisher, "activity/1")
    before = (publisher.public / "metadata/timestamp.json").read_bytes()
    _name_bucket(publisher.folder, "http://127.0.0.1:9")
    refused = publisher.run("publish", code=3)
    assert "the bucket fleet at http://127.0.0.1:9" in refused.stderr
    assert (publisher.public / "metadata/timestamp.json").read_bytes() == before
    _name_bucket(publisher.folder, s3.endpoint)
    assert publisher.told("publish")["uploaded"] > 0
    assert {name.rpartition("/")[2] for name in s3.names()} <= files.keys()
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


def test_a_publication_whose_upload_fails_half_way_shows_nothing_and_ends_well_again(s3: S3Server, tmp_path) -> None:
    publisher = Publisher(tmp_path / "publisher")
    files = _sign_release(publisher, "meter-reader/1")
    before = _public(publisher)
    with troubled(s3.endpoint) as between:
        _name_bucket(publisher.folder, between.url)
        for step, trouble in TROUBLES:
            between.troubles = {step: [trouble]}
            refused = publisher.run("publish", code=3)
            assert f"nothing was published: the bucket {BUCKET} at {between.url} does not answer" in refused.stderr
            assert between.troubles == {step: []}
            assert (_public(publisher), s3.unfinished()) == (before, 0)
            assert _sizes(s3, files).items() <= files.items()
        _name_bucket(publisher.folder, between.url, retries=1)
        between.troubles = {"part 2": [refuse(503)], "complete": [cut_back, cut_back], "put": [cut_back, cut_back]}
        assert publisher.told("publish")["published"] == {"models-acme": 1}
        assert not any(between.troubles.values())
    assert (_sizes(s3, files), s3.unfinished()) == ({name: files[name] for name in _blobs(publisher)}, 0)
    assert publisher.told("verify")["ok"]


def _public(publisher: Publisher) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in publisher.public.rglob("*") if file.is_file()}


def _blobs(publisher: Publisher) -> list[str]:
    return [file.name for file in (publisher.public / "blobs/sha256").iterdir()]


def _sizes(s3: S3Server, files: dict[str, int]) -> dict[str, int]:
    """Of these that are in the bucket."""
    found = s3.client().list_objects_v2(Bucket=BUCKET).get("Contents", [])
    sizes = {each["Key"].rpartition("/")[2]: each["Size"] for each in found}
    return {name: size for name, size in sizes.items() if name in files}
