"""Fixtures of system tests: one state folder, so that trials run once; one daemon a module; its log on failure."""

from __future__ import annotations

import asyncio
import io
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.simulators import daemon as simulator
from tests.simulators.broker import Mosquitto
from tests.simulators.daemon import ANYWHERE, QUIET, SHORT_TRIALS, Daemon, golden, running

LOG_TAIL_CHARS = 6000
GRPC_SERVERS = ("own", pytest.param("grpcio", marks=pytest.mark.long))
"""Values of `--grpc-server`. What peers see must not differ: test_grpc_alike and the contracts hold both together."""


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the state folder of all tests' daemons: several may share one."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, state: Path) -> Iterator[Daemon]:
    """Yield a daemon with the shipped models, on TCP."""
    with running(tmp_path_factory.mktemp("gateway"), state=state) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """Yield a running mosquitto without users and rules."""
    broker = Mosquitto(tmp_path_factory.mktemp("broker"))
    asyncio.run(broker.start())
    yield broker
    asyncio.run(broker.kill())


@pytest.fixture(scope="session", params=GRPC_SERVERS)
def grpc_server(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Return the arguments that choose what speaks HTTP/2; every test that uses it runs once per server."""
    return "--grpc-server", request.param


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, state: Path, grpc_server: tuple[str, str]) -> Iterator[Daemon]:
    """Yield a daemon with the shipped models and gRPC on TCP and on a UNIX socket, once per server."""
    folder = tmp_path_factory.mktemp("s")
    listens = [ANYWHERE, f"unix:{folder}/g.sock"]
    with running(folder, state=state, grpc=listens, arguments=grpc_server) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return ca.pem, and NAME.pem with NAME.key for localhost, client and stranger (of another authority)."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["/usr/bin/env", "openssl", *arguments], cwd=folder, capture_output=True, check=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for ca in ("ca", "other-ca"):
        openssl("req", "-x509", *key, "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-subj", f"/CN={ca}", "-days", "1")
    for name, ca in (("localhost", "ca"), ("client", "ca"), ("stranger", "other-ca")):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "san").write_text(f"subjectAltName=DNS:{name}\n")
        signed = ("-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", "1", "-extfile", "san")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)
    return folder


@pytest.fixture(scope="module")
def served_tls(
    tmp_path_factory: pytest.TempPathFactory, state: Path, grpc_server: tuple[str, str], authority: Path
) -> Iterator[Daemon]:
    """Yield a daemon like `served`, with TLS on TCP by the certificate of localhost."""
    config = f'{QUIET}{SHORT_TRIALS}[tls]\ncert = "{authority}/localhost.pem"\nkey = "{authority}/localhost.key"\n'
    with running(tmp_path_factory.mktemp("tls"), state=state, config=config, arguments=grpc_server) as daemon:
        yield daemon


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Add the logs of the daemons of that moment to the report of a failed test."""
    report = yield
    if report.failed:
        for daemon in simulator.LIVE:
            report.sections.append((f"log of the daemon in {daemon.folder}", daemon.log[-LOG_TAIL_CHARS:]))
    return report


@pytest.fixture(scope="session")
def digit_png() -> tuple[bytes, int]:
    """Return a golden digit as a PNG of 8×8 pixels (0..255 for 0..1), and its class."""
    rows = golden("meter-reader", 1)
    content = io.BytesIO()
    Image.fromarray((rows.rows[0, 0] * 255).round().astype(np.uint8)).save(content, "PNG")
    return content.getvalue(), int(rows.scores[0].argmax())
