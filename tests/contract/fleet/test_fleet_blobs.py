"""Every store of blobs keeps the same promises: on the disk, and in S3 as OpenStack Swift speaks it."""

from __future__ import annotations

import hashlib
import io
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from fleet.controller.blobs.disk import DiskBlobs
from fleet.controller.blobs.s3 import S3Blobs
from fleet.controller.blobs.settings import S3Settings
from fleet.controller.blobs.store import BlobStore
from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from tests.simulators.bad_server import BadServer, answer, silence
from tests.simulators.constants import settings_with
from tests.simulators.s3_server import BUCKET, KEYS, S3Server, keys, s3

__all__ = ["keys", "s3"]
MIB = 1_048_576
QUICK = {"retries": 0, "retry_timeout_s": 2.0, "connect_timeout_s": 1.0, "request_timeout_s": 1.0}


def in_s3(endpoint: str, bucket: str = BUCKET, **more) -> S3Blobs:
    return S3Blobs(settings_with(S3Settings(bucket, endpoint=endpoint), part_bytes=5 * MIB, **more))


@pytest.fixture(params=["disk", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path, s3: S3Server) -> BlobStore:
    return DiskBlobs(tmp_path / "blobs") if request.param == "disk" else in_s3(s3.endpoint)


def made(size: int, seed: int = 0) -> tuple[str, bytes]:
    content = hashlib.shake_256(bytes([seed])).digest(size)
    return hashlib.sha256(content).hexdigest(), content


@pytest.mark.parametrize("size", [0, 1, MIB, 5 * MIB, 5 * MIB + 1, 17 * MIB])
def test_what_is_put_is_there(blobs: BlobStore, size: int) -> None:
    digest, content = made(size)
    for _ in range(2):
        blobs.put(digest, io.BytesIO(content), size)
    assert blobs.stat(digest) == size
    with blobs.open(digest) as file:
        assert file.read() == content
        file.seek(size // 2)
        assert file.read(10) == content[size // 2 : size // 2 + 10]


@pytest.mark.parametrize("size", [100, 12 * MIB])
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "has the SHA-256 digest"),
        (lambda content: content[:-1], "ended after"),
        (lambda content: content + b"x", "more came"),
    ],
)
def test_other_content_is_refused_and_nothing_is_left(
    blobs: BlobStore, s3: S3Server, size: int, spoil, says: str
) -> None:
    digest, content = made(size, 1)
    with pytest.raises(RequestError, match=says) as caught:
        blobs.put(digest, io.BytesIO(spoil(content)), size)
    assert caught.value.fault is Fault.INVALID
    assert blobs.stat(digest) is None
    if isinstance(blobs, S3Blobs):
        assert s3.unfinished() == 0


def test_a_stream_that_breaks_leaves_nothing(blobs: BlobStore, s3: S3Server) -> None:
    digest, content = made(12 * MIB, 2)

    class Breaking(io.BytesIO):
        def read(self, size=-1):
            if self.tell() > 8 * MIB:
                raise ConnectionResetError("the sender left")
            return super().read(size)

    with pytest.raises(RequestError, match="broke off: the sender left"):
        blobs.put(digest, Breaking(content), len(content))
    assert blobs.stat(digest) is None
    assert s3.unfinished() == 0


def test_several_put_the_same_at_once(blobs: BlobStore) -> None:
    digest, content = made(MIB, 3)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: blobs.put(digest, io.BytesIO(content), MIB), range(4)))
    with blobs.open(digest) as file:
        assert file.read() == content


@pytest.mark.parametrize("name", ["", "../x", "A" * 64, "a" * 63, "a" * 64 + "\n", "a" * 63 + "/"])
def test_what_is_no_digest_is_nowhere(blobs: BlobStore, name: str) -> None:
    calls = [lambda: blobs.open(name), lambda: blobs.put(name, io.BytesIO(), 0)]
    for call in calls:
        with pytest.raises(RequestError) as caught:
            call()
        assert caught.value.fault is Fault.NOT_FOUND


def test_what_is_not_there(blobs: BlobStore) -> None:
    digest = "0" * 64
    assert blobs.stat(digest) is None
    with pytest.raises(RequestError, match="publish the release") as caught:
        blobs.open(digest)
    assert caught.value.fault is Fault.NOT_FOUND


