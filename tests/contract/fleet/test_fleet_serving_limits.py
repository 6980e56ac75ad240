"""Nothing from a peer is unbounded: number, size, time; what happens to those who drag, leave, or ask too often."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
import uuid

import httpx
import pytest

from fleet.controller.serving.bodies import BodyBound
from fleet.controller.serving.settings import RateSettings, ServingSettings
from tests.simulators.constants import settings_with
from tests.simulators.fleet_http import controlling, device, hang_up

pytestmark = pytest.mark.asyncio
ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def said(reader: asyncio.StreamReader) -> tuple[int, dict[str, object]]:
    """Return status and JSON of one answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.split("content-length: ")[1].split("\r\n")[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


async def test_a_peer_does_not_pay_for_a_late_server(tmp_path) -> None:
    """Requests arrive in time, and the process cannot read them for longer than a peer may take."""
    count, settings = 100, settings_with(ServingSettings(), header_timeout_s=3.0)
    async with controlling(tmp_path, settings=settings) as controller:
        peers = [await controller.connect() for _ in range(count)]
        for _, writer in peers:
            writer.write(ASK)
        time.sleep(4.5)  # the event loop stands still
        assert [(await said(reader))[0] for reader, _ in peers] == [200] * count
        for _, writer in peers:
            await hang_up(writer)


async def test_bytes_now_and_then_buy_no_time(tmp_path) -> None:
    async with controlling(tmp_path, settings=settings_with(ServingSettings(), header_timeout_s=0.2)) as controller:
        reader, writer = await controller.connect()

        async def drip() -> None:
            for byte in b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.01)

        with pytest.raises(ConnectionError):
            await drip()
        reader.feed_eof()
        await hang_up(writer)


async def test_a_silent_tls_peer_is_given_up(tmp_path) -> None:
    async with controlling(
        tmp_path, tls=True, settings=settings_with(ServingSettings(), handshake_timeout_s=0.1)
    ) as controller:
        reader, writer = await controller.connect()
        assert await reader.read() == b""
        await hang_up(writer)


@pytest.mark.parametrize(
    "settings", [ServingSettings(max_connections=2), ServingSettings(max_connections_per_address=2)]
)
async def test_too_many_connections_are_told_so(tmp_path, settings) -> None:
    async with controlling(tmp_path, settings=settings) as controller:
        kept = [await controller.connect() for _ in range(2)]
        for reader, writer in kept:
            writer.write(ASK)
            assert (await said(reader))[0] == 200
        reader, writer = await controller.connect()
        assert (await said(reader))[0] == 503
        await hang_up(writer)
        assert controller.counts["connections_turned_away"] == 1
        for _, writer in kept:
            await hang_up(writer)
        async with controller.client() as client:
            status = 503
            while status == 503:  # until the server has seen them leave
                status = (await client.get("/")).status_code
            assert status == 200


async def test_too_many_requests_at_once_are_told_so(tmp_path) -> None:
    async with (
        controlling(tmp_path, settings=settings_with(ServingSettings(), max_requests=1)) as controller,
        controller.client() as client,
    ):
        slow = asyncio.create_task(client.get("/slow"))
        refused = await client.get("/")
        while refused.status_code == 200:  # until the slow one is in
            refused = await client.get("/")
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "5"
        assert (await client.get("/health/live")).status_code == 200
        slow.cancel()


@pytest.mark.parametrize("path", ["/", "/unread"])
async def test_a_body_that_says_it_is_too_large_is_not_read(tmp_path, path) -> None:
    async with controlling(tmp_path, settings=settings_with(ServingSettings(), max_body_bytes=10)) as controller:
        reader, writer = await controller.connect()
        writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 11\r\n\r\n".encode())
        status, problem = await said(reader)
        assert (status, problem["fault"]) == (413, "TOO_LARGE")
        await hang_up(writer)


async def test_a_body_in_chunks_is_too_large_all_the_same_and_exactly_the_limit_is_not(tmp_path) -> None:
    async def chunks(count: int):
        for _ in range(count):
            yield b"x" * 5

    settings = settings_with(ServingSettings(), max_body_bytes=10)
    async with controlling(tmp_path, settings=settings) as controller, controller.client() as client:
        assert (await client.post("/", content=chunks(2))).json()["size"] == 10
        assert (await client.post("/", content=chunks(3))).status_code == 413


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("closing", ["Connection: close\r\n", ""])
async def test_the_refusal_of_a_body_is_read_before_the_connection_ends(tmp_path, closing, tls) -> None:
    """The peer sends its whole body before it reads, as urllib does: a reset would discard the answer."""
    size, settings = 8_000_000, settings_with(ServingSettings(), max_body_bytes=1000)
    async with controlling(tmp_path, tls=tls, settings=settings) as controller:
        context = ssl.create_default_context(cafile=str(controller.ca_file)) if tls else None
        reader, writer = await asyncio.open_connection("localhost", controller.port, ssl=context)
        head = f"POST / HTTP/1.1\r\nHost: x\r\n{closing}Content-Length: {size}\r\n\r\n".encode()
        writer.write(head + bytes(size))
        await writer.drain()
        assert (await said(reader))[0] == 413
        if closing:
            assert await reader.read() == b""
        else:
            writer.write(ASK)
            assert (await said(reader))[0] == 200
        await hang_up(writer)


