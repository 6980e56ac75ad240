"""Calls begun, continued, given up and finished in any order on two connections: right answers, and nothing left."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.serving.frontends.grpc_v2.calls import INFER
from tests.simulators.examples import examples
from tests.simulators.grpc_client import (
    LIVE,
    LOAD,
    STREAM,
    WATCH,
    Client,
    connected,
    framed,
    infer_reply,
    infer_request,
)

from .conftest import Serve, nothing_left

pytestmark = pytest.mark.asyncio
BODIES = {INFER: infer_request(40), LIVE: framed(b""), LOAD: framed(b""), STREAM: infer_request(40), WATCH: framed(b"")}
OPEN_LIMIT = 20
CANCEL = 8

ask = st.tuples(st.just("ask"), st.sampled_from([INFER, INFER, LIVE, LOAD, STREAM, WATCH]), st.integers(0, 100))
other = st.tuples(st.sampled_from(["go on", "finish", "cancel"]), st.integers(0, OPEN_LIMIT), st.just(0))
common = st.tuples(st.sampled_from(["settle", "read", "close the gate", "open the gate"]), st.just(0), st.just(0))
STEPS = st.lists(st.tuples(st.booleans(), st.one_of(ask, ask, other, other, common)), min_size=5, max_size=40)


class Caller:
    """A client, and how much of each of its calls was said."""

    def __init__(self, client: Client, gateway: Any) -> None:
        self.client, self._gateway = client, gateway
        self.begun: dict[int, tuple[str, int]] = {}
        self.finished: dict[int, str] = {}
        self.cancelled: set[int] = set()

    async def take(self, what: str, which: Any, size: int) -> None:
        if what == "ask" and len(self.begun) < OPEN_LIMIT:
            number = self.client.ask(which, end=False)
            self.begun[number] = which, 0
            self._say(number, size)
        elif what in {"go on", "finish", "cancel"}:
            self._continue(what, which)
        elif what == "settle":
            await self.client.settled()
        elif what == "read":
            await self.client.flush()
        elif what.endswith("gate"):
            gate = self._gateway.inference.gate
            gate.set() if what.startswith("open") else gate.clear()

    def _continue(self, what: str, which: int) -> None:
        open_ones = [number for number in self.begun if not self.client.replies[number].over]
        if not open_ones:
            return
        number = open_ones[which % len(open_ones)]
        if what == "cancel":
            self.client.h2.reset_stream(number, CANCEL)
            del self.begun[number]
            self.cancelled.add(number)
        elif what == "go on":
            self._say(number, 9)
        else:
            self.finish(number)

    def _say(self, number: int, size: int) -> None:
        path, said = self.begun[number]
        self.client.send(number, BODIES[path][said : said + size])
        self.begun[number] = path, said + size

    def finish(self, number: int) -> None:
        path, said = self.begun.pop(number)
        self.client.send(number, BODIES[path][said:], end=True)
        self.finished[number] = path

    async def all_over(self) -> None:
        """Finish what is open but for watches, which have no end of their own, and look at the replies."""
        for number, (path, _) in list(self.begun.items()):
            if path != WATCH and not self.client.replies[number].over:
                self.finish(number)
        wanted = [number for number, path in self.finished.items() if path != WATCH]
        for reply, number in zip(await self.client.over(*wanted), wanted, strict=True):
            assert reply.status == 0, (self.finished[number], reply)
            if self.finished[number] == INFER:
                assert infer_reply(bytes(reply.body)).raw_output_contents[0] == bytes(40)


@settings(deadline=None, max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.sampled_from([0, 1, 30]))
async def test_any_conversation(served: Serve, steps: list[Any], chunk: int) -> None:
    async with served() as gateway:
        async with connected(gateway.addresses[0]) as one, connected(gateway.addresses[0]) as two:
            callers = [Caller(client, gateway) for client in (one, two)]
            for first, step in steps:
                caller = callers[first]
                await caller.take(*step)
                await caller.client.flush(chunk)
            gateway.inference.gate.set()
            for caller in callers:
                await caller.all_over()
                assert not caller.client.closed
        await nothing_left(gateway)
