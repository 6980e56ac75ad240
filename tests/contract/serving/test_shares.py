"""One caller, one share: what a caller holds over gRPC and HTTP keeps no other caller out."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.common.domain.access import Address, Security, read_tokens
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.rest_v2.settings import RestSettings
from gateway.serving.frontends.settings import ShareSettings
from tests.simulators import grpc_gateway, rest_gateway
from tests.simulators.grpc_gateway import Gateway, serving
from tests.simulators.http2_peer import WELCOME, headers
from tests.simulators.inference import SimulatedInference
from tests.simulators.rest_gateway import infer_body

pytestmark = pytest.mark.asyncio
HALF = ShareSettings(caller_percent=50, local_percent=0)
TOKENS = Security(tokens=read_tokens("ann a\nben b\n", ""))
ROOT = Path(__file__).resolve().parents[3]
INFER = "/v2/models/identity_fp32/infer"


def request(model: str = "identity_fp32") -> service_pb2.ModelInferRequest:
    given = {"name": "x", "datatype": "FP32", "shape": [1, 1]}
    return service_pb2.ModelInferRequest(model_name=model, inputs=[given], raw_input_contents=[bytes(4)])


@asynccontextmanager
async def stub(gateway: Gateway, address: int = 0) -> AsyncIterator[Any]:
    own = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(str(gateway.addresses[address]), options=own) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def bearing(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def refusals(pools: Any) -> set[tuple[str, ...]]:
    return {tuple(sample.labels.values()) for sample in pools.refusals.samples()}


async def code(call: Any) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


# ---- gRPC ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("unary", [True, False])
async def test_one_token_does_not_lock_out_another(unary: bool) -> None:
    settings = GrpcSettings(max_concurrent_calls=4, max_open_streams=4)
    async with serving(settings=settings, security=TOKENS, shares=HALF) as gateway, stub(gateway) as client:
        gateway.inference.gate.clear()
        if unary:
            held = [client.ModelInfer(request(), metadata=bearing("a")) for _ in range(2)]
            await gateway.inference.until(lambda: len(gateway.inference.requests) == 2)
        else:
            held = [client.ModelStreamInfer(metadata=bearing("a")) for _ in range(2)]
            for stream in held:
                await stream.write(request())
            await gateway.inference.until(lambda: len(gateway.inference.requests) == 2)
        assert await code(client.ModelInfer(request(), metadata=bearing("a"))) is grpc.StatusCode.UNAVAILABLE
        gateway.inference.gate.set()
        assert await code(client.ModelInfer(request(), metadata=bearing("b"))) is grpc.StatusCode.OK
        assert ("grpc calls", "token", "caller") in refusals(gateway.pools)
        for each in held:
            each.cancel()


async def test_streams_that_bring_nothing_are_no_calls() -> None:
    settings = GrpcSettings(max_concurrent_calls=2, max_open_streams=8, stream_idle_s=3600)
    async with serving(settings=settings, shares=HALF) as gateway, stub(gateway) as client:
        held = [client.ModelStreamInfer() for _ in range(4)]
        for stream in held:
            await stream.write(request())
            assert (await stream.read()).infer_response.model_name == "identity_fp32"
        assert await code(client.ModelInfer(request())) is grpc.StatusCode.OK
        fifth = client.ModelStreamInfer()
        assert await fifth.code() is grpc.StatusCode.UNAVAILABLE
        for each in held:
            each.cancel()


async def test_an_idle_stream_ends_with_a_reason() -> None:
    async with serving(settings=GrpcSettings(stream_idle_s=0.05)) as gateway, stub(gateway) as client:
        stream = client.ModelStreamInfer()
        await stream.write(request())
        await stream.read()
        assert await stream.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "stream_idle_s" in await stream.details()


@pytest.mark.usefixtures("patient")
async def test_connections_of_one_address_keep_no_other_out(tmp_path: Path) -> None:
    """Over the limit they are closed before SETTINGS; from another address, and over UNIX, calls are served."""
    addresses = (grpc_gateway.LOOPBACK, Address(path=str(tmp_path / "grpc.sock")))
    settings = GrpcSettings(max_connections=4)
    async with AsyncExitStack() as stack, serving(settings=settings, addresses=addresses, shares=HALF) as gateway:
        port = gateway.addresses[0].port
        for _ in range(2):
            _, mute = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.66", 0))
            stack.callback(mute.close)
        reader, third = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.66", 0))
        stack.callback(third.close)
        assert await reader.read() == b""
        assert ("grpc connections", "loopback", "caller") in refusals(gateway.pools)
        for address in (0, 1):
            async with stub(gateway, address) as client:
                assert await code(client.ModelInfer(request())) is grpc.StatusCode.OK


@pytest.mark.usefixtures("patient")
async def test_a_client_that_is_turned_away_backs_off() -> None:
    """Its calls fail at once, and do not each try to connect: SETTINGS would make the attempt a success to it."""
    async with serving(settings=GrpcSettings(max_connections=1)) as gateway:
        reader, busy = await asyncio.open_connection("127.0.0.1", gateway.addresses[0].port)
        busy.write(WELCOME + headers(1))
        await reader.readexactly(9)
        async with stub(gateway) as client:
            for _ in range(100):
                assert await code(client.ModelInfer(request())) is grpc.StatusCode.UNAVAILABLE
        (refused,) = gateway.pools.refusals.samples()
        assert 1 <= refused.value <= 10
        busy.close()


# ---- HTTP ------------------------------------------------------------------------------------------------------------
async def test_one_token_does_not_lock_out_another_over_http() -> None:
    inference = SimulatedInference()
    inference.gate.clear()
    settings = RestSettings(max_requests=2)
    async with rest_gateway.serving(inference=inference, settings=settings, security=TOKENS, shares=HALF) as gateway:

        def ask(token: str) -> Any:
            return gateway.client.post(INFER, json=infer_body(1), headers=dict(bearing(token)))

        held = asyncio.create_task(ask("a"))
        await inference.until(lambda: len(inference.requests) == 1)
        refused = await ask("a")
        assert (refused.status_code, "token:ann" in refused.text) == (503, True)
        inference.gate.set()
        assert (await ask("b")).status_code == 200
        assert (await held).status_code == 200
        assert ("http requests", "token", "caller") in refusals(gateway.pools)


@pytest.mark.usefixtures("patient")
async def test_half_sent_requests_of_one_address_keep_no_other_out_over_http(tmp_path: Path) -> None:
    path = str(tmp_path / "http.sock")
    settings = RestSettings(max_connections=4, max_requests=4)
    addresses = (rest_gateway.LOOPBACK, Address(path=path))
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            rest_gateway.serving(settings=settings, addresses=addresses, shares=HALF)
        )
        port = gateway.addresses[0].port
        answered = []
        for _ in range(3):
            reader, half = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.66", 0))
            stack.callback(half.close)
            half.write(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n".encode())
            answered.append(asyncio.ensure_future(reader.readline()))
        assert (await asyncio.wait_for(answered[2], 30)).split()[1] == b"503"
        assert not any(each.done() for each in answered[:2])
        assert (await gateway.client.post(INFER, json=infer_body(1))).status_code == 200
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=path)) as local:
            assert (await local.post(f"http://x{INFER}", json=infer_body(1))).status_code == 200


async def test_half_sent_requests_of_a_network_give_way_to_another_of_its_addresses_over_http(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.serving.frontends.http.connection.HALF_OPEN_S", 0.0)
    shares = ShareSettings(caller_percent=25, local_percent=0)
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            rest_gateway.serving(settings=RestSettings(max_requests=8), shares=shares)
        )
        head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n".encode()
        halves = []
        for number in (66, 66, 67, 67):
            reader, half = await asyncio.open_connection(
                "127.0.0.1", gateway.addresses[0].port, local_addr=(f"127.0.0.{number}", 0)
            )
            stack.callback(half.close)
            half.write(head)
            halves.append(reader)
        while gateway.frontend.requests.used < 4:
            await asyncio.sleep(0)
        assert (await gateway.client.post(INFER, json=infer_body(1))).status_code == 200
        with contextlib.suppress(ConnectionResetError):
            assert await halves[0].read() == b""
        assert gateway.frontend.requests.used == 3


# ---- callers on a network --------------------------------------------------------------------------------------------
async def test_callers_on_a_network_leave_the_reserve_to_this_device(tmp_path: Path) -> None:
    """The test runs in a network namespace of its own, whose loopback has addresses that are none."""
    inside = (
        f"ip link set lo up && ip address add 192.0.2.1/24 dev lo && exec {sys.executable} -m {__name__} {tmp_path}"
    )
    process = await asyncio.create_subprocess_exec(
        "unshare", "-rn", "sh", "-c", inside, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    said, logged = await process.communicate()
    assert (process.returncode, said) == (0, b"served\n"), logged.decode()


async def _inside(folder: str) -> None:
    shares = ShareSettings(caller_percent=25, local_percent=25)
    addresses = (Address("0.0.0.0", 0), Address(path=f"{folder}/grpc.sock"))
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            serving(settings=GrpcSettings(max_connections=8), addresses=addresses, shares=shares)
        )
        port = gateway.addresses[0].port
        for number in range(2, 12):  # two connections each are too many together, so the last find no place
            for _ in range(2):
                _, mute = await asyncio.open_connection("192.0.2.1", port, local_addr=(f"192.0.2.{number}", 0))
                stack.callback(mute.close)
        for address in (Address("127.0.0.1", port), gateway.addresses[1]):
            gateway.addresses[0] = address
            async with stub(gateway) as client:
                assert await code(client.ModelInfer(request())) is grpc.StatusCode.OK, address
        assert ("grpc connections", "address", "network") in refusals(gateway.pools)
    print("served")


if __name__ == "__main__":
    asyncio.run(_inside(sys.argv[1]))
