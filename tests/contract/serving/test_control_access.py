"""Users that may send commands, and what no user may: size, time, number. A second user is a real one."""

import asyncio
import json
import logging
import os
import shutil
import stat
import subprocess
import sys

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.frontends.control.settings import ControlServerSettings
from tests.contract.serving.test_control_routes import COMMANDS, LOAD, problem
from tests.simulators.control_gateway import ACTIVATION, serving
from tests.simulators.rest_gateway import hangs_up

pytestmark = pytest.mark.asyncio
NOBODY = 65534
READS = [("GET", f"/v1/{name}", None) for name in ("status", "inventory", "vitals", "statistics", "settings")]
STATUS = {"/v1/settings/trial": 202}
"""Status of an answer, where it is not 200."""
EVERY = [*READS, *COMMANDS, ("GET", "/schema/openapi.json", None), ("GET", "/nothing", None)]


async def curl(gateway, method, path, body, user=None):
    """Return status, content type and document of a real curl's request, as another user where one is named."""
    program = shutil.which("curl")
    assert program, "curl is one of the packages that make test installs"
    command = [program, "-sS", "--unix-socket", str(gateway.path), "-X", method, f"http://gateway{path}"]
    command += ["-w", "\n%{http_code} %{content_type}"]
    command += [] if body is None else ["-d", json.dumps(body)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, user=user, extra_groups=[] if user else None
    )
    out, _ = await process.communicate()
    text, _, told = out.decode().rpartition("\n")
    status, _, kind = told.partition(" ")
    return int(status), kind, json.loads(text)


@pytest.mark.parametrize(("method", "path", "body"), EVERY)
async def test_another_user_is_told_nothing_and_commands_nothing(method, path, body):
    async with serving(unix_socket_mode=0o666) as gateway:
        status, kind, told = await curl(gateway, method, path, body, user=NOBODY)
        assert (status, kind, told["fault"]) == (403, "application/problem+json", "DENIED")
        assert "add it to [control] users" in told["detail"]
        assert gateway.engine.told == []


@pytest.mark.parametrize("users", [("nobody",), (str(NOBODY),), ("no-such-user", "nobody")])
async def test_a_user_that_is_named_may_command(users):
    async with serving(unix_socket_mode=0o666, users=users) as gateway:
        for method, path, body in [*READS, *COMMANDS]:
            assert (await curl(gateway, method, path, body, user=NOBODY))[0] == STATUS.get(path, 200)
        assert len(gateway.engine.told) == len(COMMANDS)


async def test_root_and_the_own_user_may_command_by_curl():
    async with serving() as gateway:
        for method, path, body in [*READS, *COMMANDS]:
            assert (await curl(gateway, method, path, body))[0] == STATUS.get(path, 200)


async def test_the_sockets_permissions_are_those_configured_and_it_goes_with_the_frontend():
    async with serving(unix_socket_mode=0o600) as gateway:
        assert stat.S_IMODE(gateway.path.stat().st_mode) == 0o600
        path = gateway.path
    assert not path.exists()


async def test_permissions_keep_out_whom_they_do_not_name():
    async with serving() as gateway:
        program = shutil.which("curl")
        command = [program, "-sS", "--unix-socket", str(gateway.path), "http://gateway/v1/status"]
        process = await asyncio.create_subprocess_exec(
            *command, stderr=asyncio.subprocess.PIPE, user=NOBODY, group=NOBODY, extra_groups=[]
        )
        _, said = await process.communicate()
        assert process.returncode == 7
        assert b"connect" in said


