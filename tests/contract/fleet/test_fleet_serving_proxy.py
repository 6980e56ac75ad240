"""A real proxy that ends TLS: HAProxy hands on certificates (RFC 9440), and goes by our revocation list."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from fleet.controller.authority.revocation import revocation_list
from fleet.controller.serving.settings import ProxySettings, ServingSettings
from tests.simulators.fleet_http import AUTHORITY, Controller, controlling, device, now

pytestmark = pytest.mark.asyncio
CONFIGURATION = """
defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
frontend devices
    bind fd@{descriptor} ssl crt {folder}/server.pem ca-file {folder}/ca.pem crl-file {folder}/crl.pem verify optional
    http-request del-header Client-Cert
    http-request set-header Client-Cert :%[ssl_c_der,base64]: if {{ ssl_c_used }}
    http-request set-header X-Forwarded-For %[src]
    default_backend fleet
backend fleet
    server one 127.0.0.1:{port}
"""
GOOD, BAD = device("camera-7"), device("camera-8")


@asynccontextmanager
async def proxied(controller: Controller, folder: Path) -> AsyncIterator[str]:
    """Start HAProxy in front of the controller; yield its URL."""
    program = shutil.which("haproxy", path="/usr/sbin:/usr/bin")
    assert program, "haproxy is one of the packages that make test installs"
    (folder / "server.pem").write_bytes(b"".join(AUTHORITY.issue_server(["localhost"], now())))
    revoked = {BAD.certificate.serial: now()}
    crl = revocation_list(AUTHORITY, revoked, now(), number=1, next_after=timedelta(days=1))
    (folder / "crl.pem").write_bytes(crl)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        words = {"descriptor": listener.fileno(), "folder": folder, "port": controller.port}
        (folder / "haproxy.cfg").write_text(CONFIGURATION.format(**words))
        command = [program, "-db", "-q", "-f", str(folder / "haproxy.cfg")]
        process = await asyncio.create_subprocess_exec(*command, pass_fds=[listener.fileno()])
        try:
            yield f"https://localhost:{listener.getsockname()[1]}/"
        finally:
            process.kill()
            await process.wait()


@asynccontextmanager
async def behind(folder: Path, trusted: tuple[str, ...]) -> AsyncIterator[tuple[Controller, list[str]]]:
    settings = ServingSettings(proxy=ProxySettings(trusted))
    async with controlling(folder, settings=settings) as controller, proxied(controller, folder) as url:
        yield controller, ["curl", "-sS", "--cacert", str(controller.ca_file), url]


async def test_devices_are_known_behind_it(tmp_path) -> None:
    file = str(GOOD.write(tmp_path))
    async with behind(tmp_path, ("127.0.0.1",)) as (controller, curl):
        _, said = await controller.run(*curl, "--cert", file)
        assert '"device": "camera-7"' in said, said
        assert '"proxied": true' in said
        _, said = await controller.run(*curl)
        assert '"device": ""' in said, said
        _, said = await controller.run(*curl, "-H", f"Client-Cert: :{'A' * 8}:", "-H", "X-Forwarded-For: 6.6.6.6")
        assert '"device": ""' in said, said
        assert '"address": "127.0.0.1"' in said


async def test_it_goes_by_our_revocation_list(tmp_path) -> None:
    file = str(BAD.write(tmp_path))
    async with behind(tmp_path, ("127.0.0.1",)) as (controller, curl):
        code, said = await controller.run(*curl, "--cert", file)
        assert code != 0
        assert "revoked" in said


async def test_a_proxy_that_nobody_named_is_a_stranger(tmp_path) -> None:
    file = str(GOOD.write(tmp_path))
    async with behind(tmp_path, ()) as (controller, curl):
        _, said = await controller.run(*curl, "--cert", file)
        assert '"device": ""' in said, said
        assert controller.counts["certificate_header_ignored"] == 1
