"""Behind nginx, configured word for word as `fleet/serving/README.md` says; only its folder and its port are others."""

from __future__ import annotations

import asyncio
import re
import shutil
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from fleet.serving.settings import ProxySettings, ServingSettings
from gateway.domain.access import Address
from tests.simulators.controller import free_port
from tests.simulators.fleet_http import AUTHORITY, Controller, controlling, device, now

pytestmark = pytest.mark.asyncio
GUIDE = (Path(__file__).parents[2] / "fleet" / "serving" / "README.md").read_text()
AROUND = """
user root;
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    {told}
}}
"""
CAMERA = device("camera-7")


def told(language: str) -> str:
    """The guide's one block in it."""
    (block,) = re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    return block


def configuration(folder: Path, port: int) -> str:
    """The guide's, for this folder and port."""
    own = {"443": f"127.0.0.1:{port}", "/etc/nginx/fleet.": f"{folder}/fleet.", "/var/lib/edge-fleet": str(folder)}
    block = told("nginx")
    for theirs, ours in own.items():
        assert theirs in block
        block = block.replace(theirs, ours)
    return AROUND.format(folder=folder, told=block)


@asynccontextmanager
async def nginx(folder: Path) -> AsyncIterator[str]:
    """Its URL, once it answers."""
    program, port = shutil.which("nginx", path="/usr/sbin:/usr/bin"), free_port()
    assert program, "nginx is one of the packages that make test installs"
    certificate, key = AUTHORITY.issue_server(["localhost"], now())
    (folder / "fleet.pem").write_bytes(certificate)
    (folder / "fleet.key").write_bytes(key)
    (folder / "authority").mkdir()
    (folder / "authority" / "ca.pem").write_bytes(AUTHORITY.pem)
    (folder / "public").mkdir()
    (folder / "public" / "index.html").write_text("what is published")
    (folder / "nginx.conf").write_text(configuration(folder, port))
    process = await asyncio.create_subprocess_exec(program, "-p", str(folder), "-c", str(folder / "nginx.conf"))
    try:
        await answering(process, port)
        yield f"https://localhost:{port}/"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def answering(process: asyncio.subprocess.Process, port: int) -> None:
    """Until it listens."""
    while process.returncode is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.02)
            continue
        writer.close()
        return
    raise AssertionError("nginx ended; what it did not like stands above")


@asynccontextmanager
async def behind(folder: Path) -> AsyncIterator[tuple[Controller, list[str]]]:
    """A controller as the guide configures it, and curl for nginx."""
    proxy = tomllib.loads(told("toml"))["serve"]["proxy"]
    settings = ServingSettings(proxy=ProxySettings(**proxy))
    address = Address(path=str(folder / "http.sock"))
    async with controlling(folder, settings=settings, addresses=(address,)) as controller, nginx(folder) as url:
        yield controller, ["curl", "-sS", "--cacert", str(controller.ca_file), url]


async def test_devices_are_known_behind_it(tmp_path: Path) -> None:
    async with behind(tmp_path) as (controller, curl):
        _, said = await controller.run(*curl, "--cert", str(CAMERA.write(tmp_path)))
        assert '"device": "camera-7", "address": "127.0.0.1", "proxied": true' in said, said


async def test_what_callers_claim_to_be_does_not_pass_it(tmp_path: Path) -> None:
    forged = ("-H", f"Client-Cert: {quote(CAMERA.certificate.pem)}", "-H", "X-Forwarded-For: 6.6.6.6")
    async with behind(tmp_path) as (controller, curl):
        _, said = await controller.run(*curl, *forged)
        assert '"device": "", "address": "127.0.0.1", "proxied": true' in said, said


async def test_a_revoked_device_is_told_by_the_controller(tmp_path: Path) -> None:
    async with behind(tmp_path) as (controller, curl):
        controller.revoked.add(CAMERA.certificate.serial)
        _, said = await controller.run(*curl, "--cert", str(CAMERA.write(tmp_path)), "-w", "%{http_code}")
        assert "revoked" in said, said
        assert said.endswith("401")


async def test_a_stranger_of_another_authority_stays_outside(tmp_path: Path) -> None:
    async with behind(tmp_path) as (controller, curl):
        await controller.run(
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-subj", "/CN=camera-7", "-keyout", "stranger.key", "-out", "stranger.pem",
        )  # fmt: skip
        code, said = await controller.run(
            *curl, "--cert", "stranger.pem", "--key", "stranger.key", "-w", "%{http_code}"
        )
        assert (code, said[-3:]) == (0, "400"), said
        assert "camera-7" not in said


async def test_what_is_published_needs_no_controller(tmp_path: Path) -> None:
    async with behind(tmp_path) as (controller, curl):
        await controller.server.stop(0)
        url = curl.pop()
        _, said = await controller.run(*curl, f"{url}repository/index.html")
        assert said == "what is published"
