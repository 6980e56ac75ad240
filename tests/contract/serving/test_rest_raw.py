"""JSON requests that stay bytes from the socket to the run: a real server, and a real engine on simulated sessions."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import Datatype
from gateway.serving.frontends.rest_v2.direct import DirectInference, InferExchange
from gateway.serving.frontends.rest_v2.settings import RestSettings
from tests.simulators.engine_rig import Rig, X, Y, manifest, quick_rig
from tests.simulators.inference import SimulatedInference
from tests.simulators.rest_gateway import Gateway, infer_body, serving

pytestmark = pytest.mark.asyncio
USUAL = b"Expect: none\r\n"


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[InferExchange]:
    """Return the requests that are answered as bytes."""
    noted: list[InferExchange] = []
    answer = DirectInference.answer_raw

    def noting(self: DirectInference, token: InferExchange, *rest: Any) -> None:
        noted.append(token)
        answer(self, token, *rest)

    monkeypatch.setattr(DirectInference, "answer_raw", noting)
    return noted


@asynccontextmanager
async def served(model: ModelManifest | None = None, **settings: Any) -> AsyncIterator[tuple[Gateway, Rig]]:
    rig = await quick_rig(model)
    settings_of = RestSettings(**settings)
    async with serving(inference=cast("SimulatedInference", rig.engine), settings=settings_of) as gateway:
        yield gateway, rig


def post(body: object, *fields: bytes, model: str = "m") -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n".encode()
    return head + b"".join(fields) + b"\r\n" + content


async def ask(gateway: Gateway, *requests: bytes) -> list[tuple[set[bytes], bytes]]:
    """Return the lines of each response's head, and its content; each request comes after the answer before."""
    reader, writer = await gateway.connect()
    answers = []
    for request in requests:
        writer.write(request)
        answers.append(await response(reader))
    writer.close()
    return answers


async def response(reader: asyncio.StreamReader) -> tuple[set[bytes], bytes]:
    lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
    size = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
    return set(lines), await reader.readexactly(size)


@pytest.mark.parametrize(
    "body",
    [
        infer_body(1.5),
        infer_body(1.5, id='a"\\é'),
        infer_body(0.1, outputs=[{"name": "y"}]),
        infer_body(1e39),
        infer_body(1.5, parameters={"priority": 1}),
        infer_body(1.5, 2.5),
        infer_body("x"),  # type: ignore[arg-type]
        infer_body(float("nan")),
        infer_body(3e38),
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 1], "data": [[1], [2]]}]},
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 1], "data": [[1, 2]]}]},
        {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, 1], "data": [1]}]},
        {"inputs": [{"name": "z", "datatype": "FP32", "shape": [1, 1], "data": [1]}]},
        {"inputs": []},
        b"{",
    ],
)
async def test_both_ways_answer_the_same(body: object, collected: list[InferExchange]) -> None:
    async with served(cors_origins=("http://a",)) as (gateway, _):
        learn = post(infer_body(0))
        nested = post({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 1], "data": [1, 2]}]})
        answers = await ask(gateway, learn, nested, post(body), post(body), post(body, USUAL))
        assert answers[2] == answers[3] == answers[4]
        pools = gateway.frontend.requests, gateway.frontend.request_bytes
        assert [pool.used for pool in pools] == [0, 0]


async def test_known_requests_share_a_run_and_are_counted_as_others(collected: list[InferExchange]) -> None:
    async with served() as (gateway, rig):
        await ask(gateway, post(infer_body(0)))
        peers = [await gateway.connect() for _ in range(3)]
        rig.session.runs.clear()
        rig.engine.hold()  # as if all were read in one pass of the event loop
        for value, (_, writer) in enumerate(peers):
            writer.write(post(infer_body(value, id=f"{value}")))
        while rig.engine.statistics("m")[0].queued < 3:
            await asyncio.sleep(0)
            rig.engine.hold()
        rig.engine.release()
        for value, (reader, writer) in enumerate(peers):
            answer = json.loads((await response(reader))[1])
            assert (answer["id"], answer["outputs"][0]["data"]) == (f"{value}", [value])
            writer.close()
        assert rig.session.runs == [[0.0, 1.0, 2.0]]
        (counted,) = rig.engine.statistics("m")
        assert (counted.success.count, counted.executions, counted.inferences, counted.fail.count) == (4, 2, 4, 0)
        assert len(collected) == 3


