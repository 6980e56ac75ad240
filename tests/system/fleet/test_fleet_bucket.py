"""A publisher with a bucket: blobs are there before metadata names them, and devices are sent to it."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import httpx
import onnx
import pytest

from fleet.controller.blobs.settings import BlobSettings, S3Settings
from fleet.controller.config import SECTIONS, FleetConfig, load_config
from tests.simulators import constants
from tests.simulators.controller import controlling
from tests.simulators.fleet_device import ONE_VARIANT, exchange_artifact
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.lost_s3 import LOSSES, LostS3, lost_s3
from tests.simulators.member_device import PATIENT, MemberDevice, member_device
from tests.simulators.operator import until
from tests.simulators.publisher import MODELS, Publisher
from tests.simulators.s3_server import BUCKET, S3Server, keys, s3
from tests.simulators.s3_trouble import cut_back, cut_there, refuse, troubled

__all__ = ["keys", "s3"]
pytestmark = pytest.mark.timeout(180)
MODEL = MODELS / "activity/1"
PART_BYTES = 65_536  # one of its files is larger
NOBODY = "http://127.0.0.1:9"
TROUBLES = (("part 2", refuse(503)), ("part 2", cut_there), ("complete", refuse(500)))


def _name_bucket(folder: Path, endpoint: str, retries: int = 0) -> constants.Constants:
    text = f'[blobs.s3]\nbucket = "{BUCKET}"\nendpoint = "{endpoint}"\npart_bytes = {PART_BYTES}\n'
    text, taken = constants.take(f"{text}retries = {retries}\nretry_timeout_s = 5.0\n", SECTIONS)
    (folder / "fleet.toml").write_text(text)
    return taken


def _sign_release(publisher: Publisher) -> dict[str, int]:
    """Sign a release that waits to be published; return its files' sizes, by digest."""
    publisher.begin()
    publisher.run("model", "add", MODEL, "--owner", "acme", "--edge-gateway", publisher.gateway)
    publisher.sign("models-acme", "acme")
    contents = [file.read_bytes() for file in MODEL.rglob("*") if file.is_file()]
    return {hashlib.sha256(content).hexdigest(): len(content) for content in contents}


def test_a_publication_waits_for_the_bucket_shows_nothing_before_and_is_found_there(s3: S3Server, tmp_path) -> None:
    publisher = Publisher(tmp_path / "publisher")
    files = _sign_release(publisher)
    before = _public(publisher)
    with troubled(s3.endpoint) as between:
        ill = [(NOBODY, {}), *((between.url, {step: [trouble]}) for step, trouble in TROUBLES)]
        for endpoint, between.troubles in ill:
            publisher.fixed = _name_bucket(publisher.folder, endpoint)
            refused = publisher.run("publish", code=3)
            assert f"nothing was published: the bucket {BUCKET} at {endpoint} does not answer" in refused.stderr
            assert not any(between.troubles.values())
            assert (_public(publisher), s3.unfinished()) == (before, 0)
            assert _sizes(s3).items() <= files.items()
        publisher.fixed = _name_bucket(publisher.folder, between.url, retries=1)
        between.troubles = {"part 2": [refuse(503)], "complete": [cut_back, cut_back], "put": [cut_back, cut_back]}
        done = publisher.told("publish")
        assert (done["published"], done["uploaded"] > 0) == ({"models-acme": 1}, True)
        assert not any(between.troubles.values())
        assert (_sizes(s3), s3.unfinished()) == ({name: files[name] for name in _blobs(publisher)}, 0)
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


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_wave_waits_for_a_bucket_that_is_lost(s3: S3Server, tmp_path: Path, state: Path) -> None:
    """No device fails for it, what runs serves on, and each goes on when the bucket is back."""
    with lost_s3(s3.endpoint, tmp_path / "way") as way:
        bucket = S3Settings(bucket=BUCKET, endpoint=s3.endpoint, public_endpoint=way.url, prefix="wave")
        config = FleetConfig(blobs=BlobSettings(s3=bucket))
        with member_device(tmp_path, state, config) as device, device.fleet.client() as operator:
            _enrolled(device, way)
            for number, loss in enumerate(("", *LOSSES)):
                target = device.publish(_changed)
                for file in (device.repository.public / "blobs/sha256").iterdir():
                    s3.client().put_object(Bucket=BUCKET, Key=f"wave/{file.name}", Body=file.read_bytes())
                rollout = f"/v1/rollouts/{device.roll_out(operator, target)}"
                until(lambda: _states(operator, rollout) == ["offered"], "it is not offered")  # noqa: B023
                way.loss, way.lost = loss, 0
                if loss:
                    assert device.sync().code == 3
                    assert list(device.serving) == [str(number)]
                    assert way.lost > 0
                    assert _states(operator, rollout)[0] in {"offered", "downloading"}
                    assert operator.get(rollout).json()["state"] == "running"
                way.loss, back = "", time.monotonic()
                done = device.sync()
                assert (done.code, list(device.serving)) == (0, [str(number + 1)]), done.err
                print(f"{loss or 'never lost'}: installed {time.monotonic() - back:.1f} s after the bucket was back")
                until(lambda: operator.get(rollout).json()["state"] == "finished", "it does not end")  # noqa: B023
                assert _states(operator, rollout) == ["committed"]


def _enrolled(device: MemberDevice, way: LostS3) -> None:
    """Enrol; devices trust the controller's CA and that of the bucket."""
    file = device.folder / "trusted.pem"
    file.write_bytes(device.fleet.ca_file.read_bytes() + way.ca_pem)
    device.configure(fetch=PATIENT | {"ca_file": str(file), "read_timeout_s": 2.0})
    assert device.enrol().code == 0


def _changed(version: Path) -> None:
    """Give the version a file of its own, so that it has to be fetched."""
    model = onnx.load(version / ONE_VARIANT / "model.onnx")
    model.doc_string = str(version)
    exchange_artifact(version, model.SerializeToString())


def _states(operator: httpx.Client, rollout: str) -> list[str]:
    return [one["state"] for one in operator.get(f"{rollout}/devices").json()["items"]]


def _public(publisher: Publisher) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in publisher.public.rglob("*") if file.is_file()}


def _blobs(publisher: Publisher) -> list[str]:
    return [file.name for file in (publisher.public / "blobs/sha256").iterdir()]


def _sizes(s3: S3Server) -> dict[str, int]:
    """Return the sizes of the files in the bucket, by digest."""
    found = s3.client().list_objects_v2(Bucket=BUCKET).get("Contents", [])
    return {each["Key"].rpartition("/")[2]: each["Size"] for each in found}
