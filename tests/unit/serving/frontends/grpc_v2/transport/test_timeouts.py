"""Delays that a peer may cause: small limits on a real connection, and no other connection is affected."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from gateway.serving.frontends import settings as limits
from gateway.serving.frontends.grpc_v2.transport.replies import CODES
from tests.simulators.grpc_client import (
    INFER,
    STREAM,
    WATCH,
    Client,
    connected,
    framed,
    infer_request,
)

from .conftest import Serve, nothing_left, until

pytestmark = pytest.mark.asyncio
SHORT_S = 0.05
LONG_S = 3600.0
LIMITS = {"handshake_timeout_s": LONG_S, "receive_timeout_s": LONG_S, "write_timeout_s": LONG_S}


def short(name: str, **more: Any) -> dict[str, Any]:
    """Return limits, one of which runs out within the test."""
    return {**LIMITS, name: SHORT_S, **more}


@pytest.mark.parametrize(
    "said", [0, 10, 24, 30], ids=["nothing", "half the preface", "the preface", "half of settings"]
)
async def test_who_does_not_shake_hands_is_cut_off(served: Serve, said: int) -> None:
    async with (
        served(**short("handshake_timeout_s")) as gateway,
        connected(gateway.addresses[0]) as settled,
        connected(gateway.addresses[0], greet=False) as client,
    ):
        client.writer.write(client.h2.data_to_send()[:said])
        await client.listen()
        assert (await settled.infer()).status == 0


async def _headers(client: Client) -> int:
    return client.ask(INFER, end=False)


async def _half(client: Client) -> int:
    return client.ask(INFER, infer_request(1000)[:700], end=False)


async def _whole(client: Client) -> int:
    return client.ask(INFER, infer_request(1000), end=False)


async def _half_in_stream(client: Client) -> int:
    return client.ask(STREAM, infer_request(4) + infer_request(1000)[:7], end=False)


async def _no_question(client: Client) -> int:
    return client.ask(WATCH, end=False)


@pytest.mark.parametrize("begin", [_headers, _half])
async def test_a_request_that_pauses(served: Serve, begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_PAUSE_S", 0.05)
    async with served() as gateway, connected(gateway.addresses[0]) as client:
        (reply,) = await client.over(await begin(client))
        assert reply.status == CODES["DEADLINE_EXCEEDED"]
        assert "paused" in reply.words
        await nothing_left(gateway)


@pytest.mark.parametrize(
    "begin", [_headers, _half, _whole, _half_in_stream, _no_question], ids=lambda each: each.__name__[1:]
)
async def test_requests_that_do_not_arrive(served: Serve, begin: Any) -> None:
    """The limit counts however long the others are."""
    async with served(**short("receive_timeout_s")) as gateway, connected(gateway.addresses[0]) as client:
        number = await begin(client)
        (reply,) = await client.over(number)
        assert reply.status == CODES["DEADLINE_EXCEEDED"]
        assert reply.words == "the request did not arrive within 0.05 s ([grpc] receive_timeout_s)"
        await nothing_left(gateway)
        assert (await client.infer()).status == 0


async def test_what_may_take_longer_than_a_request(served: Serve) -> None:
    """Runs, idle streams, watches, answers that are not taken yet, and streams that we hold up ourselves."""
    async with (
        served(**short("receive_timeout_s", stream_in_flight=1)) as gateway,
        connected(gateway.addresses[0]) as client,
        connected(gateway.addresses[0]) as slow,
    ):
        slow.takes = False
        stuck = slow.ask(INFER, infer_request(200_000))
        await slow.until(lambda: len(slow.replies[stuck].body) == 65_535)
        gateway.inference.gate.clear()
        idle, watch = client.ask(STREAM, end=False), client.ask(WATCH, framed(b""))
        running = client.ask(INFER, infer_request())
        held = client.ask(STREAM, infer_request() * 4 + infer_request()[:9], end=False)
        await client.settled()
        await asyncio.sleep(3 * SHORT_S)
        assert gateway.frontend.load.busy == 5  # a request in flight of a stream is a call as well
        gateway.inference.gate.set()
        client.send(held, infer_request()[9:], end=True)
        client.send(idle, b"", end=True)
        assert [reply.status for reply in await client.over(running, held, idle)] == [0, 0, 0]
        client.h2.reset_stream(watch, 8)
        await client.settled()
        slow.h2.increment_flow_control_window(200_000)
        slow.h2.increment_flow_control_window(200_000, stuck)
        assert [reply.status for reply in await slow.over(stuck)] == [0]


async def test_a_reader_that_takes_nothing_is_cut_off(served: Serve) -> None:
    async with (
        served(**short("write_timeout_s")) as gateway,
        connected(gateway.addresses[0]) as client,
        connected(gateway.addresses[0]) as other,
    ):
        client.takes = False
        client.ask(INFER, infer_request(200_000))
        await client.gone()
        await nothing_left(gateway)
        assert (await other.infer()).status == 0


async def test_a_peer_whose_kernel_is_full_is_cut_off(served: Serve) -> None:
    async with served(**short("write_timeout_s")) as gateway, connected(gateway.addresses[0]) as client:
        window = 2**31 - 1
        client.h2.increment_flow_control_window(window - 65_535)
        client.h2.update_settings({4: window})
        await client.settled()
        (connection,) = gateway.frontend._open
        told, pause = list[str](), connection.pause_writing
        connection.pause_writing = lambda: told.append("pause") or pause()
        for _ in range(12):
            client.ask(INFER, infer_request(1_000_000))
        with suppress(ConnectionError):  # it may be cut off while it still asks
            await client.flush()
        while gateway.frontend._open:
            await asyncio.sleep(0.01)
        assert told
        await nothing_left(gateway)


async def test_signs_of_life(served: Serve) -> None:
    """An idle client that answers PINGs stays; one that does not is cut off."""
    settings = {**LIMITS, "keepalive_ms": 20, "keepalive_timeout_ms": 2_000}
    async with (
        served(**settings) as gateway,
        connected(gateway.addresses[0]) as alive,
        connected(gateway.addresses[0]) as dead,
        connected(gateway.addresses[0]) as stream,
    ):
        watch = stream.ask(WATCH, framed(b""))
        reading = [asyncio.ensure_future(each.gone()) for each in (alive, stream)]
        while len(gateway.frontend._open) == 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert len(gateway.frontend._open) == 2
        assert not stream.replies[watch].over
        for task in reading:
            task.cancel()
        await dead.gone()


async def test_nothing_ticks_where_nothing_is_under_way(served: Serve) -> None:
    async with served(**short("receive_timeout_s")) as gateway, connected(gateway.addresses[0]) as client:
        assert (await client.infer()).status == 0
        (connection,) = gateway.frontend._open
        timeouts = connection._timeouts
        while not timeouts.was_idle:
            await asyncio.sleep(SHORT_S / 4)
        assert timeouts._timer.when() - asyncio.get_running_loop().time() > 7000
        number = client.ask(INFER, end=False)
        (reply,) = await client.over(number)
        assert reply.status == CODES["DEADLINE_EXCEEDED"]


async def test_a_connection_that_is_gone_has_no_timer(served: Serve) -> None:
    async with served() as gateway:
        async with connected(gateway.addresses[0]):
            (connection,) = gateway.frontend._open
        await until(lambda: not gateway.frontend._open)
        assert connection._timeouts._timer is None
