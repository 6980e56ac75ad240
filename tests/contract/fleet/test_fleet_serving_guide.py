"""The controller after nginx and Envoy, configured like the guide of `serving`; only folders and ports differ."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
import tomllib

from fleet.controller.serving.settings import ProxySettings, ServingSettings
from gateway.common.domain.access import Address
from tests.simulators.controller import free_port
from tests.simulators.fleet_http import AUTHORITY, Controller, controlling, device, now

pytestmark = pytest.mark.asyncio
GUIDE = (Path(__file__).parents[3] / "fleet/controller/serving" / "README.md").read_text()
PATHS = f"{Path(sys.prefix) / 'bin'}:/usr/sbin:/usr/bin"
AROUND_NGINX = """
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


@dataclass(frozen=True)
class Proxy:
    """Proxy of the guide: text `around` its block, what stands there for its port, and how it is started."""

    name: str
    language: str
    port: tuple[str, str]
    command: tuple[str, ...]
    around: str = "{told}"
    claim: str = ""

    def told(self, language: str) -> str:
        """Return the guide's block in the section of its name."""
        section = GUIDE.partition(f"\n### {self.name}\n")[2]
        block = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
        assert block, f"the guide has no {language} for {self.name}"
        return block[1]

    def configuration(self, folder: Path, port: int) -> str:
        """Return the guide's configuration, for this folder and port."""
        block, own = self.told(self.language), folder / "own"
        theirs = (self.port[0], f"/etc/{self.name.lower()}/", "/var/lib/edge-fleet/")
        for found, ours in zip(theirs, (self.port[1].format(port), f"{own}/", f"{folder}/"), strict=True):
            assert found in block
            block = block.replace(found, ours)
        return self.around.format(folder=folder, told=block)


NGINX = Proxy(
    "nginx",
    "nginx",
    ("listen 443 ", "listen 127.0.0.1:{} "),
    ("nginx", "-p", "{folder}", "-c", "{file}"),
    AROUND_NGINX,
    f"Client-Cert: {quote(CAMERA.certificate.pem)}",
)
ENVOY = Proxy(
    "Envoy",
    "yaml",
    ("address: 0.0.0.0, port_value: 443", "address: 127.0.0.1, port_value: {}"),
    ("envoy", "-c", "{file}", "--log-level", "warning", "--concurrency", "1", "--disable-hot-restart"),
    claim=f'X-Forwarded-Client-Cert: Cert="{quote(CAMERA.certificate.pem)}"',
)


@pytest.fixture(params=[NGINX, ENVOY], ids=lambda proxy: proxy.name)
def proxy(request: pytest.FixtureRequest) -> Proxy:
    return request.param


@asynccontextmanager
async def running(proxy: Proxy, folder: Path) -> AsyncIterator[str]:
    """Start the proxy; yield its URL, once it listens."""
    port, file = free_port(), folder / f"{proxy.name}.{proxy.language}"
    prepare(folder)
    file.write_text(proxy.configuration(folder, port))
    program, *words = (word.format(folder=folder, file=file) for word in proxy.command)
    found = shutil.which(program, path=PATHS)
    assert found, f"{program} is one of the programs that make test installs"
    process = await asyncio.create_subprocess_exec(found, *words)
    try:
        await listening(process, port)
        yield f"https://localhost:{port}/"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def prepare(folder: Path) -> None:
    """Write the files that the guide's lines name."""
    for name in ("own", "authority", "public"):
        (folder / name).mkdir()
    certificate, key = AUTHORITY.issue_server(["localhost"], now())
    (folder / "own" / "fleet.pem").write_bytes(certificate)
    (folder / "own" / "fleet.key").write_bytes(key)
    (folder / "authority" / "ca.pem").write_bytes(AUTHORITY.pem)
    (folder / "public" / "index.html").write_text("what is published")


async def listening(process: asyncio.subprocess.Process, port: int) -> None:
    """Wait until it listens."""
    while process.returncode is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.02)
            continue
        writer.close()
        return
    raise AssertionError("it ended; what it did not like stands above")


@asynccontextmanager
async def behind(proxy: Proxy, folder: Path) -> AsyncIterator[tuple[Controller, list[str]]]:
    """Yield a controller as the guide configures it, and curl for the proxy."""
    settings = ServingSettings(proxy=ProxySettings(**tomllib.loads(proxy.told("toml"))["serve"]["proxy"]))
    address = Address(path=str(folder / "http.sock"))
    async with (
        controlling(folder, settings=settings, addresses=(address,)) as controller,
        running(proxy, folder) as url,
    ):
        yield controller, ["curl", "-sS", "--cacert", str(controller.ca_file), url]


def seen(said: str) -> tuple[str, bool]:
    """Return the device, and whether it came through the proxy and from this machine.

    Envoy gives one of this machine's addresses.
    """
    answer = json.loads(said)
    own = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    return answer["device"], answer["proxied"] and answer["address"] in own


async def test_devices_are_known_behind_it(proxy: Proxy, tmp_path: Path) -> None:
    async with behind(proxy, tmp_path) as (controller, curl):
        _, said = await controller.run(*curl, "--cert", str(CAMERA.write(tmp_path)))
        assert seen(said) == ("camera-7", True)


async def test_what_callers_claim_to_be_does_not_pass_it(proxy: Proxy, tmp_path: Path) -> None:
    async with behind(proxy, tmp_path) as (controller, curl):
        _, said = await controller.run(*curl, "-H", proxy.claim, "-H", "X-Forwarded-For: 6.6.6.6")
        assert seen(said) == ("", True)


async def test_a_revoked_device_is_told_by_the_controller(proxy: Proxy, tmp_path: Path) -> None:
    async with behind(proxy, tmp_path) as (controller, curl):
        controller.revoked.add(CAMERA.certificate.serial)
        _, said = await controller.run(*curl, "--cert", str(CAMERA.write(tmp_path)), "-w", "%{http_code}")
        assert "revoked" in said, said
        assert said.endswith("401")


async def test_a_stranger_of_another_authority_stays_outside(proxy: Proxy, tmp_path: Path) -> None:
    async with behind(proxy, tmp_path) as (controller, curl):
        await controller.run(
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-subj", "/CN=camera-7", "-keyout", "stranger.key", "-out", "stranger.pem",
        )  # fmt: skip
        code, said = await controller.run(
            *curl, "--cert", "stranger.pem", "--key", "stranger.key", "-w", "%{http_code}"
        )
        assert code != 0 or said.endswith("400"), said
        assert "camera-7" not in said


async def test_nginx_serves_what_is_published_without_a_controller(tmp_path: Path) -> None:
    async with behind(NGINX, tmp_path) as (controller, curl):
        await controller.server.stop(0)
        url = curl.pop()
        _, said = await controller.run(*curl, f"{url}repository/index.html")
        assert said == "what is published"
