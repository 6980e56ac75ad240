"""Labels of an answer while several versions of a model share the requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import cast

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest, Window
from gateway.common.domain.tensor import finish
from gateway.serving.frontends.mqtt.inbound.decoder import RouteDecoder
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.outbound.contents import ResultPlan
from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from tests.simulators.mqtt_gateway import motion, moves

LABELS, OTHERS = ("still", "walk"), ("walk", "still")


def test_an_answer_gets_the_labels_of_the_version_that_gave_it() -> None:
    served = {"": moves(), "1": moves(), "2": moves("2", OTHERS)}

    def describe(_model: str, version: str) -> ModelManifest:
        if version not in served:
            raise RequestError(Fault.NOT_FOUND, "gone")
        return served[version]

    feed = RouteDecoder(MqttRoute("r", ("t",), "moves"), describe, Counter())
    message = Message("t", b"[1, 2]")
    reading = feed.begin(message)
    (ready,) = feed.complete(message, reading, finish(feed.steps(message, reading))).ready
    assert feed.plan(ready, "1").labels == LABELS
    assert feed.plan(ready, "2").labels == OTHERS
    served["2"] = moves("2", LABELS)  # staged again, with other content
    assert feed.plan(ready, "2").labels == LABELS
    del served["2"]
    assert feed.plan(ready, "2") == ResultPlan()  # nothing is known of it: outputs by name


def test_windows_whose_channels_have_another_order_begin_again() -> None:
    """Rows of two orders in one window would be mixed."""
    served = {"": motion()}
    route = MqttRoute("r", ("t",), "motion", channel=tuple(MqttChannel(name, name=name) for name in "xyz"))
    feed = RouteDecoder(route, lambda _model, _version: served[""], Counter())
    message = Message("t", b'{"x": 1, "y": 2, "z": 3}')

    def inputs() -> list[list[list[float]]]:
        reading = feed.begin(message)
        ready = feed.complete(message, reading, finish(feed.steps(message, reading))).ready
        return [each.window.rows.tolist() for each in ready if each.window]

    assert [inputs() for _ in range(3)] == [[], [], []]
    window = cast("Window", served[""].window)
    served[""] = replace(served[""], window=replace(window, channels=("z", "y", "x")))
    assert [inputs() for _ in range(4)] == [[], [], [], [[[3, 2, 1]] * 4]]