async def test_a_run_that_fails_is_answered_as_usual(collected: list[InferExchange]) -> None:
    async with served(manifest(inputs=(replace(X, finite=True),))) as (gateway, rig):
        await ask(gateway, post(infer_body(0)))
        rig.session.rejected = 7.0
        quick, usual, fine = await ask(gateway, post(infer_body(7)), post(infer_body(7), USUAL), post(infer_body(8)))
        assert quick == usual
        assert b"out of range" in quick[1]
        assert json.loads(fine[1])["outputs"][0]["data"] == [8]
        assert len(collected) == 1


async def test_an_unloaded_model_is_unknown_again(collected: list[InferExchange]) -> None:
    async with served() as (gateway, rig):
        await ask(gateway, post(infer_body(0)), post(infer_body(1)))
        await rig.serve()
        quick, usual = await ask(gateway, post(infer_body(1)), post(infer_body(1), USUAL))
        assert quick == usual
        assert b"404" in next(iter(line for line in quick[0] if line.startswith(b"http/1.1")))
        assert len(collected) == 1


async def test_large_answers_and_compressed_ones_are_sent_as_usual(collected: list[InferExchange]) -> None:
    large, middle, little = (
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [rows, 100], "data": [0.5] * (100 * rows)}]}
        for rows in (13, 4, 1)
    )
    spec = [(replace(each, shape=(-1, 100)),) for each in (X, Y)]
    async with served(manifest(inputs=spec[0], outputs=spec[1])) as (gateway, _):
        accept = b"Accept-Encoding: gzip\r\n"
        await ask(gateway, post(large), post(middle), post(little))
        quick, usual = await ask(gateway, post(large), post(large, USUAL))
        assert quick == usual
        packed, plain, small = await ask(gateway, post(middle, accept), post(middle), post(little, accept))
        assert gzip.decompress(packed[1]) == plain[1]
        assert b"content-encoding: gzip" in packed[0]
        assert not any(line.startswith(b"content-encoding") for line in plain[0] | small[0])
        assert len(collected) == 4


async def test_who_leaves_before_its_answer_leaves_nothing(collected: list[InferExchange]) -> None:
    async with served() as (gateway, rig):
        await ask(gateway, post(infer_body(0)))
        _, writer = await gateway.connect()
        rig.engine.hold()
        writer.write(post(infer_body(1)))
        while not rig.engine.statistics("m")[0].queued:
            await asyncio.sleep(0)
            rig.engine.hold()
        writer.transport.abort()
        while gateway.frontend.requests.used:
            await asyncio.sleep(0)
            rig.engine.hold()
        rig.engine.release()
        assert gateway.frontend.request_bytes.used == 0
        assert await ask(gateway, post(infer_body(2)))
        assert len(collected) == 2


@pytest.mark.parametrize("datatype", [Datatype.INT64, Datatype.UINT8, Datatype.FP16, Datatype.FP64])
async def test_other_numbers_go_the_same_way(datatype: Datatype, collected: list[InferExchange]) -> None:
    body = {"inputs": [{"name": "x", "datatype": datatype.label, "shape": [1, 1], "data": [3]}]}
    spec = manifest(inputs=(replace(X, datatype=datatype),), outputs=(Y,))
    async with served(spec) as (gateway, _):
        first, second, usual = await ask(gateway, post(body), post(body), post(body, USUAL))
        assert first == second == usual
        assert len(collected) == 1
