"""REST between listening and answering: who comes early waits in the kernel and is answered."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

import pytest

from gateway.common.domain.access import Address, Security
from gateway.serving.frontends.rest_v2.server import RestFrontend
from gateway.serving.frontends.rest_v2.settings import RestSettings
from tests.simulators.inference import SimulatedInference
from tests.simulators.rest_gateway import LOOPBACK, metrics

REQUEST = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def frontend(settings: RestSettings | None = None) -> RestFrontend:
    inference = SimulatedInference()
    return RestFrontend(inference, inference, inference, settings or RestSettings(), Security(), metrics)


@pytest.mark.asyncio
async def test_who_comes_before_the_answer_waits_for_it() -> None:
    rest = frontend()
    (address,) = await rest.start([LOOPBACK])
    early = [await asyncio.open_connection(address.host, address.port) for _ in range(5)]
    for _, writer in early:
        writer.write(REQUEST)
    await rest.answer()
    try:
        for reader, writer in early:
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()
    finally:
        await rest.stop(1)


@pytest.mark.asyncio
async def test_a_stop_before_the_answer_leaves_nothing(tmp_path: Path) -> None:
    rest = frontend()
    tcp, _ = await rest.start([LOOPBACK, Address(path=str(tmp_path / "s"))])
    await rest.stop(1)
    assert not (tmp_path / "s").exists()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(tcp.host, tcp.port)


@pytest.mark.asyncio
async def test_the_backlog_is_the_same_before_and_while_it_answers() -> None:
    """asyncio calls listen(2) a second time, with 100 where it is not told."""
    rest = frontend()
    await rest.start([LOOPBACK])
    (listener,) = rest._listeners._sockets
    lengths = [_backlog(listener)]
    await rest.answer()
    lengths.append(_backlog(listener))
    await rest.stop(1)
    assert lengths == [RestSettings.backlog] * 2


def _backlog(listener: socket.socket) -> int:
    """Return tcpi_sacked of a listener's tcp_info, the sixth 32-bit word after eight bytes: its longest queue."""
    return int(struct.unpack("8B6I", listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32))[-1])
