"""Choice of a broker and a route by the options of `routes` and `watch`, and the connection to it."""

from __future__ import annotations

import argparse
import asyncio
import socket

import pytest

from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.serving.cli.mqtt_choice import select_broker, select_route
from gateway.serving.cli.subscriber import subscribed
from gateway.serving.config import Config, parse_config

PLANT = '[[mqtt.broker]]\nname = "plant"\nurl = "mqtts://plant"\n'
ROUTE = '[[mqtt.route]]\nname = "{0}"\ntopics = ["a/+"]\nmodel = "m"\nbroker = "{1}"\n'
BOTH = '[mqtt]\nurl = "mqtt://here"\n' + PLANT + ROUTE.format("here", "default") + ROUTE.format("there", "plant")


def config(text: str) -> Config:
    return parse_config(text, "")


def options(**given: str) -> argparse.Namespace:
    return argparse.Namespace(**({"broker": None, "route": None, "mqtt": None} | given))


@pytest.mark.parametrize(
    ("text", "given", "name", "url"),
    [
        (BOTH, {}, "default", "mqtt://here"),
        (BOTH, {"broker": "plant"}, "plant", "mqtts://plant"),
        (BOTH, {"route": "there"}, "plant", "mqtts://plant"),
        (BOTH, {"route": "there", "mqtt": "mqtt://x"}, "plant", "mqtt://x"),
        (PLANT, {}, "plant", "mqtts://plant"),
    ],
)
def test_a_broker_is_found(text: str, given: dict[str, str], name: str, url: str) -> None:
    found = select_broker(config(text), options(**given))
    assert (found.name, found.settings.url) == (name, url)
    assert all(route.broker == name for route in found.settings.route)


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        ("", {}, r"^mqtt\.url: no broker is configured; set it, or use --mqtt"),
        (BOTH, {"broker": "x"}, "^--broker: no broker is called 'x'; known are default, plant"),
        (
            BOTH,
            {"broker": "plant", "route": "here"},
            "no route is called 'here'; did you mean .there.*are there",
        ),
        (PLANT + PLANT.replace("plant", "b"), {}, r"^--broker: \[mqtt\] has no url; name another broker: plant, b"),
    ],
)
def test_a_broker_that_is_not_found_is_named(text: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        select_broker(config(text), options(**given))


CAMERA = '[[camera]]\nname = "door"\nurl = "rtsp://h/1"\nmodel = "m"\n'
OF_CAMERAS = BOTH + '[[mqtt.route]]\nname = "yard"\ncameras = ["door"]\nbroker = "plant"\n' + CAMERA


@pytest.mark.parametrize(
    ("text", "route", "name"), [(OF_CAMERAS, "yard", "plant"), (BOTH + CAMERA, "camera", "default")]
)
def test_routes_of_cameras_are_watched(text: str, route: str, name: str) -> None:
    found = select_broker(config(text), options(route=route))
    assert found.name == name
    assert route in {each.name for each in found.settings.route}


def test_routes_of_cameras_take_no_messages() -> None:
    with pytest.raises(ConfigurationError, match="route 'yard' takes frames of cameras, not messages"):
        select_route(config(OF_CAMERAS), "yard", "")
    with pytest.raises(ConfigurationError, match="name the route with --route or --topic; known are here, there"):
        select_route(config(OF_CAMERAS), "", "")
    only = config('[mqtt]\nurl = "mqtt://here"\n' + ROUTE.format("here", "default") + CAMERA)
    assert select_route(only, "", "").name == "here"


def test_a_topic_of_two_brokers_needs_the_route_or_the_broker() -> None:
    both = config(BOTH)
    with pytest.raises(ConfigurationError, match="name one with --route: here, there"):
        select_route(both, "", "a/1")
    assert select_route(both, "", "a/1", "plant").name == "there"
    assert select_route(both, "here", "a/1").name == "here"
    assert select_route(both, "", "", "plant").name == "there"


def test_a_broker_that_refuses_at_once_is_not_waited_for() -> None:
    """The limit of an attempt, two hours for both, is longer than that of a test."""

    async def connect() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            text = f'[mqtt]\nurl = "mqtt://127.0.0.1:{server.getsockname()[1]}"\nconnect_timeout_s = 3600\n'
        with pytest.raises(UnreachableError, match="cannot be used: the check connection is not made"):
            async with subscribed(select_broker(config(text), options()), "check", "c", (), lambda _: None):
                raise AssertionError("it is connected")

    asyncio.run(connect())
