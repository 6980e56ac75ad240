"""Fast path of single rows: the same publications and acknowledgements as on the usual path, whatever comes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.errors import RequestError
from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.serving.frontends.mqtt.inbound.payloads.tensors import document_tensor
from gateway.serving.frontends.mqtt.inbound.routing import Router
from gateway.serving.frontends.mqtt.messages import Message, OutgoingPublish
from gateway.serving.frontends.mqtt.outbound.context import RouteContext
from gateway.serving.frontends.mqtt.pipeline import samples
from gateway.serving.frontends.mqtt.pipeline.fast_path import FastPath, RowFormat, is_suited
from gateway.serving.frontends.mqtt.pipeline.pipeline import MessagePipeline
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings
from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from tests.simulators.engine_rig import Rig, manifest, quick_rig

SINGLE = MqttRoute("single", ("single/+",), "m", sensor="topic[1]")
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.integers(-(2**24), 2**24)
odd: st.SearchStrategy[Any] = st.sampled_from([True, None, "1", 1e39, -1e300, 10**400, [], [[]], {}, {"a": 1}])
documents = numbers | odd | st.lists(numbers | odd, max_size=3) | st.lists(st.lists(numbers, max_size=2), max_size=2)
payloads = documents.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=8)
messages = st.tuples(
    payloads,
    st.integers(0, 1),
    st.sampled_from(["single/a", "single/b/c", "single/" + "x" * 2_000]),
    st.sampled_from(
        [{}, {"content_type": "application/json"}, {"content_type": "text/plain"}, {"user": (("id", "7"),)}]
    ),
)


class Broker:
    """Broker that takes everything at once."""

    full = False
    receives_since_ns = 0

    def __init__(self) -> None:
        self.published: list[tuple[str, int, Any]] = []
        self.acknowledged: list[int] = []

    def publish(self, publication: OutgoingPublish) -> bool:
        document = json.loads(publication.payload)
        if document.get("id") != "7":
            document.pop("id", None)
        self.published.append((publication.topic, publication.qos, document))
        if publication.taken is not None:
            publication.taken(0)
        return True

    def acknowledge(self, message: Message) -> None:
        if message.qos:
            self.acknowledged.append(message.mid)

    def pause(self, *, on: bool) -> None: ...


class Gateway:
    """A pipeline with a route to the model of a rig; `takes` counts the messages of the fast path."""

    def __init__(self, rig: Rig, route: MqttRoute = SINGLE, **bounds: Any) -> None:
        self.broker, self.counters = Broker(), Counter[str]()
        limits = MqttSettings(url="mqtt://x", route=(route,), **bounds)
        context = RouteContext(rig.engine, limits, "gw", self.broker, self.counters)
        self.pipeline = MessagePipeline(context, Router(limits.route, "gw"))
        self.mid = 0

    @property
    def fast(self) -> FastPath:
        return self.pipeline._samples._fast["single"]

    def send(self, payload: bytes, qos: int = 1, topic: str = "single/a", **properties: Any) -> None:
        self.mid += 1
        self.pipeline.receive(Message(topic, payload, qos, mid=self.mid * qos, epoch=1, **properties))

    async def settled(self) -> None:
        while self.pipeline.gauges["running"] or self.pipeline.gauges["queued"]:
            await asyncio.sleep(0)


async def play(sent: list[tuple[bytes, int, str, dict[str, Any]]]) -> Broker:
    """Return what a gateway published and acknowledged, in any order."""
    rig = await quick_rig()
    gateway = Gateway(rig)
    gateway.send(b"[1]")
    await gateway.settled()
    for payload, qos, topic, properties in sent:
        gateway.send(payload, qos, topic, **properties)
    await gateway.settled()
    await rig.repository.close()
    gateway.broker.published.sort(key=repr)
    gateway.broker.acknowledged.sort()
    return gateway.broker


@settings(max_examples=60)
@given(st.lists(messages, max_size=6))
def test_both_paths_publish_and_acknowledge_the_same(sent: list[tuple[bytes, int, str, dict[str, Any]]]) -> None:
    fast = asyncio.run(play(sent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "is_suited", lambda _: False)
        usual = asyncio.run(play(sent))
    assert fast.published == usual.published
    assert fast.acknowledged == usual.acknowledged


@pytest.mark.parametrize("datatype", [Datatype.FP32, Datatype.FP64, Datatype.INT8, Datatype.UINT16, Datatype.INT64])
@given(st.lists(numbers | odd | st.integers(-(2**70), 2**70), min_size=3, max_size=3))
def test_a_row_is_packed_as_a_tensor_of_it(datatype: Datatype, row: list[Any]) -> None:
    spec, payload = TensorSpec("x", datatype, (-1, 3)), json.dumps(row).encode()
    packed = RowFormat(Tensor(datatype, np.zeros((1, 3), datatype.dtype))).read(payload)
    try:
        expected = document_tensor(json.loads(payload), spec).array.tobytes()
    except RequestError:
        assert packed is None
    else:
        assert packed == expected


@pytest.mark.asyncio
async def test_messages_after_the_first_become_bytes_and_share_a_run() -> None:
    rig = await quick_rig()
    gateway = Gateway(rig)
    for value in range(4):
        gateway.send(b"[%d]" % value)
    assert gateway.fast.pending == 0  # they wait behind the first one, which took the usual path
    await gateway.settled()
    for value in range(4):
        gateway.send(b"%d" % value)
    assert gateway.fast.pending == 4
    assert gateway.pipeline.gauges["running"] == 4
    assert await gateway.pipeline.drain(15.0)
    assert gateway.counters["answered"] == 8
    assert rig.session.runs[-1] == [0.0, 1.0, 2.0, 3.0]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_payload_beyond_the_configured_limit_is_refused_on_either_path() -> None:
    rig = await quick_rig()
    gateway = Gateway(rig, max_payload_bytes=8)
    for payload in (b"[1]", b"[1]", b"[1       ]"):
        gateway.send(payload)
        await gateway.settled()
    assert [document.get("fault") for _, _, document in gateway.broker.published] == [None, None, "TOO_LARGE"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_repetition_is_not_run_again() -> None:
    rig = await quick_rig()
    gateway = Gateway(rig)
    gateway.send(b"[1]")
    await gateway.settled()
    for epoch in (1, 2):
        message = Message("single/a", b"[2]", 1, dup=epoch == 2, mid=9, epoch=epoch)
        gateway.pipeline.receive(message)
        await gateway.settled()
    assert gateway.counters["duplicates"] == 1
    assert len(gateway.broker.published) == 2
    assert gateway.broker.acknowledged == [1, 9, 9]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_another_version_answers_from_its_first_message_on() -> None:
    rig = await quick_rig()
    gateway = Gateway(rig)
    for _ in range(2):
        gateway.send(b"[1]")
        await gateway.settled()
    gateway.send(b"[1]")
    assert gateway.fast.pending == 1
    await rig.serve(manifest(version="2"))
    for _ in range(2):
        gateway.send(b"[1]")
        await gateway.settled()
    assert [document["version"] for _, _, document in gateway.broker.published] == ["1", "1", "1", "2", "2"]
    assert sorted(gateway.broker.acknowledged) == [1, 2, 3, 4, 5]
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("burst", [1, 130])
async def test_another_version_does_not_change_the_order_of_messages(burst: int) -> None:
    """The engine gives those in its batch back; more than a batch holds wait behind them."""
    rig = await quick_rig()
    gateway = Gateway(rig)
    gateway.send(b"[0]")
    await gateway.settled()
    rig.engine.hold()
    serving = asyncio.ensure_future(rig.serve(manifest(version="2")))
    while not serving.done():
        for _ in range(burst if gateway.mid < 20_000 else 0):  # a busy machine takes long: packet ids have 16 bits
            gateway.send(b"[%d]" % gateway.mid)
        await asyncio.sleep(0)
    rig.engine.release()
    await gateway.settled()
    answered = [document["outputs"][0]["data"] for _, _, document in gateway.broker.published]
    assert answered == [[value] for value in range(gateway.mid)]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_messages_of_a_run_that_fails_are_answered_on_the_usual_path() -> None:
    rig = await quick_rig()
    gateway = Gateway(rig)
    gateway.send(b"[1]")
    await gateway.settled()
    rig.session.rejected = 3.0
    for value in (2, 3, 4):
        gateway.send(b"[%d]" % value)
    await gateway.settled()
    faults = [document.get("fault") for _, _, document in gateway.broker.published]
    assert sorted(faults, key=str) == ["INVALID", None, None, None]
    assert sorted(gateway.broker.acknowledged) == [1, 2, 3, 4]
    await rig.repository.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"channel": (MqttChannel("a"),)},
        {"size_rows": 4},
        {"sensor": "payload.id"},
        {"content_type": "text/csv"},
        {"rows": "values"},
        {"record_name": "id", "record_value": "v"},
    ],
)
def test_a_route_that_needs_more_than_a_row_has_no_fast_path(changes: dict[str, Any]) -> None:
    assert is_suited(SINGLE)
    assert not is_suited(MqttRoute("single", ("single/+",), "m", **{"sensor": "topic[1]", **changes}))
