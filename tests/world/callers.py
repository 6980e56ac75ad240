"""Concurrent callers of one model, each with other data, and a comparison of every answer."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
import grpc
import grpc.aio

from tests.world.answers import Judgement, compare
from tests.world.entry import Tensors
from tests.world.feeds import Ask, Asks
from tests.world.wire import grpc_request, http_request, read_grpc, read_http

METHOD = "/inference.GRPCInferenceService/ModelInfer"
DEADLINE_S = 60.0
LARGEST_BYTES = 64 << 20
ERROR_CHARS = 400
Call = Callable[[int], Awaitable[Tensors]]


@dataclass(frozen=True, slots=True)
class Load:
    """Concurrent callers, the requests that they share, and the seconds after which none of them sends another."""

    callers: int
    requests: int
    seconds: float


class CallError(Exception):
    """Refusal by the gateway of a request that the runtime itself takes."""


@dataclass(slots=True)
class Tally:
    """Answers by judgement, and errors by message."""

    answers: Counter[Judgement] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def requests(self) -> int:
        """All requests, answered or not."""
        return self.answers.total() + self.errors.total()

    @property
    def wrong(self) -> int:
        """Wrong answers and errors."""
        return self.answers[Judgement.WRONG] + self.errors.total()

    def add(self, other: Tally) -> None:
        """Add the counts of `other`."""
        self.answers.update(other.answers)
        self.errors.update(other.errors)


async def call_grpc(address: str, model: str, asks: Asks, load: Load) -> Tally:
    """Ask over gRPC, all callers on one connection."""
    options = [("grpc.max_receive_message_length", LARGEST_BYTES), ("grpc.max_send_message_length", LARGEST_BYTES)]
    messages = [grpc_request(model, ask.inputs) for ask in asks.asks]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        infer = channel.unary_unary(METHOD)

        async def call(index: int) -> Tensors:
            try:
                return read_grpc(await infer(messages[index], timeout=DEADLINE_S))
            except grpc.aio.AioRpcError as error:
                raise CallError(f"{error.code().name}: {error.details()}") from None

        return await _hammer(call, asks, load)


async def call_http(address: str, model: str, asks: Asks, load: Load) -> Tally:
    """Ask over HTTP, each caller on a connection of its own."""
    messages = [http_request(ask.inputs) for ask in asks.asks]
    url, patience = f"http://{address}/v2/models/{model}/infer", aiohttp.ClientTimeout(DEADLINE_S)
    connector = aiohttp.TCPConnector(limit=load.callers)
    async with aiohttp.ClientSession(connector=connector, timeout=patience) as session:

        async def call(index: int) -> Tensors:
            headers, body = messages[index]
            async with session.post(url, data=body, headers=headers) as response:
                content = await response.read()
                if response.status != 200:
                    raise CallError(f"{response.status}: {content.decode(errors='replace')}")
                return read_http(response.headers, content)

        return await _hammer(call, asks, load)


async def _hammer(call: Call, asks: Asks, load: Load) -> Tally:
    """Share the requests evenly; neighbours send different data at every moment."""
    tally, end_s = Tally(), time.monotonic() + load.seconds

    async def caller(place: int) -> None:
        for turn in range(place, load.requests, load.callers):
            index = (turn + turn // load.callers) % len(asks.asks)
            await _asked(call, index, asks.asks[index], tally, shapes_only=bool(asks.shapes_only))
            if time.monotonic() > end_s:
                return

    await asyncio.gather(*(caller(place) for place in range(load.callers)))
    return tally


async def _asked(call: Call, index: int, ask: Ask, tally: Tally, *, shapes_only: bool) -> None:
    try:
        answer = await call(index)
    except CallError as error:
        tally.errors[str(error)[:ERROR_CHARS]] += 1
    else:
        tally.answers[compare(answer, ask.expected, shapes_only=shapes_only)] += 1
