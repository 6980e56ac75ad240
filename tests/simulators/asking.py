"""Handmade requests of a device to its controller: certificate requests, telemetry, slot states."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fleet.controller.authority.certificate import device_certificate
from fleet.controller.config import FleetConfig
from fleet.controller.database import desired, enrolment
from fleet.controller.database.credentials import new_credential
from fleet.controller.database.desired import Desired
from tests.simulators import databases
from tests.simulators.controller import RunningController, controlling
from tests.simulators.fleet_http import Device

AT = "2026-03-01T12:00:00.000000+00:00"


@contextmanager
def plane(kind: str, folder: Path, config: FleetConfig | None = None) -> Iterator[RunningController]:
    """Run a controller on a kind of database."""
    config = config or FleetConfig()
    with databases.url(kind, folder) as url:
        database = replace(config.database, url=url)
        with controlling(folder / "controller", replace(config, database=database)) as running:
            yield running


@pytest.fixture(scope="module", params=databases.ALIKE)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    """Run a controller on each kind of database, with the release `meter` 1."""
    with plane(request.param, tmp_path_factory.mktemp("fleet")) as started:
        started.repository.add_release("meter", "1")
        yield started


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a key of the agent's type."""
    return ec.generate_private_key(ec.SECP256R1())


def csr(key: ec.EllipticCurvePrivateKey, name: str = "") -> str:
    """Return a certificate request for a key."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(Encoding.PEM).decode()


def made_of(answer: Mapping[str, Any], key: ec.EllipticCurvePrivateKey) -> Device:
    """Return the device that an enrolment response describes."""
    certificate = device_certificate(x509.load_pem_x509_certificate(str(answer["certificate"]).encode()))
    return Device(certificate, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def enrolment_token(running: RunningController, device: str = "", *, valid_h: float = 1.0, **given: Any) -> str:
    """Create a token."""
    credential, now = new_credential("efe_"), running.clock()
    settings, expires = running.control.database.settings, now + timedelta(hours=valid_h)
    with running.control.database.write() as connection:
        enrolment.create(connection, credential, settings, expires=expires, now=now, by="op", device=device, **given)
    return credential.text


def ask(running: RunningController, **said: str) -> httpx.Response:
    """Send `POST /v1/enrol` without a certificate."""
    with running.client(None) as nobody:
        return nobody.post("/v1/enrol", json=said)


def want(running: RunningController, device: str, path: str, *, slot: str = "meter", attempt: int = 0) -> None:
    """Set the release that a device is to run."""
    target = running.repository.published.target(path)
    assert target
    one = Desired(device, slot, path, target.hashes["sha256"], target.length, "", running.clock(), attempt)
    with running.control.database.write() as connection:
        desired.put(connection, [one], running.control.database.settings)


def record(stream: str, seq: int, document: Any, *, kind: str = "row", epoch: int = 1, at: str = AT) -> dict[str, Any]:
    """Return a line of telemetry."""
    said = {"stream": stream, "boot_epoch": epoch, "seq": seq, "at": at, "kind": kind, "class": "vitals"}
    return said | {"document": document}


def gap(stream: str, first: int, last: int, epoch: int = 1) -> dict[str, Any]:
    """Return a line for numbers that the device dropped."""
    return {"stream": stream, "boot_epoch": epoch, "seq": first, "last": last, "dropped": {"vitals": last - first + 1}}


def packed(*lines: Mapping[str, Any]) -> bytes:
    """Return a request body, compressed as by the agent."""
    return gzip.compress("".join(f"{json.dumps(line)}\n" for line in lines).encode(), mtime=0)


def tell(client: httpx.Client, *lines: Mapping[str, Any], body: bytes | None = None) -> httpx.Response:
    """Send `POST /v1/self/telemetry`."""
    headers = {"content-encoding": "gzip", "content-type": "application/x-ndjson"}
    content = packed(*lines) if body is None else body
    return client.post("/v1/self/telemetry", content=content, headers=headers)
