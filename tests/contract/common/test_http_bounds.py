"""Bounds of the one HTTP server (`common.wire`) on every port that it serves: time, size and form of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fleet.controller.serving.settings import ServingSettings
from gateway.serving.frontends.http import direct
from gateway.serving.frontends.rest_v2.settings import RestSettings
from tests.simulators import control_gateway, rest_gateway
from tests.simulators.constants import settings_with
from tests.simulators.fleet_http import controlling
from tests.simulators.rest_gateway import hangs_up

pytestmark = pytest.mark.asyncio
INFER = "/v2/models/identity_fp32/infer"
BODY = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}'
TOO_LARGE = 65 * 1024 * 1024
PROBLEM = b"content-type: application/problem+json"


@dataclass(frozen=True)
class Port:
    """A port: how it is served, a request that it answers, where it reads bodies, and the form of its refusals.

    `late`: words of the refusal of a body that does not come.
    """

    serving: Callable[..., AbstractAsyncContextManager[Any]]
    request: bytes
    path: str
    refusal: bytes = PROBLEM
    late: bytes = b"the body took longer than 0.1 s, or paused for 10 s"

    def post(self, length: int, body: bytes) -> bytes:
        return f"POST {self.path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode() + body


@pytest.fixture(params=["rest", "rest, direct", "control", "fleet"])
def port(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Port:
    if request.param == "control":
        return Port(control_gateway.serving, b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n", "/v1/commit")
    if request.param == "fleet":
        get = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
        return Port(
            lambda **bounds: controlling(tmp_path, settings=settings_with(ServingSettings(), **bounds)),
            get,
            "/",
            late=b"expired",
        )
    if request.param != "rest, direct":
        monkeypatch.setattr(direct.RequestHead, "of", lambda text, _: direct.RequestHead(text))
    post = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n".encode() + BODY
    json = b"content-type: application/json"
    return Port(
        lambda **bounds: rest_gateway.serving(settings=settings_with(RestSettings(), **bounds)), post, INFER, json
    )


async def answered(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the status, and the whole answer in lower case."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(head.split()[1]), head + (await reader.readexactly(length)).lower()


async def ended(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait for the end of the connection, by FIN or RST, without more bytes."""
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    await hangs_up(writer)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHo"])
async def test_a_head_that_does_not_come_ends_the_connection(port: Port, sent: bytes) -> None:
    async with port.serving(header_timeout_s=0.1) as server:
        reader, writer = await server.connect()
        writer.write(sent)
        await ended(reader, writer)


async def test_the_next_head_of_a_kept_connection_has_the_same_time(port: Port) -> None:
    async with port.serving(header_timeout_s=0.2) as server:
        reader, writer = await server.connect()
        writer.write(port.request)
        assert (await answered(reader))[0] == 200
        writer.write(b"GET / HT")
        await ended(reader, writer)


async def test_an_idle_connection_is_closed(port: Port) -> None:
    async with port.serving(keep_alive_s=1) as server:
        reader, writer = await server.connect()
        writer.write(port.request)
        assert (await answered(reader))[0] == 200
        await ended(reader, writer)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 4096, b"\x16\x03\x01 hello\r\n\r\n"])
async def test_a_large_head_and_other_protocols_are_refused_in_the_ports_form(port: Port, sent: bytes) -> None:
    async with port.serving(max_header_bytes=2048) as server:
        reader, writer = await server.connect()
        writer.write(sent)
        status, answer = await answered(reader)
        assert status == 400
        assert port.refusal in answer
        assert b"this is no http/1.1 request, or its headers exceed 2048 bytes" in answer
        await ended(reader, writer)


async def test_a_body_that_does_not_come_is_refused(port: Port) -> None:
    async with port.serving(body_timeout_s=0.1) as server:
        reader, writer = await server.connect()
        writer.write(port.post(9, b"{"))
        status, answer = await answered(reader)
        assert status == 408
        assert port.refusal in answer
        assert port.late in answer
        await ended(reader, writer)


async def test_a_refused_body_is_discarded_but_not_forever(port: Port) -> None:
    async with port.serving(body_timeout_s=0.1) as server:
        reader, writer = await server.connect()
        writer.write(port.post(TOO_LARGE, b"x"))
        status, answer = await answered(reader)
        assert status == 413
        assert port.refusal in answer
        await ended(reader, writer)