async def test_each_command_is_logged_with_its_peer_and_reading_is_not(caplog):
    caplog.set_level(logging.INFO)
    async with serving(unix_socket_mode=0o666) as gateway:
        await gateway.client.get("/v1/status")
        await gateway.client.post("/v1/commit", json={})
        await gateway.client.post(LOAD, content=b"{")
        await curl(gateway, "GET", "/v1/status", None, user=NOBODY)
    told = [record for record in caplog.records if record.name == "gateway.serving.frontends.control.authorisation"]
    me = f"(uid {os.getuid()}, pid {os.getpid()})"
    assert [(record.levelname, record.getMessage().rpartition(": ")[2]) for record in told] == [
        ("INFO", "200"),
        ("INFO", "400"),
        ("WARNING", "403"),
    ]
    assert "command POST /v1/commit by" in told[0].getMessage()
    assert me in told[0].getMessage()
    assert f"uid {NOBODY}" in told[2].getMessage()


async def test_a_body_beyond_the_bound():
    async with serving(max_body_bytes=1000) as gateway:
        refused = await gateway.client.post(LOAD, json={**ACTIVATION, "slot": "x" * 1000})
        assert refused.status_code == 413
        assert problem(refused)["fault"] == "TOO_LARGE"

        async def chunks():
            for _ in range(20):
                yield b" " * 100

        assert (await gateway.client.post(LOAD, content=chunks())).status_code == 413
        assert gateway.engine.told == []
        assert (await gateway.client.post(LOAD, json=ACTIVATION)).status_code == 200


@pytest.mark.usefixtures("patient")
async def test_too_many_connections_and_too_many_requests():
    async with serving(max_connections=2, max_requests=1) as gateway:
        gateway.engine.gate.clear()
        first = asyncio.create_task(gateway.client.post("/v1/commit", json={}))
        while not gateway.engine.told:
            await asyncio.sleep(0)
        refused = await gateway.client.get("/v1/status")
        assert (refused.status_code, problem(refused)["fault"]) == (503, "OVERLOADED")
        while not any(each.idle for each in gateway.frontend._connections._keys):
            await asyncio.sleep(0)
        _, half = await gateway.connect()  # takes the place of the one that is kept alive
        half.write(b"GET ")
        reader, writer = await gateway.connect()
        assert (await reader.readuntil(b"\r\n")).split()[1] == b"503"
        for each in (writer, half):
            await hangs_up(each)
        gateway.engine.gate.set()
        assert (await first).status_code == 200


async def test_a_stop_cuts_a_command_off_and_says_so():
    async with serving() as gateway:
        gateway.engine.gate.clear()
        command = asyncio.create_task(gateway.client.post("/v1/commit", json={}))
        while not gateway.engine.told:
            await asyncio.sleep(0)
        await gateway.frontend.stop(0.05)
        refused = await command
        assert (refused.status_code, problem(refused)["fault"]) == (503, "UNAVAILABLE")


@pytest.mark.parametrize(
    "settings",
    [
        {"listen": "127.0.0.1:9"},
        {"listen": "unix:relative"},
        {"unix_socket_mode": 0o1777},
        {"unix_socket_mode": 0},
        {"users": ("",)},
    ],
)
async def test_settings_that_cannot_be_meant(settings):
    with pytest.raises(ConfigurationError, match="control"):
        ControlServerSettings(**settings)


async def test_nothing_is_loaded_before_somebody_connects(tmp_path):
    code = f"""
import asyncio, socket, sys
from gateway.common.domain.access import Address
from gateway.serving.frontends.control.server import ControlFrontend
from gateway.serving.frontends.control.settings import ControlServerSettings

async def main():
    frontend = ControlFrontend(None, None, None, None, None, ControlServerSettings())
    await frontend.start([Address(path={str(tmp_path / "s")!r})])
    serving = asyncio.create_task(frontend.serve())
    await asyncio.sleep(0)
    before = {{"litestar", "uvicorn", "msgspec"}} & set(sys.modules)
    reader, writer = await asyncio.open_unix_connection({str(tmp_path / "s")!r})
    writer.write(b"GET /nothing HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
    answer = await reader.read()
    writer.close()
    await serving
    await frontend.stop(1)
    assert not before, before
    assert answer.startswith(b"HTTP/1.1 404"), answer
    assert "litestar" in sys.modules

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=30, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
