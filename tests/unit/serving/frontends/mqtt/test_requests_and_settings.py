"""Topics that answers may go to, and settings that an operator may write."""

from __future__ import annotations

import json
import struct
from typing import Any

import cbor2
import msgspec
import pytest

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype, finish
from gateway.serving.domain.infer import InferResponse
from gateway.serving.frontends.mqtt.frontend import MqttFrontend
from gateway.serving.frontends.mqtt.inbound.requests import Requests
from gateway.serving.frontends.mqtt.inbound.routing import Router
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.settings.broker import HomeAssistantSettings, MqttSettings, broker_of
from gateway.serving.frontends.mqtt.settings.results import ResultSettings
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.settings.rules import RuleSettings
from tests.simulators.inference import VARIANT, SimulatedInference
from tests.simulators.mqtt_gateway import simulated

ASK = "edge/gw/infer/identity_fp32"
QUESTION = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1],"data":[1]}]%s}'


def requests(*manifests: ModelManifest, **settings: Any) -> Requests:
    result = ResultSettings(topic="replies/results/{sensor}")
    route = MqttRoute("loop", ("replies/loop/#",), "model", result=result, rule=(RuleSettings("r", topic="alarms"),))
    return Requests(MqttSettings(**settings), "gw", Router((route,), "gw"), SimulatedInference(manifests).describe)


@pytest.mark.parametrize("topic", ["replies/a", "edge/gw/reply/a", "anything/else"])
def test_answers_go_where_the_asker_says(topic: str) -> None:
    reply = requests().reply(Message(ASK, b"", response_topic=topic, correlation=b"c"))
    assert (reply.topic, reply.correlation) == (topic, b"c")


@pytest.mark.parametrize(
    ("topic", "fault"),
    [
        ("", Fault.INVALID),
        ("replies/+", Fault.INVALID),
        ("replies/#", Fault.INVALID),
        ("replies/\0", Fault.INVALID),
        ("replies/" + "a" * 2000, Fault.INVALID),
        ("edge/other/infer/a", Fault.DENIED),
        ("edge/gw/status", Fault.DENIED),
        ("$SYS/a", Fault.DENIED),
        ("edge/gw/infer/a", Fault.DENIED),
        ("replies/loop/a", Fault.DENIED),
        ("replies/results/a", Fault.DENIED),
        ("alarms", Fault.DENIED),
    ],
)
@pytest.mark.parametrize("in_body", [False, True])
def test_answers_go_nowhere_else(topic: str, fault: Fault, in_body: bool) -> None:
    message = Message(ASK, asking(reply_topic=topic)) if in_body else Message(ASK, b"", response_topic=topic)
    with pytest.raises(RequestError) as refused:
        requests().reply(message)
    assert refused.value.fault is fault


def asking(**parameters: Any) -> bytes:
    return QUESTION % b',"parameters":%s' % json.dumps(parameters).encode()


def test_a_request_may_say_in_its_body_where_its_answer_goes() -> None:
    message = Message(ASK, asking(reply_topic="replies/a", correlation="c-7", timeout=5, other=1))
    reply = requests().reply(message)
    assert (reply.topic, reply.correlation, reply.body_correlation) == ("replies/a", b"c-7", "c-7")
    assert (message.response_topic, message.correlation) == ("replies/a", b"c-7"), "repetitions are found by them"
    request, encode = finish(requests().steps(message))
    assert request.ignored_parameters == 1
    answer = encode(InferResponse("m", "1", "", {}, parameters={"p": 1}))
    assert json.loads(answer or b"")["parameters"] == {"p": 1, "correlation": "c-7"}


def test_the_properties_of_mqtt_5_count_before_the_body() -> None:
    body = asking(reply_topic="replies/b", correlation="b")
    reply = requests().reply(Message(ASK, body, response_topic="replies/a", correlation=b"a"))
    assert (reply.topic, reply.correlation, reply.body_correlation) == ("replies/a", b"a", "")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"parameters": 1}',
        asking(reply_topic=1),
        asking(),
        asking(reply_topic="a", correlation="x" * 2000),
    ],
)
def test_a_body_without_a_usable_reply_topic_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        requests().reply(Message(ASK, body))
    assert refused.value.fault is Fault.INVALID


def test_a_body_above_the_limit_is_not_read_for_its_reply_topic() -> None:
    with pytest.raises(RequestError, match="no Response Topic"):
        requests(max_payload_bytes=50).reply(Message(ASK, asking(reply_topic="replies/a")))


def test_answers_repeat_the_trace_context() -> None:
    user = (("traceparent", "00-1-2-01"), ("x", "y"), ("tracestate", "a=b"))
    reply = requests().reply(Message(ASK, b"", response_topic="replies/a", user=user))
    assert reply.publication(b"", 1, lambda _: None).user == (user[0], user[2])


def test_answers_are_no_announcements_to_home_assistant() -> None:
    discovery = requests(home_assistant=HomeAssistantSettings(enabled=True))
    with pytest.raises(RequestError) as refused:
        discovery.reply(Message(ASK, b"", response_topic="homeassistant/device/a/config"))
    assert refused.value.fault is Fault.DENIED


def test_prefixes_narrow_where_answers_go() -> None:
    narrow = requests(response_prefixes=("replies/", "edge/<id>/reply/"))
    for topic in ("replies/a", "edge/gw/reply/a"):
        assert narrow.reply(Message(ASK, b"", response_topic=topic)).topic == topic
    with pytest.raises(RequestError, match="replies/"):
        narrow.reply(Message(ASK, b"", response_topic="Replies/a"))


