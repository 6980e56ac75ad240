"""Hostile payloads: whatever a message holds, a route makes inputs of it or refuses it as INVALID, within bounds."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest, Preprocess, TensorSpec
from gateway.common.domain.tensor import Datatype, finish
from gateway.serving.frontends.mqtt.inbound.decoder import RouteDecoder
from gateway.serving.frontends.mqtt.inbound.payloads.content import read_content_type
from gateway.serving.frontends.mqtt.inbound.reading import INLINE_BYTES, SEARCHED_LIMIT_BYTES
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.pipeline.work import INLINE_STEPS, begun
from gateway.serving.frontends.mqtt.settings.presets import PRESETS, SPARKPLUG
from gateway.serving.frontends.mqtt.settings.route import CONTENT_TYPES, PROTOBUF, MqttChannel, MqttRoute
from tests.simulators.inference import VARIANT
from tests.simulators.mqtt_gateway import digits, motion

TOPIC = "spBv1.0/plant/DDATA/edge/press"
FORMATS = [media for media in CONTENT_TYPES if media not in PROTOBUF]
payloads = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=30).map(str.encode),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "object", "values", "n", "v"]), inner)
        ),
        max_leaves=8,
    ).flatmap(lambda tree: st.sampled_from([json.dumps(tree).encode(), cbor2.dumps(tree)])),
)


def table(datatype: Datatype = Datatype.FP32) -> ModelManifest:
    """Return a model of rows with two numbers."""
    x, y = (TensorSpec(name, datatype, (-1, 2)) for name in ("x", "y"))
    return ModelManifest("table", "1", (x,), (y,), (VARIANT,))


def outcome(decoder: RouteDecoder, payload: bytes, content_type: str = "") -> Any:
    """Return the inputs that a payload gives, or None if it is refused as INVALID."""
    message = Message(TOPIC, payload, content_type=content_type, arrived_ns=1)
    reading = decoder.begin(message)
    try:
        return list(decoder.complete(message, reading, finish(decoder.steps(message, reading))).ready)
    except RequestError as refused:
        if refused.fault is Fault.INVALID:
            return None
        raise


def decoder(manifest: ModelManifest, **settings: Any) -> RouteDecoder:
    return RouteDecoder(MqttRoute("r", ("#",), "m", **settings), lambda *_: manifest, Counter())


ROUTES = {
    **{
        name: decoder(table(), preset=name, channel=(MqttChannel("a"), MqttChannel('"b c".d')))
        for name in PRESETS
        if name != "frigate-snapshot"
    },
    "snapshot": decoder(digits(), preset="frigate-snapshot"),
    "packed": decoder(table(), struct="<hf", struct_path="a", channel=(MqttChannel("[0]"), MqttChannel("[1]"))),
    "integers": decoder(table(Datatype.INT8), channel=(MqttChannel("a"), MqttChannel("n", missing="zero"))),
    "windows": decoder(motion(), channel=tuple(MqttChannel(path, missing="last") for path in ("a", "n", "v"))),
    "by name": decoder(motion()),
    "by place": decoder(table()),
}


@pytest.mark.parametrize("name", ROUTES)
@given(payload=payloads, content_type=st.sampled_from(["", *FORMATS, "text/csv; header=present", "x/y"]))
def test_any_payload_is_inputs_or_a_refusal(name: str, payload: bytes, content_type: str) -> None:
    for ready in outcome(ROUTES[name], payload, content_type) or ():
        array = ready.tensor.array
        assert array.dtype.kind == "O" or np.isfinite(array).all()


def test_paths_with_operators_take_payloads_up_to_a_bound() -> None:
    searching = decoder(table(), channel=(MqttChannel("a || b"), MqttChannel("c")))
    plain = decoder(table(), channel=(MqttChannel("a"), MqttChannel("c")))
    payload = json.dumps({"a": 1, "c": 2, "x": "x" * SEARCHED_LIMIT_BYTES}).encode()
    assert outcome(plain, payload)
    assert outcome(searching, payload[:40].replace(b"xxx", b"") + b'"}') is not None
    assert outcome(searching, payload) is None
    content = read_content_type("application/json")
    assert (plain.inline_bytes(content), searching.inline_bytes(content)) == (32_768, 1_024)


def test_types_that_are_read_in_one_long_step_have_smaller_limits() -> None:
    plain = decoder(table(), channel=(MqttChannel("a"), MqttChannel("c")))
    searching = decoder(table(), channel=(MqttChannel("a || b"), MqttChannel("c")))
    costly = {SPARKPLUG, "text/csv", "application/senml+json", "application/senml+cbor"}
    for media in CONTENT_TYPES:
        content = read_content_type(f"{media}; header=present")
        limit = 1_024 if media in PROTOBUF else 2_048 if media in costly else 32_768
        assert (plain.inline_bytes(content), searching.inline_bytes(content)) == (limit, 1_024)


def test_one_object_of_long_arrays_is_left_for_a_thread() -> None:
    texts = tuple(MqttChannel(f"c{index}") for index in range(59))
    route = decoder(table(), channel=(MqttChannel("a"), *texts))
    document = {"a": [0] * 10_000, **{channel.path: "1" for channel in texts}}
    message = Message(TOPIC, json.dumps(document, separators=(",", ":")).encode())
    assert len(message.payload) < INLINE_BYTES
    assert begun(route.steps(message, route.begin(message))) is None


def test_many_values_are_left_for_a_thread() -> None:
    route = decoder(table(), channel=(MqttChannel("a", missing="skip"), MqttChannel("b", missing="skip")))
    for rows, is_short in ((256, True), (256 * INLINE_STEPS, False)):
        message = Message(TOPIC, json.dumps([{"a": 1, "b": 2}] * rows).encode())
        decoded = begun(route.steps(message, route.begin(message)))
        assert (decoded is not None) is is_short


def test_a_step_that_raises_refuses_the_message() -> None:
    route = decoder(table())
    message = Message(TOPIC, b"{")
    with pytest.raises(RequestError, match="application/json"):
        begun(route.steps(message, route.begin(message)))


def test_an_image_needs_a_model_of_images() -> None:
    image = TensorSpec("x", Datatype.FP32, (-1, 3), preprocess=Preprocess(("jpeg",)))
    manifest = ModelManifest("m", "1", (image,), (image,), (VARIANT,))
    assert outcome(decoder(manifest, content_type="image/jpeg"), b"\xff\xd8")
    assert outcome(decoder(table(), content_type="image/jpeg"), b"\xff\xd8") is None
    assert outcome(decoder(manifest, channel=(MqttChannel("a"),)), b"\xff\xd8", "image/jpeg") is None
