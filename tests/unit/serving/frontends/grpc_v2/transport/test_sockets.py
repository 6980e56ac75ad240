"""A transport of our own, held to what asyncio's promise a protocol: writing and reading."""

from __future__ import annotations

import asyncio
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.serving.frontends.grpc_v2.transport.sockets import HIGH_BYTES, LOW_BYTES
from tests.simulators.wires import BIG, listening, received

pytestmark = pytest.mark.asyncio


@pytest.fixture(params=[socket.AF_INET, socket.AF_UNIX], ids=["tcp", "unix"])
def family(request: pytest.FixtureRequest) -> int:
    return int(request.param)


# ---- writing ---------------------------------------------------------------------------------------------------------
async def test_what_is_written_arrives_in_order(family: int) -> None:
    async with listening(family) as served:
        connection, client = await served.connect()
        connection.transport.write(BIG[:10])
        connection.transport.writelines([BIG[10:20], memoryview(BIG)[20:500_000], b"", BIG[500_000:500_001]])
        connection.transport.write(BIG[500_001:])
        assert connection.transport.get_write_buffer_size() > 0
        assert await received(client, len(BIG)) == BIG
        await connection.until(lambda: connection.told.count("resume") == connection.told.count("pause"))
        assert connection.transport.get_write_buffer_size() == 0


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.lists(st.sampled_from([0, 1, 100, 20_000, 70_000, 300_000]), max_size=80), max_size=4), st.booleans()
)
async def test_pieces_of_any_size(batches: list[list[int]], small: bool) -> None:
    async with listening() as served:
        connection, client = await served.connect(small=small)
        sent = b""
        for batch in batches:
            pieces = [BIG[:size] for size in batch]
            sent += b"".join(pieces)
            connection.transport.writelines(memoryview(piece) for piece in pieces)
        connection.transport.write(b"end")
        assert await received(client, len(sent) + 3) == sent + b"end"


async def test_the_protocol_is_told_to_be_slow_and_to_go_on() -> None:
    async with listening() as served:
        connection, client = await served.connect(small=True)
        levels: list[tuple[str, int]] = []
        size_of = connection.transport.get_write_buffer_size
        connection.on = {what: lambda what=what: levels.append((what, size_of())) for what in ("pause", "resume")}
        while "pause" not in connection.told:
            connection.transport.write(BIG[:30_000])
        connection.transport.write(BIG[:30_000])
        assert connection.told.count("pause") == 1
        size = connection.transport.get_write_buffer_size()
        assert size > HIGH_BYTES
        reading = asyncio.ensure_future(received(client, 10**9))
        await connection.until(lambda: "resume" in connection.told)
        assert [what for what, _ in levels] == ["pause", "resume"]
        assert levels[0][1] > HIGH_BYTES >= LOW_BYTES >= levels[1][1]
        connection.transport.abort()
        with pytest.raises(ConnectionResetError):
            await reading


async def test_resuming_may_write_again() -> None:
    async with listening() as served:
        connection, client = await served.connect()
        rest = [BIG[place : place + 200_000] for place in range(0, len(BIG), 200_000)]
        connection.on["resume"] = lambda: rest and connection.transport.writelines([rest.pop(0)])
        connection.transport.writelines([rest.pop(0)])
        assert await received(client, len(BIG)) == BIG


async def test_what_was_handed_over_is_not_copied() -> None:
    async with listening() as served:
        connection, _ = await served.connect(small=True)
        content = bytearray(BIG)
        connection.transport.writelines([memoryview(content)])
        assert connection.transport._waiting.pieces[0].obj is content


# ---- reading ---------------------------------------------------------------------------------------------------------
async def test_reading_pauses_and_goes_on(family: int) -> None:
    async with listening(family) as served:
        connection, client = await served.connect()
        client.send(b"first")
        await connection.until(lambda: connection.got == b"first")
        connection.transport.pause_reading()
        client.send(b"second")
        for _ in range(20):
            await asyncio.sleep(0)
        assert connection.got == b"first"
        connection.transport.resume_reading()
        await connection.until(lambda: connection.got == b"firstsecond")


async def test_all_that_is_ready_is_read_between_before_and_after() -> None:
    async with listening() as served:
        both = [await served.connect() for _ in range(2)]
        seen = list[tuple[int, int]]()
        for connection, client in both:
            connection.on["read"] = lambda: seen.append((len(served.before), len(served.after)))
            client.send(b"x")
        for connection, _ in both:
            await connection.until(lambda connection=connection: connection.got)
        assert all(before == after + 1 for before, after in seen)