def test_the_sooner_of_timeout_and_expiry_is_the_deadline() -> None:
    body = QUESTION % b',"parameters":{"timeout":2000000}'
    for expiry_s, deadline_ns in ((1, 1_000_000_007), (3, 2_000_000_007), (None, 2_000_000_007)):
        request, _ = finish(requests().steps(Message(ASK, body, arrived_ns=7, expiry_s=expiry_s)))
        assert request.deadline_ns == deadline_ns


BODY = {"id": "7", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2]}]}
RAW_BODY = {"inputs": [{**BODY["inputs"][0], "data": struct.pack("<2f", 1.5, 2)}]}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("content_type", "payload"),
    [
        ("application/cbor", cbor2.dumps(BODY)),
        ("application/cbor", cbor2.dumps(RAW_BODY)),
        ("application/vnd.acme+cbor", cbor2.dumps(BODY)),
        ("application/x-msgpack", msgspec.msgpack.encode(BODY)),
        ("application/msgpack", msgspec.msgpack.encode(RAW_BODY)),
        ("application/vnd.acme+json", json.dumps(BODY).encode()),
        ("application/octet-stream", struct.pack("<2f", 1.5, 2)),
    ],
)
def test_requests_may_have_other_formats(content_type: str, payload: bytes) -> None:
    x, y = (TensorSpec(name, Datatype.FP32, (-1, 2)) for name in "xy")
    row = ModelManifest("row", "1", (x,), (y,), (VARIANT,))
    message = Message("edge/gw/infer/row", payload, content_type=content_type, arrived_ns=7, expiry_s=1)
    request, encode = finish(requests(row).steps(message))
    assert (request.model, request.inputs["x"].array.tolist()) == ("row", [[1.5, 2]])
    assert request.deadline_ns == 1_000_000_007
    answer = InferResponse("row", "1", request.id, dict(request.inputs), "a")
    assert json.loads(encode(answer))["outputs"][0]["data"] == [1.5, 2]


def test_texts_of_requests_in_cbor_are_texts() -> None:
    item = {"name": "x", "datatype": "BYTES", "shape": [2], "data": ["a", "ü"]}
    topic = "edge/gw/infer/identity_bytes"
    ask = requests()
    request, _ = finish(ask.steps(Message(topic, cbor2.dumps({"inputs": [item]}), content_type="application/cbor")))
    assert request.inputs["x"].array.tolist() == [b"a", "ü".encode()]
    unfit = cbor2.dumps({"inputs": [{**item, "data": [b"a", b"b"]}]})
    with pytest.raises(RequestError, match="bytes is not JSON serializable"):
        finish(ask.steps(Message(topic, unfit, content_type="application/cbor")))


@pytest.mark.parametrize("document", [None, 7, [], {}, {"inputs": 7}, {"inputs": [7]}, {"inputs": [{"data": b"1"}]}])
def test_other_documents_are_no_requests(document: Any) -> None:
    with pytest.raises(RequestError, match="no inference request") as refused:
        finish(requests().steps(Message(ASK, cbor2.dumps(document), content_type="application/cbor")))
    assert refused.value.fault is Fault.INVALID


@pytest.mark.parametrize(("topic", "content_type"), [("edge/gw/infer/", ""), (ASK + "/1/2", ""), (ASK, "text/plain")])
def test_requests_are_json_on_the_infer_topics(topic: str, content_type: str) -> None:
    with pytest.raises(RequestError) as refused:
        finish(requests().steps(Message(topic, QUESTION % b"", content_type=content_type)))
    assert refused.value.fault is Fault.INVALID


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("url", "http://a"),
        ("url", "mqtt://"),
        ("url", "mqtt://u:p@a"),
        ("url", "mqtt://a:99999"),
        ("keepalive_s", 0),
        ("max_result_bytes", 0),
        ("cert", "c.pem"),
        ("password_file", "p"),
        ("response_prefixes", ("a/#",)),
    ],
)
def test_settings_that_cannot_work_are_refused(key: str, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^mqtt\."):
        MqttSettings(**{key: wrong})


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("name", "a/b"),
        ("topics", ()),
        ("model", ""),
        ("sensor", "topic[x]"),
        ("message_id", "topic[0]"),
        ("message_id", "payload."),
        ("content_type", "text/html"),
        ("qos", 2),
        ("hop_rows", -1),
        ("max_sensors", 0),
        ("model_away", "wait"),
        ("shape", (0,)),
        ("outputs", ("",)),
        ("outputs", ("y\n",)),
        ("outputs", ("y" * 257,)),
        ("outputs", ("y", "y")),
    ],
)
def test_routes_that_cannot_work_are_refused(key: str, wrong: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        MqttRoute(**({"name": "r", "topics": ("t",), "model": "m"} | {key: wrong}))
    assert refused.value.key == key


def test_an_id_must_fit_a_topic() -> None:
    for wrong in ("", "a/b", "a+", "x" * 200):
        with pytest.raises(ConfigurationError, match=r"gateway\.id"):
            MqttFrontend(simulated(), MqttSettings(url="mqtt://a"), wrong)


def test_ports_by_scheme() -> None:
    assert broker_of("mqtt://a").port == 1883
    assert broker_of("mqtts://a").port == 8883
    assert broker_of("mqtt://[::1]:7").host == "::1"


@pytest.mark.parametrize("url", ["mqtt://u:hunter2@a", "mqtt://u:p/hunter2@a", "mqtt://u:hunter2/p@a@b", "u:hunter2@b"])
def test_a_password_in_an_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError, match="set username and password_file") as refused:
        broker_of(url)
    assert "hunter2" not in str(refused.value)
