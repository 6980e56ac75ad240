"""moto's S3 in a process of its own: not Amazon's, but written by others than this project, and it speaks real HTTP."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KEYS = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
"""What obstore finds in the environment."""
BUCKET = "fleet"
PLACE = Path(sys.prefix) / "s3"
"""Where `make test` installs moto and boto3: apart, for securesystemslib loads boto3 wherever it finds it, and with it
the programs under test would be slower and larger than they are."""
_PORT = re.compile(r"Running on http://127\.0\.0\.1:(\d+)")


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
    words = [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", "0"]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(PLACE)}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, env=environment, text=True, **pipes) as process:
        try:
            server = S3Server(f"http://127.0.0.1:{_port(process)}", process)
            client = server.client()
            client.create_bucket(Bucket=BUCKET)
            client.close()
            yield server
        finally:
            process.kill()


def _port(process: subprocess.Popen[str]) -> str:
    said = []
    for line in process.stderr or ():
        said.append(line)
        if found := _PORT.search(line):
            return found[1]
    raise AssertionError(f"moto did not start: {''.join(said)}")
