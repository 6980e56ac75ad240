"""Listeners, TLS, and the end of service, in whatever state connections are."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from gateway.common.domain.access import Address, Security, read_tokens
from gateway.common.domain.errors import UnreachableError
from gateway.serving.frontends.grpc_v2.http2.errors import Code
from gateway.serving.frontends.grpc_v2.service.inference import InferenceService
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.grpc_v2.transport.replies import CODES
from gateway.serving.frontends.grpc_v2.transport.server import GrpcServer
from tests.simulators.authority import Authority
from tests.simulators.grpc_client import (
    INFER,
    STREAM,
    WATCH,
    Client,
    Codes,
    connected,
    framed,
    infer_reply,
    infer_request,
)
from tests.simulators.grpc_gateway import LOOPBACK
from tests.simulators.inference import SimulatedInference

from .conftest import Serve, nothing_left, until

pytestmark = pytest.mark.asyncio
AUTHORITY = Authority()
TLS = Security(*AUTHORITY.issue("localhost"))
TOKENS = read_tokens("a first\nb second\n", "")
QUICK = {"last_calls_s": 0.05, "cancel_limit_s": 0.05}


def context(*protocols: str) -> ssl.SSLContext:
    made = ssl.create_default_context(cadata=AUTHORITY.pem.decode())
    if protocols:
        made.set_alpn_protocols(list(protocols))
    return made


# ---- TLS -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [4, 16_384, 16_385, 200_000, 3_000_000])
async def test_requests_and_replies_of_any_size_over_tls(served: Serve, size: int) -> None:
    windows = {Codes.INITIAL_WINDOW_SIZE: 2**31 - 1, Codes.MAX_FRAME_SIZE: 2**24 - 1}
    async with (
        served(security=TLS) as gateway,
        connected(gateway.addresses[0], windows, tls=context("h2", "http/1.1")) as client,
    ):
        client.h2.increment_flow_control_window(2**31 - 1 - 65_535)
        number, body, place = client.ask(end=False), infer_request(size), 0
        while place < len(body):
            await client.until(lambda: client.h2.local_flow_control_window(number) > 0)
            part = body[place : place + client.h2.local_flow_control_window(number)]
            place += len(part)
            client.send(number, part, end=place == len(body))
        (reply,) = await client.over(number)
        assert reply.status == 0
        assert infer_reply(bytes(reply.body)).raw_output_contents[0] == bytes(size)
        assert (await client.infer()).status == 0


@pytest.mark.parametrize("protocols", [(), ("http/1.1",)], ids=["no ALPN", "http/1.1"])
async def test_tls_without_h2(served: Serve, protocols: tuple[str, ...]) -> None:
    async with served(security=TLS) as gateway:
        try:
            async with connected(gateway.addresses[0], tls=context(*protocols), greet=False) as client:
                await client.gone()
                assert [code for _, code in client.goaway] == [Code.INADEQUATE_SECURITY]
        except ssl.SSLError as error:
            assert "NO_APPLICATION_PROTOCOL" in str(error)  # noqa: PT017
        assert gateway.frontend.load.busy == 0


async def test_no_tls_where_tls_is_spoken(served: Serve) -> None:
    async with served(security=TLS) as gateway:
        async with connected(gateway.addresses[0], greet=False) as client:
            client.ask(INFER, infer_request())
            await client.flush()
            await client.listen()
        async with connected(gateway.addresses[0], tls=context("h2")) as client:
            assert (await client.infer()).status == 0


async def test_hands_that_are_not_shaken(served: Serve) -> None:
    async with (
        served(security=TLS, handshake_timeout_s=0.05) as gateway,
        connected(gateway.addresses[0], greet=False) as client,
    ):
        await client.listen()


# ---- how many --------------------------------------------------------------------------------------------------------
async def test_more_connections_than_there_may_be(served: Serve) -> None:
    async with served(max_connections=2) as gateway:
        address = gateway.addresses[0]
        async with connected(address) as first, connected(address) as second:
            watches = [client.ask(WATCH, framed(b"")) for client in (first, second)]
            for client, watch in zip((first, second), watches, strict=True):
                await client.until(lambda client=client, watch=watch: client.replies[watch].body)
            async with connected(address, greet=False) as third:
                await third.gone()
                assert not third.goaway
            assert (await first.infer()).status == 0
        await until(lambda: not gateway.frontend._open)
        async with connected(address) as fourth:
            assert (await fourth.infer()).status == 0


# ---- the start -------------------------------------------------------------------------------------------------------
async def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    inference = SimulatedInference()
    taken = socket.create_server(("127.0.0.1", 0))
    first, path = Address("127.0.0.1", _free_port()), Address(path=f"{tmp_path}/grpc.sock")
    with taken:
        for _ in range(2):
            server = _server(inference)
            with pytest.raises(UnreachableError, match="it is in use"):
                await server.start([first, path, Address("127.0.0.1", taken.getsockname()[1])])
            assert not Path(path.path).exists()
    server = _server(inference)
    assert await server.start([first, path]) == [first, path]
    async with connected(path) as client:
        assert (await client.infer()).status == 0
    await server.stop(0)
    assert not Path(path.path).exists()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _server(inference: SimulatedInference) -> GrpcServer:
    settings = GrpcSettings()
    return GrpcServer(InferenceService(inference, inference, inference, settings), settings, Security())


# ---- tokens ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("body", [None, b"", "half", "whole"], ids=["head", "nothing", "half", "whole"])
@pytest.mark.parametrize("path", [INFER, STREAM, WATCH], ids=["infer", "stream", "watch"])
async def test_calls_in_progress_end_with_their_token(served: Serve, path: str, body: bytes | str | None) -> None:
    """Whatever is here of the request; the connection stays, and what another token asked goes on."""
    request = framed(b"") if path == WATCH else infer_request()
    sent = {"half": request[:3], "whole": request}.get(body, body) if isinstance(body, str) else body
    async with served(security=Security(tokens=TOKENS)) as gateway:
        gateway.inference.gate.clear()
        async with connected(gateway.addresses[0]) as client:
            number = client.ask(path, sent, end=False, authorization="Bearer first")
            other = client.ask(INFER, infer_request(), authorization="Bearer second")
            await client.settled()
            gateway.frontend.secure(Security(tokens=read_tokens("b second\nc third\n", "")))()
            assert (await client.over(number))[0].status == CODES["UNAUTHENTICATED"]
            gateway.inference.gate.set()
            assert (await client.over(other))[0].status == 0
            assert (await client.infer(authorization="Bearer first")).status == CODES["UNAUTHENTICATED"]
            assert (await client.infer(authorization="Bearer third")).status == 0
            await nothing_left(gateway)


async def test_an_answer_that_is_given_is_not_taken_back(served: Serve) -> None:
    """It waits for the peer's window when its token is revoked."""
    async with (
        served(security=Security(tokens=TOKENS)) as gateway,
        connected(gateway.addresses[0], {Codes.INITIAL_WINDOW_SIZE: 0}) as client,
    ):
        number = client.ask(INFER, infer_request(), authorization="Bearer first")
        await client.settled()
        await until(lambda: any(connection.has_unsent_bytes for connection in gateway.frontend._open))
        gateway.frontend.secure(Security(tokens=read_tokens("b second\n", "")))()
        client.h2.update_settings({Codes.INITIAL_WINDOW_SIZE: 65_535})
        assert (await client.over(number))[0].status == 0
        await nothing_left(gateway)


