"""The examples of the page on windows: the gateway accepts them, and they do what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import tomllib

from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.serving.cli.routes import RouteCheck, check
from gateway.serving.config import parse_config
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from tests.simulators.inference import VARIANT

PAGE = (Path(__file__).resolve().parents[5] / "docs" / "pages" / "howto" / "windows.md").read_text()
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
ROUTES = {route.name: route for text in EXAMPLES for route in parse_config(text, "page").mqtt.route}


def checked(route: MqttRoute, payload: object, topic: str, channels: int) -> RouteCheck:
    x, y = (TensorSpec(name, Datatype.FP32, (-1, route.size_rows, channels)) for name in "xy")
    message = Message(topic, json.dumps(payload).encode(), wall_ns=1_800_000_000 * 10**9)
    return check(route, ModelManifest(route.model, "1", (x,), (y,), (VARIANT,)), message)


def test_each_example_is_a_route() -> None:
    assert all(tomllib.loads(text)["mqtt"]["route"] for text in EXAMPLES)
    assert set(ROUTES) == {"drills", "pumps", "wrists", "meters"}


@pytest.mark.parametrize(
    ("rows", "windows"), [(30, ((30, 470),)), (19, ()), (510, ((500, 0),)), (520, ((500, 0), (20, 480)))]
)
def test_a_session_is_padded_split_or_dropped(rows: int, windows: tuple[tuple[int, int], ...]) -> None:
    assert checked(ROUTES["drills"], [[1.0]] * rows, "drills/left/vibration", 1).windows == windows


def test_a_window_by_time_has_its_rows_at_a_fixed_rate() -> None:
    samples = [{"t": 1_700_000_000 + number * 0.25, "p": number} for number in range(61)]
    assert checked(ROUTES["pumps"], samples, "pumps/a/pressure", 1).inputs == 2


def test_a_joined_message_has_its_value_under_the_name_of_its_topic() -> None:
    found = checked(ROUTES["wrists"], {"t": 1_700_000_000_123, "v": 0.1}, "imu/left/x", 3)
    assert (found.problem, found.sensor, found.stamps) == ("", "left", {"time": ["2023-11-14T22:13:20.123Z"]})


def test_a_gap_in_the_numbers_begins_another_window() -> None:
    samples = [{"n": number, "watts": 1} for number in (*range(59), *range(70, 130))]
    assert checked(ROUTES["meters"], samples, "meters/a", 1).inputs == 1
