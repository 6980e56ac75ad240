"""The guide to payloads: each route of it is read, each message of it becomes the rows that it names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype, finish
from gateway.serving.config import parse_config
from gateway.serving.frontends.mqtt.inbound.decoder import RouteDecoder
from gateway.serving.frontends.mqtt.inbound.routing import Router
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.settings.presets import PRESETS
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.settings.topic_filters import read_filter
from tests.simulators.inference import VARIANT

GUIDE = (Path(__file__).parents[5] / "docs/pages/howto/payloads.md").read_text("utf-8")
PART = re.compile(
    r"```toml\n(?P<route>.*?)\n```"
    r"|Message on `(?P<topic>[^`]+)`:\n```\w+\n(?P<payload>.*?)\n```\nRows? of `(?P<sensor>[^`]+)`: (?P<rows>[^\n]+)",
    re.DOTALL,
)
"""A route of the guide, or a message with its rows."""


@dataclass(frozen=True)
class Example:
    """Message of the guide, its sensor, and its rows."""

    topic: str
    payload: str
    sensor: str
    rows: list[list[float]]


def examples() -> Iterator[tuple[MqttRoute, list[Example]]]:
    """Yield each route of the guide with the messages that follow it."""
    route, found = None, list[Example]()
    for part in PART.finditer(GUIDE):
        if part["route"]:
            if route is not None:
                yield route, found
            (route,) = parse_config(part["route"], "guide").mqtt.route
            found = []
        else:
            written = [] if part["rows"] == "none" else part["rows"].split("; ")
            rows = [[float(value) for value in row.split(", ")] for row in written]
            found.append(Example(part["topic"], part["payload"], part["sensor"], rows))
    assert route is not None
    yield route, found


EXAMPLES = tuple(examples())


def model(channels: int) -> ModelManifest:
    """Return a model that takes rows of `channels` numbers."""
    x, y = (TensorSpec(name, Datatype.FP64, (-1, channels)) for name in ("x", "y"))
    return ModelManifest("model", "1", (x,), (y,), (VARIANT,))


def read(decoder: RouteDecoder, topic: str, payload: bytes) -> list[Any]:
    """Return the inputs that a message gives."""
    message = Message(topic, payload, arrived_ns=1_000_000_000)
    reading = decoder.begin(message)
    return list(decoder.complete(message, reading, finish(decoder.steps(message, reading))).ready)


@pytest.mark.parametrize(("route", "messages"), EXAMPLES, ids=[route.preset or "none" for route, _ in EXAMPLES])
def test_a_message_of_the_guide_becomes_its_rows(route: MqttRoute, messages: list[Example]) -> None:
    manifest = model(len(route.channel))
    decoder, router = RouteDecoder(route, lambda *_: manifest, Counter()), Router([route], "gw")
    for example in messages:
        assert router.routes(example.topic) == (route,)
        inputs = read(decoder, example.topic, example.payload.encode())
        assert [ready.sensor for ready in inputs] == [example.sensor] * len(inputs)
        rows = [row for ready in inputs for row in ready.tensor.array.tolist()]
        assert len(rows) == len(example.rows)
        np.testing.assert_allclose(rows or [[]], example.rows or [[]], rtol=1e-12)


def test_every_preset_has_an_example_on_its_topics() -> None:
    shown = {route.preset: route.topics for route, _ in reversed(EXAMPLES)}
    named = set(re.findall(r'`preset = "([\w-]+)"`', GUIDE))
    assert set(PRESETS) == (set(shown) | named) - {""}
    for name, topics in shown.items():
        if name:
            assert read_filter(PRESETS[name].topics[0]).overlaps(read_filter(topics[0]))
