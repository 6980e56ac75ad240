"""Topics that answers may go to, and settings that an operator may write."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain.errors import ConfigurationError, Fault, RequestError
from gateway.domain.tensor import finish
from gateway.frontends.mqtt.frontend import MqttFrontend
from gateway.frontends.mqtt.messages import Message
from gateway.frontends.mqtt.route_settings import MqttRoute
from gateway.frontends.mqtt.routes.requests import Requests
from gateway.frontends.mqtt.routes.routing import Router
from gateway.frontends.mqtt.settings import MqttSettings, broker_of
from tests.simulators.mqtt_gateway import simulated

ASK = "edge/gw/infer/identity_fp32"
QUESTION = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1],"data":[1]}]%s}'


def requests(**settings: Any) -> Requests:
    route = MqttRoute("loop", ("replies/loop/#",), "model")
    return Requests(MqttSettings(**settings), "gw", Router((route,), "gw"))


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
    ],
)
def test_answers_go_nowhere_else(topic: str, fault: Fault) -> None:
    with pytest.raises(RequestError) as refused:
        requests().reply(Message(ASK, b"", response_topic=topic))
    assert refused.value.fault is fault


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
        ("max_inflight", 70_000),
        ("max_result_bytes", 0),
        ("reconnect_min_s", 0.0),
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
        ("content_type", "text/html"),
        ("qos", 2),
        ("hop_rows", -1),
        ("max_sensors", 0),
        ("idle_expiry_s", float("nan")),
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