# ---- the stop --------------------------------------------------------------------------------------------------------
async def _unsettled(_: Client) -> int | None:
    return None


async def _idle(client: Client) -> int | None:
    await client.settled()
    return None


async def _half(client: Client) -> int | None:
    return client.ask(INFER, infer_request()[:7], end=False)


async def _running(client: Client) -> int | None:
    return client.ask(INFER, infer_request(outputs=[{"name": "y"}]))


async def _stream(client: Client) -> int | None:
    return client.ask(STREAM, infer_request() * 2, end=False)


async def _watch(client: Client) -> int | None:
    return client.ask(WATCH, framed(b""))


async def _untaken(client: Client) -> int | None:
    client.takes = False
    number = client.ask(WATCH.replace("Watch", "Check"), framed(b""))
    client.h2.update_settings({Codes.INITIAL_WINDOW_SIZE: 0})
    return number


STATES: list[Any] = [_unsettled, _idle, _half, _running, _stream, _watch, _untaken]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__[1:])
async def test_a_stop_ends_every_state(served: Serve, state: Any, tls: bool) -> None:
    """Whatever is under way when the grace is over is told so, and closed."""
    security = TLS if tls else Security()
    async with served(security=security, **QUICK) as gateway:
        gateway.inference.gate.clear()
        wrapped = context("h2") if tls else None
        async with connected(gateway.addresses[0], tls=wrapped, greet=False) as client:
            number = await state(client)
            if number is not None:
                await client.flush()
                await client.settled()
            reading = asyncio.ensure_future(client.gone() if state is not _unsettled else client.listen())
            await gateway.frontend.stop(0.01)
            await gateway.frontend.stop(0)
            await nothing_left(gateway)
            await until(lambda: not gateway.frontend._open)
            await reading
            if state in {_half, _running}:
                assert client.replies[number].status == CODES["UNAVAILABLE"]
            if state is not _unsettled:
                assert client.goaway
    with pytest.raises(OSError, match=r"refused|failed|Connect call"):
        await asyncio.open_connection(gateway.addresses[0].host, gateway.addresses[0].port)


async def test_a_stop_lets_what_runs_finish(served: Serve) -> None:
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        gateway.inference.gate.clear()
        numbers = [client.ask(INFER, infer_request()), client.ask(STREAM, infer_request(), end=False)]
        await client.settled()
        stopping = asyncio.ensure_future(gateway.frontend.stop(3600))
        await client.until(lambda: bool(client.goaway))
        gateway.inference.gate.set()
        running, stream = await client.over(*numbers)
        assert running.status == 0
        assert (bool(stream.body), stream.status) == (True, CODES["UNAVAILABLE"])
        await client.gone()
        client.writer.close()
        await stopping


async def test_hands_shaken_while_it_stops(served: Serve) -> None:
    async with served(security=TLS) as gateway:
        address = gateway.addresses[0]
        async with connected(address, tls=context("h2")) as client:
            gateway.inference.gate.clear()
            number = client.ask(INFER, infer_request())
            await client.settled()
            plain = socket.create_connection((address.host, address.port))
            await asyncio.sleep(0.01)
            stopping = asyncio.ensure_future(gateway.frontend.stop(3600))
            await asyncio.sleep(0.01)
            reader, writer = await asyncio.open_connection(sock=plain, ssl=context("h2"), server_hostname="localhost")
            assert b"the gateway is stopping" in await reader.read(-1)
            writer.close()
            gateway.inference.gate.set()
            assert (await client.over(number))[0].status == 0
            await client.gone()
            client.writer.close()
            await stopping


async def test_a_stop_of_a_gateway_that_nobody_knows() -> None:
    server = _server(SimulatedInference())
    await server.start([LOOPBACK])
    await server.stop(3600)
    await server.stop(3600)
