"""Nothing from a peer is unbounded: size, time, number, and what happens to those who leave."""

import asyncio
import gzip
import json
import socket
import zlib

import numpy as np
import pytest

from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.serving.frontends import settings as limits
from gateway.serving.frontends.http.direct import BODY_BYTES
from gateway.serving.frontends.rest_v2.settings import RestSettings
from tests.simulators.inference import VARIANT, SimulatedInference
from tests.simulators.rest_gateway import hangs_up, infer_body, serving

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("rest_way")]
MIB = 1024 * 1024
INFER = "/v2/models/identity_fp32/infer"
BODY = json.dumps(infer_body(1)).encode()


def request(body=BODY, *headers, length=None):
    lines = [
        f"POST {INFER} HTTP/1.1",
        "Host: x",
        f"Content-Length: {len(body) if length is None else length}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def answer(reader):
    """Return status and JSON body of one answer on a bare connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.split("content-length: ")[1].split("\r\n")[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


async def test_65_mib_is_too_large():
    async with serving() as gateway:
        refused = await gateway.client.post(INFER, content=bytes(65 * MIB))
        assert refused.status_code == 413
        assert "larger than 16777216 bytes" in refused.json()["error"]
        assert (await gateway.client.post(INFER, json=infer_body(1))).status_code == 200


async def test_65_mib_in_chunks_is_too_large():
    async def chunks():
        for _ in range(65):
            yield bytes(MIB)

    async with serving() as gateway:
        assert (await gateway.client.post(INFER, content=chunks())).status_code == 413


async def test_a_length_that_is_too_large_is_refused_before_the_body():
    async with serving() as gateway:
        reader, writer = await gateway.connect()
        writer.write(request(b"", "Expect: 100-continue", length=65 * MIB))
        assert (await answer(reader))[0] == 413
        await hangs_up(writer)


async def test_64_mib_of_binary_data_is_served():
    size = 64 * MIB - 200
    item = {"name": "x", "datatype": "UINT8", "shape": [1, size], "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [item], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Accept-Encoding": "identity"}
    async with serving() as gateway:
        path = "/v2/models/identity_uint8/infer"
        served = await gateway.client.post(path, content=head + bytes(size), headers=headers)
        assert served.status_code == 200
        assert len(served.content) - int(served.headers["inference-header-content-length"]) == size


def small():
    """Return a model whose input has 256 bytes a row: 1,024 rows, as JSON 64 bytes an element."""
    x, y = (TensorSpec(name, Datatype.FP32, (-1, 64)) for name in "xy")
    return SimulatedInference([ModelManifest("small", "1", (x,), (y,), (VARIANT,), batch=True)])


@pytest.mark.parametrize(
    ("headers", "most"), [([], 1024 * 64 * 64 + 65_536), (["Inference-Header-Content-Length: 90"], 327_770)]
)
async def test_a_body_larger_than_its_model_takes_is_refused_by_its_length(headers, most):
    """Nothing of it is read: it never comes."""
    async with serving(inference=small()) as gateway:
        reader, writer = await asyncio.open_connection(*gateway.target.rsplit(":", 1))
        writer.write(request(b"", *headers, length=most + 1).replace(b"identity_fp32", b"small"))
        status, said = await answer(reader)
        writer.close()
    assert status == 413
    assert f"larger than {most} bytes" in said["error"]


async def test_no_more_is_inflated_than_the_model_takes():
    headers = {"Content-Encoding": "gzip", "Inference-Header-Content-Length": "90"}
    async with serving(inference=small()) as gateway:
        bomb = gzip.compress(bytes(30 * MIB))
        refused = await gateway.client.post("/v2/models/small/infer", content=bomb, headers=headers)
    assert refused.status_code == 413
    assert "decompressed request body is larger than 327770 bytes" in refused.json()["error"]


async def test_what_decoding_allocates_is_counted():
    """A million empty BYTES elements are 4 MB of body and 56 MB of objects."""
    size = 4_000_000
    item = {"name": "x", "datatype": "BYTES", "shape": [1, size // 4], "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [item]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    async with serving(settings=RestSettings(max_buffered_bytes=50_000_000)) as gateway:
        path = "/v2/models/identity_bytes/infer"
        refused = await gateway.client.post(path, content=head + bytes(size), headers=headers)
        assert (refused.status_code, gateway.inference.requests) == (413, [])
        assert f"{len(head) + size + 56_000_000} http request bytes" in refused.json()["error"]


async def test_an_answer_is_counted_until_it_was_sent():
    """400,000 numbers are 1.6 MB, and up to 10 MB as JSON: the system's buffers hold 4 MB (`tcp_wmem`)."""
    values = np.full(400_000, 1 / 3, "<f4")
    item = {"name": "x", "datatype": "FP32", "shape": [1, 400_000], "parameters": {"binary_data_size": 1_600_000}}
    head = json.dumps({"inputs": [item]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Accept-Encoding": "identity"}
    async with serving(settings=RestSettings(max_buffered_bytes=12_000_000)) as gateway:

        async def body():  # without a length it does not wait for its turn
            yield head + values.tobytes()

        async def post():
            return await gateway.client.post(INFER, content=body(), headers=headers)

        reader, writer = await gateway.connect()  # a client that does not take its answer
        lines = [f"POST {INFER} HTTP/1.1", "Host: x", *(f"{name}: {value}" for name, value in headers.items())]
        lines.append(f"Content-Length: {len(head) + 1_600_000}")
        transport = writer.transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        transport.pause_reading()
        writer.write("\r\n".join([*lines, "", ""]).encode() + head + values.tobytes())
        while (refused := await post()).status_code == 200:
            pass
        assert refused.status_code == 503
        assert "the answer: too many http request bytes" in refused.json()["error"]
        assert "binary_data_output" in refused.json()["error"]
        transport.resume_reading()
        status, taken = await answer(reader)
        assert (status, taken["outputs"][0]["data"]) == (200, values.tolist())
        while (served := await post()).status_code != 200:
            pass
        assert served.json()["outputs"][0]["data"] == values.tolist()
        await hangs_up(writer)


async def test_large_json_asks_for_binary_data():
    async with serving(settings=RestSettings(max_json_bytes=100)) as gateway:
        refused = await gateway.client.post(INFER, json=infer_body(*range(50)))
        assert refused.status_code == 413
        assert "binary data" in refused.json()["error"]


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_a_bomb_is_too_large(encoding, compress):
    bomb = compress(bytes(65 * MIB), 9)
    assert len(bomb) < 100_000
    async with serving() as gateway:
        refused = await gateway.client.post(INFER, content=bomb, headers={"Content-Encoding": encoding})
        assert refused.status_code == 413
        assert "decompressed" in refused.json()["error"]


@pytest.mark.parametrize(
    ("encoding", "body", "says"),
    [
        ("gzip", b"no gzip", "is broken"),
        ("gzip", gzip.compress(BODY, mtime=0)[:-4], "cut short"),
        ("deflate", zlib.compress(BODY) + b"more", "data follows"),
        ("br", BODY, "Content-Encoding 'br' is not read here"),
        ("gzip, gzip", BODY, "is not read here"),
    ],
)
async def test_a_broken_encoding_is_invalid(encoding, body, says):
    async with serving() as gateway:
        refused = await gateway.client.post(INFER, content=body, headers={"Content-Encoding": encoding})
        assert refused.status_code == 400
        assert says in refused.json()["error"]


async def test_compressed_bodies_are_read():
    async with serving() as gateway:
        for encoding, body in {"gzip": gzip.compress(BODY), "deflate": zlib.compress(BODY), "identity": BODY}.items():
            served = await gateway.client.post(INFER, content=body, headers={"Content-Encoding": encoding})
            assert served.status_code == 200, served.text


async def test_a_body_that_pauses_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_PAUSE_S", 0.05)
    async with serving(settings=RestSettings(body_timeout_s=3600)) as gateway:
        reader, writer = await gateway.connect()
        writer.write(request(BODY[:-1], length=len(BODY)))
        status, _ = await answer(reader)
        assert status == 408
        await hangs_up(writer)


@pytest.mark.parametrize("host", [b"a\r\n X: folded", b"a b", b"a/b", b"a@b", b"[", b"a:x"])
@pytest.mark.parametrize("path", [b"/v2", b"/nowhere"])
async def test_a_host_that_is_none_is_no_defect_of_ours(host, path):
    async with serving() as gateway:
        reader, writer = await gateway.connect()
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
        status, _ = await answer(reader)
        assert status in {200, 400, 404}
        await hangs_up(writer)


async def waiting(inference, number):
    """Wait until `number` requests have reached the engine."""
    while len(inference.requests) < number:
        await asyncio.sleep(0)


async def test_a_client_that_leaves_cancels_its_inference_and_no_other():
    inference = SimulatedInference()
    inference.gate.clear()
    async with serving(inference=inference) as gateway:
        stays = asyncio.create_task(gateway.client.post(INFER, json=infer_body(1)))
        await waiting(inference, 1)
        _, writer = await gateway.connect()
        writer.write(request())
        await waiting(inference, 2)
        await hangs_up(writer)
        while not inference.cancelled:
            await asyncio.sleep(0)
        inference.gate.set()
        assert (await stays).status_code == 200
        assert inference.cancelled == 1


async def test_a_client_that_leaves_within_its_body_disturbs_nobody():
    async with serving() as gateway:
        _, writer = await gateway.connect()
        writer.write(request(BODY[:10], length=len(BODY)))
        await writer.drain()
        await hangs_up(writer)
        assert (await gateway.client.post(INFER, json=infer_body(1))).status_code == 200
        assert len(gateway.inference.requests) == 1


async def test_too_many_requests_are_503_at_once_but_health_answers():
    inference = SimulatedInference()
    inference.gate.clear()
    async with serving(inference=inference, settings=RestSettings(max_requests=1)) as gateway:
        first = asyncio.create_task(gateway.client.post(INFER, json=infer_body(1)))
        await waiting(inference, 1)
        refused = await gateway.client.post(INFER, json=infer_body(1))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "[http] max_requests" in refused.json()["error"]
        assert (await gateway.client.get("/v2/health/ready")).status_code == 200
        inference.gate.set()
        assert (await first).status_code == 200


async def test_too_many_bytes_at_once_are_503():
    inference = SimulatedInference()
    inference.gate.clear()
    settings = RestSettings(max_buffered_bytes=2 * len(BODY) - 1)
    async with serving(inference=inference, settings=settings) as gateway:
        first = asyncio.create_task(gateway.client.post(INFER, content=BODY))
        await waiting(inference, 1)
        refused = await gateway.client.post(INFER, content=pieces())
        assert refused.status_code == 503
        inference.gate.set()
        assert (await first).status_code == 200
        assert (await gateway.client.post(INFER, content=BODY)).status_code == 200


async def pieces():
    """Yield a body whose length nobody says before."""
    yield BODY


async def test_uploads_of_this_device_wait_for_their_turn():
    body = BODY + b" " * BODY_BYTES
    inference = SimulatedInference()
    inference.gate.clear()
    settings = RestSettings(max_body_bytes=len(body), max_buffered_bytes=4 * len(body))
    async with serving(inference=inference, settings=settings) as gateway:
        uploads = [asyncio.create_task(gateway.client.post(INFER, content=body, timeout=60)) for _ in range(16)]
        await waiting(inference, 2)  # each holds its body, and as much for its answer
        while gateway.frontend.requests.used < 16:
            await asyncio.sleep(0)
        assert len(inference.requests) == 2
        inference.gate.set()
        assert [each.status_code for each in await asyncio.gather(*uploads)] == [200] * 16
        assert not gateway.frontend.request_bytes.used


async def test_uploads_of_this_device_do_not_wait_for_ever():
    body = BODY + b" " * BODY_BYTES
    inference = SimulatedInference()
    inference.gate.clear()
    settings = RestSettings(max_body_bytes=len(body), max_buffered_bytes=3 * len(body), body_timeout_s=0.5)
    async with serving(inference=inference, settings=settings) as gateway:
        first = asyncio.create_task(gateway.client.post(INFER, content=body, timeout=60))
        await waiting(inference, 1)
        refused = await gateway.client.post(INFER, content=body, timeout=60)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "max_buffered_bytes" in refused.json()["error"]
        inference.gate.set()
        assert (await first).status_code == 200
        assert not gateway.frontend.request_bytes.used


async def test_too_many_connections_are_turned_away():
    inference = SimulatedInference()
    inference.gate.clear()
    async with serving(inference=inference, settings=RestSettings(max_connections=1)) as gateway:
        first = asyncio.create_task(gateway.client.post(INFER, json=infer_body(1)))
        await waiting(inference, 1)
        reader, writer = await gateway.connect()
        status, body = await answer(reader)
        assert (status, body) == (503, {"error": "too many connections; try again later"})
        await hangs_up(writer)
        inference.gate.set()
        assert (await first).status_code == 200


async def test_a_connection_that_is_kept_alive_gives_way():
    async with serving(settings=RestSettings(max_connections=1)) as gateway:
        assert (await gateway.client.get("/v2")).status_code == 200
        reader, writer = await gateway.connect()
        writer.write(request())
        assert (await answer(reader))[0] == 200
        await hangs_up(writer)
        assert (await gateway.client.get("/v2")).status_code == 200


async def test_a_client_that_does_not_read_is_cut_off():
    size = 32 * MIB
    item = {"name": "x", "datatype": "UINT8", "shape": [1, size], "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [item], "parameters": {"binary_data_output": True}}).encode()
    async with serving(settings=RestSettings(write_timeout_s=0.1)) as gateway:
        reader, writer = await gateway.connect()
        sent = request(head + bytes(size), f"Inference-Header-Content-Length: {len(head)}")
        writer.write(sent.replace(b"identity_fp32", b"identity_uint8"))
        await writer.drain()
        while gateway.frontend._listeners._state.connections:
            await asyncio.sleep(0.01)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(size)
        await hangs_up(writer)


async def test_pipelined_requests_are_answered_in_order():
    async with serving() as gateway:
        reader, writer = await gateway.connect()
        writer.write(request() + b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await answer(reader))[0] == 200
        assert await answer(reader) == (200, {"live": True})
        await hangs_up(writer)


async def test_stopping_lets_requests_finish():
    inference = SimulatedInference()
    inference.gate.clear()
    async with serving(inference=inference) as gateway:
        running = asyncio.create_task(gateway.client.post(INFER, json=infer_body(1)))
        await waiting(inference, 1)
        stopping = asyncio.create_task(gateway.frontend.stop(30))
        await asyncio.sleep(0)
        inference.gate.set()
        assert (await running).status_code == 200
        await stopping
        with pytest.raises(ConnectionRefusedError):
            await gateway.connect()


async def test_stopping_cuts_off_what_takes_too_long():
    inference = SimulatedInference()
    inference.gate.clear()
    async with serving(inference=inference) as gateway:
        running = asyncio.create_task(gateway.client.post(INFER, json=infer_body(1)))
        await waiting(inference, 1)
        await gateway.frontend.stop(0.01)
        cut = await running
        assert (cut.status_code, cut.json()) == (503, {"error": "the gateway is stopping; ask again later"})
        assert inference.cancelled == 1