async def test_bounds_by_route(tmp_path) -> None:
    bounds = {"/telemetry": BodyBound(100, 1)}
    usual = BodyBound(10, 1)
    controlled = controlling(tmp_path, bound=lambda scope: bounds.get(scope["path"], usual))
    async with controlled as controller, controller.client() as client:
        assert (await client.post("/telemetry", content=bytes(100))).status_code == 200
        assert (await client.post("/other", content=bytes(100))).status_code == 413


async def test_what_all_requests_hold_is_bounded_and_given_back(tmp_path) -> None:
    settings = ServingSettings(max_buffered_bytes=100)
    async with controlling(tmp_path, settings=settings) as controller, controller.client() as client:
        for _ in range(3):
            assert (await client.post("/", content=bytes(100))).status_code == 200
        refused = await client.post("/", content=bytes(101))
        assert (refused.status_code, refused.json()["fault"]) == (503, "OVERLOADED")


async def test_one_caller_holds_only_a_part_of_it(tmp_path) -> None:
    settings = settings_with(ServingSettings(), max_buffered_bytes=100, max_buffered_bytes_per_caller=60)
    post = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n"
    async with controlling(tmp_path, settings=settings) as controller:
        slow, slow_writer = await controller.connect()
        slow_writer.write(post + bytes(49))
        reader, writer = await controller.connect()
        while True:  # until the first has been read so far
            writer.write(post + bytes(50))
            status, problem = await said(reader)
            if status == 503:
                break
        assert "your requests in progress would hold 99 bytes" in str(problem["detail"])
        other = await asyncio.open_connection("127.0.0.1", controller.port, local_addr=("127.0.0.2", 0))
        other[1].write(post + bytes(50))
        assert (await said(other[0]))[0] == 200
        slow_writer.write(b"x")
        assert (await said(slow))[0] == 200
        for one in (writer, slow_writer, other[1]):
            await hang_up(one)


async def test_an_answer_nobody_takes_is_given_up(tmp_path) -> None:
    async with controlling(tmp_path, settings=ServingSettings(write_timeout_s=0.2)) as controller:
        reader, writer = await controller.connect()
        writer.write(ASK.replace(b" / ", b" /large "))
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        await gone(controller)
        await hang_up(writer)


async def gone(controller) -> None:
    """Wait until the server has no connection any more."""
    while controller.server._listeners._state.connections:
        await asyncio.sleep(0.01)


async def test_a_stop_lets_requests_end_and_tells_those_it_cuts_off(tmp_path) -> None:
    proceed = asyncio.Event()

    def waiting(app):
        async def wrapped(scope, receive, send):
            if b"patient" in scope["query_string"]:
                scope["state"]["proceed"] = proceed
            await app(scope, receive, send)

        return wrapped

    async with controlling(tmp_path, wrap=waiting) as controller, controller.client() as client:
        patient, endless = (asyncio.create_task(client.get(path)) for path in ("/slow?patient", "/slow"))
        while len(controller.server._listeners._state.tasks) < 2:
            await asyncio.sleep(0.01)
        stopping = asyncio.create_task(controller.server.stop(0.3))
        while controller.server._listeners._servers[0].is_serving():
            await asyncio.sleep(0.01)
        with pytest.raises(httpx.ConnectError):
            await client.get("/")
        proceed.set()
        assert (await patient).status_code == 200
        cut = await endless
        assert (cut.status_code, "stopping" in cut.json()["detail"]) == (503, True)
        await stopping


async def test_who_asks_too_often_is_told_when_to_come_back(tmp_path) -> None:
    rates = settings_with(RateSettings(), device_per_s=0.001, device_burst=3, address_per_s=0.001, address_burst=2)
    one, two = device("one"), device("two")
    async with controlling(tmp_path, tls=True, settings=ServingSettings(rates=rates)) as controller:
        for shown, burst in ((one, 3), (two, 3), (None, 2)):
            async with controller.client(shown) as client:
                answers = [await client.get("/") for _ in range(burst + 1)]
            assert [answer.status_code for answer in answers] == [200] * burst + [429]
            assert int(answers[-1].headers["retry-after"]) >= 900
            assert answers[-1].json()["fault"] == "OVERLOADED"
        assert controller.counts == {"rate_limited_device": 2, "rate_limited_address": 1}


