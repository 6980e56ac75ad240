"""A real `edge-fleet serve`, its loudest log, its folder: no secret is anywhere it should not be."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.simulators.controller import free_port
from tests.simulators.publisher import Publisher
from tests.simulators.served_fleet import Replica

pytestmark = pytest.mark.timeout(180)
CURL = shutil.which("curl") or "curl"


@contextmanager
def serving(publisher: Publisher) -> Iterator[str]:
    """Serve and yield the URL; the log is `log` in the folder, and whole when this ends."""
    port = free_port()
    (publisher.folder / "fleet.toml").write_text(f'[listen]\naddresses = ["127.0.0.1:{port}"]\n')
    command = [sys.executable, "-m", "fleet", "serve", "--log-level", "debug", "--dir", str(publisher.folder)]
    replica = Replica(publisher.folder, f"https://localhost:{port}", command)
    replica.start()
    try:
        yield replica.url
    finally:
        assert replica.end() == 0, replica.said()


def test_secrets_stay_secret(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "publisher")
    publisher.begin()
    os.umask(0o022)
    admin = publisher.told("tokens", "create", "alice", "--role", "admin", "--dir", ".")["token"]
    secrets = [admin]
    with serving(publisher) as url:
        context = ssl.create_default_context(cafile=str(publisher.folder / "authority/ca.pem"))
        with httpx.Client(
            base_url=url, verify=context, trust_env=False, headers={"authorization": f"Bearer {admin}"}
        ) as client:
            made = client.post("/v1/enrolments", json={"device": "camera-7"}).raise_for_status().json()["token"]
            other = client.post("/v1/tokens", json={"name": "bob", "role": "viewer"}).raise_for_status().json()["token"]
            secrets += [made, other]
            assert client.get("/v1/devices", params={"after": other}).status_code == 200  # in a query by mistake
            assert client.get(f"/v1/devices/{made}").status_code == 404
            wrong = {"token": made, "serial": "", "csr": "no request", "agent": "1"}
            assert client.post("/v1/enrol", json=wrong, headers={"authorization": ""}).status_code == 400
            shown = client.get("/v1/tokens").text + client.get("/v1/enrolments").text + client.get("/v1/audit").text
    log = (publisher.folder / "log").read_text()
    kept = b"".join(file.read_bytes() for file in publisher.folder.glob("fleet.sqlite*"))
    assert "GET /v1/audit 200" in log
    for secret in (*secrets[:1], other):  # a path is logged: who puts a token there has told it to every proxy, too
        assert secret not in log
    for secret in secrets:
        assert secret not in shown
        assert secret.encode() not in kept
    assert "PRIVATE KEY" not in log


def test_who_may_read_what_lies_in_the_folder(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "publisher")
    publisher.begin()
    with serving(publisher):
        pass
    private = [
        *publisher.folder.rglob("*.pem"),
        *publisher.folder.rglob("*.key"),
        *publisher.folder.glob("fleet.sqlite*"),
    ]
    public = {publisher.folder / "authority/ca.pem", publisher.folder / "authority/crl.pem"}
    assert {file.suffix for file in private} >= {".pem", ".key", ".sqlite"}
    for file in set(private) - public:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


@pytest.mark.parametrize(
    "path",
    [
        "/repository/../keys/online.pem",
        "/repository/%2e%2e/keys/online.pem",
        "/repository/metadata/..%2f..%2fkeys/online.pem",
        "/repository/metadata/../../authority/ca.key",
        "/repository//etc/passwd",
        "/repository/assignments/camera-7.json",
        "/repository/blobs/sha256/../../../keys/online.pem",
        "/repository/.lock",
        "/repository/metadata/timestamp.json%00.png",
    ],
)
def test_nothing_beside_what_is_published_is_handed_out(published: str, path: str) -> None:
    url, ca_file = json.loads(published)
    done = subprocess.run(
        [CURL, "-sS", "--path-as-is", "--cacert", ca_file, "-o", "-", "-w", "\n%{http_code}", f"{url}{path}"],
        capture_output=True,
        text=True,
        check=True,
    )
    body, _, code = done.stdout.rpartition("\n")
    assert code in {"400", "404"}
    assert "PRIVATE" not in body
    assert json.loads(body)["detail"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    publisher = Publisher(tmp_path_factory.mktemp("published") / "publisher")
    publisher.begin()
    (publisher.public / "metadata" / "linked.json").symlink_to(publisher.folder / "keys/online.pem")
    with serving(publisher) as url:
        yield json.dumps([url, str(publisher.folder / "authority/ca.pem")])


def test_a_link_is_not_followed(published: str) -> None:
    url, ca_file = json.loads(published)
    context = ssl.create_default_context(cafile=ca_file)
    with httpx.Client(base_url=url, verify=context, trust_env=False) as client:
        assert client.get("/repository/metadata/linked.json").status_code == 404
        assert client.get("/repository/metadata/timestamp.json").status_code == 200
