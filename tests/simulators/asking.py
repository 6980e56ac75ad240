"""What a device sends to its controller, made by hand: certificate requests, telemetry, what it says of its slots."""

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

from fleet.authority.certificate import device_certificate
from fleet.config import FleetConfig
from fleet.database import desired, enrolment
from fleet.database.credentials import new_credential
from fleet.database.desired import Desired
from tests.simulators import databases
from tests.simulators.controller import RunningController, controlling
from tests.simulators.fleet_http import Device

AT = "2026-03-01T12:00:00.000000+00:00"


@contextmanager
def plane(kind: str, folder: Path, config: FleetConfig | None = None) -> Iterator[RunningController]:
    """A controller on that kind of database."""
    config = config or FleetConfig()
    with databases.url(kind, folder) as url:
        database = replace(config.database, url=url)
        with controlling(folder / "controller", replace(config, database=database)) as running:
            yield running


@pytest.fixture(scope="module", params=databases.KINDS)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    """On each kind of database in turn, with the release `meter` 1."""
    with plane(request.param, tmp_path_factory.mktemp("fleet")) as started:
        started.repository.add_release("meter", "1")
        yield started


def new_key() -> ec.EllipticCurvePrivateKey:
    """As the agent makes them."""
    return ec.generate_private_key(ec.SECP256R1())


def csr(key: ec.EllipticCurvePrivateKey, name: str = "") -> str:
    """A request for it."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(Encoding.PEM).decode()


def made_of(answer: Mapping[str, Any], key: ec.EllipticCurvePrivateKey) -> Device:
    """The device that an answer makes."""
    certificate = device_certificate(x509.load_pem_x509_certificate(str(answer["certificate"]).encode()))
    return Device(certificate, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def enrolment_token(running: RunningController, device: str = "", **given: Any) -> str:
    """A new one, good for an hour."""
    credential, now = new_credential("efe_"), running.clock()
    settings, expires = running.control.database.settings, now + timedelta(hours=1)
    with running.control.database.write() as connection:
        enrolment.create(connection, credential, settings, expires=expires, now=now, by="op", device=device, **given)
    return credential.text


def ask(running: RunningController, **said: str) -> httpx.Response:
    """`POST /v1/enrol`, of somebody without a certificate."""
    with running.client(None) as nobody:
        return nobody.post("/v1/enrol", json=said)


def want(running: RunningController, device: str, path: str, *, slot: str = "meter", attempt: int = 0) -> None:
    """It is to run this from now on."""
    target = running.repository.published.target(path)
    assert target
    one = Desired(device, slot, path, target.hashes["sha256"], target.length, "", running.clock(), attempt)
    with running.control.database.write() as connection:
        desired.put(connection, [one], running.control.database.settings)


def record(stream: str, seq: int, document: Any, *, kind: str = "row", epoch: int = 1, at: str = AT) -> dict[str, Any]:
    """A line of telemetry."""
    said = {"stream": stream, "boot_epoch": epoch, "seq": seq, "at": at, "kind": kind, "class": "vitals"}
    return said | {"document": document}


def gap(stream: str, first: int, last: int, epoch: int = 1) -> dict[str, Any]:
    """Numbers that the device dropped."""
    return {"stream": stream, "boot_epoch": epoch, "seq": first, "last": last, "dropped": {"vitals": last - first + 1}}


def packed(*lines: Mapping[str, Any]) -> bytes:
    """A body, as the agent packs it."""
    return gzip.compress("".join(f"{json.dumps(line)}\n" for line in lines).encode(), mtime=0)


def tell(client: httpx.Client, *lines: Mapping[str, Any], body: bytes | None = None) -> httpx.Response:
    """`POST /v1/self/telemetry`."""
    headers = {"content-encoding": "gzip", "content-type": "application/x-ndjson"}
    content = packed(*lines) if body is None else body
    return client.post("/v1/self/telemetry", content=content, headers=headers)
