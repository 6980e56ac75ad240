"""An S3 that others wrote and operate, in a process of its own: OpenStack Swift's. It verifies every signature."""

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
"""What obstore finds in the environment."""
BUCKET = "fleet"
PLACE = Path(sys.prefix) / "s3"
"""Where `make test` installs Swift and boto3: apart, for securesystemslib loads boto3 wherever it finds it, and with it
the programs under test would be slower and larger than they are."""
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class S3Server:
    """A running one, with an empty bucket."""

    endpoint: str
    process: subprocess.Popen[str]

    def client(self):
        """Amazon's own client."""
        if str(PLACE) not in sys.path:
            sys.path.append(str(PLACE))
        import boto3
        from botocore.config import Config

        keys = {"aws_access_key_id": KEYS["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": KEYS["AWS_SECRET_ACCESS_KEY"]}
        bounded = Config(proxies={}, s3={"addressing_style": "path"}, retries={"max_attempts": 1})
        return boto3.client("s3", region_name="us-east-1", endpoint_url=self.endpoint, config=bounded, **keys)

    def names(self) -> list[str]:
        """All objects, by name."""
        return [each["Key"] for each in self.client().list_objects_v2(Bucket=BUCKET).get("Contents", [])]

    def unfinished(self) -> int:
        """Uploads in parts that were begun and neither finished nor given up."""
        return len(self.client().list_multipart_uploads(Bucket=BUCKET).get("Uploads", []))


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """On a free port of this machine; killed at the end."""
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
    """One for all tests of a module."""
    with s3_server() as server:
        yield server


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where obstore looks for them."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