def test_anybody_can_fetch_by_a_signed_url_and_nobody_without(s3: S3Server) -> None:
    blobs = in_s3(s3.endpoint)
    digest, content = made(1000, 4)
    blobs.put(digest, io.BytesIO(content), 1000)
    assert s3.names().count(f"blobs/sha256/{digest}") == 1
    url = blobs.url(digest, "GET")
    assert "X-Amz-Expires=900" in url
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in url
    with httpx.Client(trust_env=False) as client:
        assert client.get(url).content == content
        part = client.get(url, headers={"Range": "bytes=10-19"})
        assert (part.status_code, part.content) == (206, content[10:20])
        assert client.head(blobs.url(digest, "HEAD")).status_code == 200
        other, _, signature = url.replace(digest, made(1000, 7)[0]).rpartition("=")
        forged = url.replace(signature, signature[::-1])
        refused = [client.get(address) for address in (url.partition("?")[0], f"{other}={signature}", forged)]
        assert [400 <= answer.status_code < 404 for answer in refused] == [True] * 3
        assert [content in answer.content for answer in refused] == [False] * 3


def test_a_signed_url_holds_for_a_while(s3: S3Server) -> None:
    blobs = in_s3(s3.endpoint, url_validity_s=1.0)
    digest, content = made(1000, 8)
    blobs.put(digest, io.BytesIO(content), 1000)
    url = blobs.url(digest, "GET")
    with httpx.Client(trust_env=False) as client:
        while (answer := client.get(url)).status_code == 200:
            time.sleep(0.1)
    assert answer.status_code == 403
    assert b"expired" in answer.content


def test_credentials_that_the_store_refuses_are_told(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    digest, content = made(10, 9)
    with pytest.raises(RequestError, match="refuses this controller's credentials") as caught:
        in_s3(s3.endpoint).put(digest, io.BytesIO(content), 10)
    assert caught.value.fault is Fault.UNAVAILABLE
    assert not any(digest in name for name in s3.names())


def test_devices_may_reach_the_store_by_another_address(s3: S3Server) -> None:
    blobs = in_s3(s3.endpoint, public_endpoint="https://s3.example.org")
    assert blobs.url("0" * 64, "GET").startswith(f"https://s3.example.org/{BUCKET}/blobs/sha256/{'0' * 64}?")
    assert blobs.stat("0" * 64) is None


def test_a_store_that_is_down_is_told(s3: S3Server, unused_port: int) -> None:
    blobs = in_s3(f"http://127.0.0.1:{unused_port}", **QUICK)
    digest, content = made(10, 5)
    calls = [lambda: blobs.stat(digest), lambda: blobs.open(digest), lambda: blobs.put(digest, io.BytesIO(content), 10)]
    for call in calls:
        with pytest.raises(
            RequestError, match=rf"{BUCKET} at http://127.0.0.1:{unused_port} does not answer"
        ) as caught:
            call()
        assert (caught.value.fault, caught.value.retry_after_s) == (Fault.UNAVAILABLE, 10.0)


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.parametrize(
    ("behave", "says"),
    [
        (answer("503 Slow Down"), "does not answer as it should"),
        (answer("500 Internal Server Error"), "does not answer as it should"),
        (answer("403 Forbidden"), "refuses this controller's credentials"),
        (silence, "whose credentials are used: AWS_ACCESS_KEY_ID"),
    ],
    ids=["503", "500", "403", "silent"],
)
def test_a_store_that_is_ill_is_told(behave, says) -> None:
    server = BadServer([behave])
    with server.running():
        blobs = in_s3(server.url.rstrip("/"), **QUICK)
        with pytest.raises(RequestError, match=says) as caught:
            blobs.stat("0" * 64)
        assert caught.value.fault is Fault.UNAVAILABLE
        assert "Signature" not in caught.value.message


def test_a_bucket_that_is_not_there_is_no_missing_blob(s3: S3Server) -> None:
    blobs = in_s3(s3.endpoint, "nowhere", **QUICK)
    digest, content = made(10, 6)
    with pytest.raises(RequestError, match="bucket nowhere") as caught:
        blobs.put(digest, io.BytesIO(content), 10)
    assert caught.value.fault is Fault.UNAVAILABLE


def test_a_bucket_must_be_named() -> None:
    with pytest.raises(ConfigurationError, match=r"blobs.s3.bucket"):
        S3Blobs(S3Settings())
