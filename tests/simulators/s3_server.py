"""An independent S3 implementation in a process: OpenStack Swift. It verifies every signature."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

KEYS = {"AWS_ACCESS_KEY_ID": "test:fleet", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
"""Credentials in obstore's environment variables."""
BUCKET = "fleet"
PLACE = Path(sys.prefix) / "s3"
"""Folder where `make test` installs Swift and boto3.

It is separate because securesystemslib imports boto3 if it finds it, which would make the tested programs slower and
larger.
"""
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class S3Server:
    """A running server with an empty bucket."""

    endpoint: str
    process: subprocess.Popen[str]

    def client(self):
        """Return Amazon's client."""
        if str(PLACE) not in sys.path:
            sys.path.append(str(PLACE))
        import boto3
        from botocore.config import Config

        keys = {"aws_access_key_id": KEYS["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": KEYS["AWS_SECRET_ACCESS_KEY"]}
        bounded = Config(proxies={}, s3={"addressing_style": "path"}, retries={"max_attempts": 1})
        return boto3.client("s3", region_name="us-east-1", endpoint_url=self.endpoint, config=bounded, **keys)

    def names(self) -> list[str]:
        """Return the names of all objects."""
        return [each["Key"] for each in self.client().list_objects_v2(Bucket=BUCKET).get("Contents", [])]

    def unfinished(self) -> int:
        """Return the number of multipart uploads that are neither completed nor aborted."""
        return len(self.client().list_multipart_uploads(Bucket=BUCKET).get("Uploads", []))


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run it on a free loopback port; kill it at the end."""
    path = os.pathsep.join((str(PLACE), str(ROOT)))
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONPATH": path}
    with tempfile.TemporaryDirectory(prefix="swift-") as folder:
        words = [sys.executable, "-m", "tests.simulators.swift", folder, *KEYS.values()]
        with subprocess.Popen(words, env=environment, text=True, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout
                endpoint = process.stdout.readline().strip()
                assert endpoint, "Swift did not start; why stands above"
                server = S3Server(endpoint, process)
                client = server.client()
                client.create_bucket(Bucket=BUCKET)
                client.close()
                yield server
            finally:
                process.kill()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    """Run one server for all tests of a module."""
    with s3_server() as server:
        yield server


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set obstore's environment variables."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
