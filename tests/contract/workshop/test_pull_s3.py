"""Pulls from buckets: OpenStack Swift's S3, which verifies every signature."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.common.transfer.source import FetchError
from gateway.workshop.pull.bucket import BucketPlace
from tests.simulators.bad_server import BadServer, answer, serve
from tests.simulators.pulling import MODEL, digest, pull, release_tar
from tests.simulators.s3_server import BUCKET, KEYS, S3Server, s3  # noqa: F401  a fixture

KEY = "team a/models+x/größe=1&2~(3).onnx"


@pytest.mark.parametrize("key", ["wrist.onnx", KEY])
def test_an_object(s3: S3Server, tmp_path: Path, key: str) -> None:  # noqa: F811
    s3.client().put_object(Bucket=BUCKET, Key=key, Body=MODEL)
    pulled = pull_object(s3.endpoint, key, tmp_path, name="wrist")
    assert pulled.folder == tmp_path / "wrist" / "1"
    assert [path.read_bytes() for path in pulled.folder.glob("*.onnx")] == [MODEL]


def test_an_archive(s3: S3Server, tmp_path: Path) -> None:  # noqa: F811
    content = release_tar()
    s3.client().put_object(Bucket=BUCKET, Key="meter.tar.gz", Body=content)
    pulled = pull_object(s3.endpoint, "meter.tar.gz", tmp_path, content=content)
    assert pulled.folder == tmp_path / "meter-reader" / "1"


@pytest.mark.parametrize("changed", [{"AWS_SECRET_ACCESS_KEY": "wrong"}, {"AWS_ACCESS_KEY_ID": "nobody"}])
def test_wrong_keys_are_refused(s3: S3Server, tmp_path: Path, changed: Mapping[str, str]) -> None:  # noqa: F811
    s3.client().put_object(Bucket=BUCKET, Key="m.onnx", Body=MODEL)
    with pytest.raises(FetchError, match="rights") as caught:
        pull_object(s3.endpoint, "m.onnx", tmp_path, environ={**KEYS, **changed})
    assert (caught.value.status, caught.value.final) == (403, True)


def test_an_object_that_is_not_there(s3: S3Server, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(FetchError) as caught:
        pull_object(s3.endpoint, "absent.onnx", tmp_path)
    assert caught.value.status == 404


def test_a_public_object_needs_no_signature(tmp_path: Path) -> None:
    with BadServer([serve(MODEL)]).running() as server:
        pull_object(server.url, "m.onnx", tmp_path, environ={})
        assert "authorization" not in server.exchanges[0].headers
        assert server.exchanges[0].path == f"/{BUCKET}/m.onnx"


def test_a_bucket_in_the_name_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names below localhost are this device (RFC 6761); the proxy answers for them, so that no resolver is asked."""
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with BadServer([serve(MODEL)]).running() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        place = BucketPlace("http://s3.localhost:1", style="virtual")
        pull(f"s3://{BUCKET}/m.onnx", tmp_path, pin=digest(MODEL), environ=KEYS, place=place)
        assert {exchange.path for exchange in proxy.exchanges} == {f"http://{BUCKET}.s3.localhost:1/m.onnx"}
        assert all("SignedHeaders=host;" in exchange.headers["authorization"] for exchange in proxy.exchanges)


def test_a_signature_does_not_follow_a_redirect(tmp_path: Path) -> None:
    with BadServer([serve(MODEL)]).running() as other:
        with BadServer([answer("307 Temporary Redirect", f"Location: {other.url}m.onnx")]).running() as server:
            pull_object(server.url, "m.onnx", tmp_path)
            assert "x-amz-date" in server.exchanges[0].headers
        assert not {"authorization", "x-amz-date"} & set(other.exchanges[0].headers)


def pull_object(endpoint: str, key: str, models: Path, *, content: bytes = MODEL, environ=None, **options):
    """Pull an object of the bucket."""
    place = BucketPlace(endpoint.rstrip("/"))
    keys = KEYS if environ is None else environ
    return pull(f"s3://{BUCKET}/{key}", models, pin=digest(content), environ=keys, place=place, **options)