async def test_who_drags_his_requests_out_leaves_room_for_others(tmp_path) -> None:
    """Bodies that do not come, or files that are taken a little at a time: one address could have all places."""
    settings = settings_with(ServingSettings(), max_requests=4, rates=settings_with(RateSettings(), address_at_once=2))
    begun = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabc"
    async with controlling(tmp_path, settings=settings) as controller:
        peers = [await asyncio.open_connection("127.0.0.1", controller.port) for _ in range(6)]
        for _, writer in peers:
            writer.write(begun)
        refused = [await said(reader) for reader, _ in peers[2:]]
        assert {status for status, _ in refused} == {429}
        assert "2 requests of 127.0.0.1 are in progress" in str(refused[0][1]["detail"])
        reader, writer = await asyncio.open_connection("127.0.0.1", controller.port, local_addr=("127.0.0.2", 0))
        writer.write(ASK)
        assert (await said(reader))[0] == 200
        peers[0][1].write(b"de")  # one of them ends
        assert (await said(peers[0][0]))[0] == 200
        peers[0][1].write(ASK)
        assert (await said(peers[0][0]))[0] == 200
        for _, one in (*peers, (reader, writer)):
            await hang_up(one)


async def test_who_guesses_is_soon_slow(tmp_path) -> None:
    rates = settings_with(RateSettings(), address_per_s=0.001, address_burst=10, refusal_cost=5)
    async with (
        controlling(tmp_path, settings=ServingSettings(rates=rates)) as controller,
        controller.client() as client,
    ):
        assert [(await client.get("/denied")).status_code for _ in range(3)] == [401, 401, 429]


async def test_a_revoked_device_counts_as_a_stranger_of_its_address(tmp_path) -> None:
    rates = settings_with(RateSettings(), address_per_s=0.001, address_burst=10, refusal_cost=5)
    bad = device("bad")
    async with controlling(tmp_path, tls=True, settings=ServingSettings(rates=rates)) as controller:
        controller.revoked.add(bad.certificate.serial)
        async with controller.client(bad) as client:
            assert [(await client.get("/")).status_code for _ in range(3)] == [401, 401, 429]


async def test_every_answer_bears_a_number_and_headers_that_keep_browsers_safe(tmp_path) -> None:
    async with controlling(tmp_path) as controller, controller.client() as client:
        for path, status in (("/", 200), ("/denied", 401), ("/broken", 500)):
            answer = await client.get(path)
            assert answer.status_code == status
            assert str(uuid.UUID(answer.headers["x-request-id"])) == answer.headers["x-request-id"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["content-security-policy"].startswith("default-src 'none'")
            assert answer.headers["cache-control"] == "no-store"
            assert "server" not in answer.headers
            if status != 200:
                assert answer.json()["instance"] == f"urn:uuid:{answer.headers['x-request-id']}"
        assert (await client.get("/denied")).headers["www-authenticate"] == "Bearer"


async def test_the_log_says_who_asked_what_and_no_secret(tmp_path, caplog) -> None:
    camera = device("camera-7")
    with caplog.at_level(logging.DEBUG, logger="fleet.access"):
        async with controlling(tmp_path, tls=True) as controller, controller.client(camera) as client:
            answer = await client.get("/a%0Ab?token=secret", headers={"Authorization": "Bearer secret"})
            await client.get("/denied")
            await client.get("/repository/metadata/2.root.json?status=404")
            await client.get("/repository/metadata/2.snapshot.json?status=404")
    usual, refused, next_root, absent = (record for record in caplog.records if record.name == "fleet.access")
    assert (usual.levelno, refused.levelno) == (logging.DEBUG, logging.INFO)
    assert (next_root.levelno, absent.levelno) == (logging.DEBUG, logging.INFO), "every poll asks for the next root"
    number = answer.headers["x-request-id"]
    assert usual.getMessage().startswith(f"request answered: {number} 127.0.0.1 camera-7 GET /a%0Ab 200 ")
    assert "secret" not in caplog.text


async def test_a_defect_is_told_to_the_log_alone(tmp_path, caplog) -> None:
    async with controlling(tmp_path) as controller, controller.client() as client:
        answer = await client.get("/broken")
        assert "a defect" not in answer.text
        assert "ZeroDivisionError: a defect" in caplog.text
        assert answer.headers["x-request-id"] in caplog.text
        assert (await client.get("/")).status_code == 200
