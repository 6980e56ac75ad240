"""One gateway at several brokers: each has its own connections, routes, requests, status and journal."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.serving.frontends.mqtt.frontend import FOLDER, MqttFrontends
from gateway.serving.frontends.mqtt.journal.journal import FILE
from gateway.serving.frontends.mqtt.settings.broker import MqttBroker, MqttSettings, brokers
from gateway.serving.frontends.mqtt.settings.results import ResultSettings
from gateway.serving.frontends.mqtt.settings.route import MqttQuota, MqttRoute
from tests.simulators.authority import Authority
from tests.simulators.broker import Mosquitto, mosquitto
from tests.simulators.constants import settings_with
from tests.simulators.mqtt_gateway import FAST, ID, WAIT_S, echoed, simulated, until
from tests.simulators.mqtt_peer import peer

pytestmark = pytest.mark.asyncio
HERE = MqttRoute("here", ("single/+",), "identity_fp32", sensor="topic[1]")
THERE = MqttRoute("there", ("single/+",), "identity_fp32", sensor="topic[1]", broker="plant")
WAVES = MqttRoute("waves", ("wave/+",), "motion", sensor="topic[1]", broker="plant")
STATUS = f"edge/{ID}/status"
PLANT = f"edge/{ID}/results/there/a"


@asynccontextmanager
async def serving(
    url: str, plant: MqttBroker, *routes: MqttRoute, folder: Path | None = None, **settings: Any
) -> AsyncIterator[MqttFrontends]:
    """Run the frontends of two brokers until they are stopped."""
    fixed = MqttSettings(url=url, broker=(plant,), route=routes or (HERE, THERE))
    named = brokers(settings_with(fixed, **(FAST | settings)))
    frontends = MqttFrontends(simulated(), named, ID, folder)
    await frontends.start()
    try:
        yield frontends
    finally:
        await frontends.stop(5.0)


@asynccontextmanager
async def two(folder: Path) -> AsyncIterator[tuple[Mosquitto, Mosquitto]]:
    """Run two brokers."""
    places = folder / "a", folder / "b"
    for place in places:
        place.mkdir()
    async with mosquitto(places[0]) as first, mosquitto(places[1]) as second:
        yield first, second


def counted(frontends: MqttFrontends, broker: str) -> Mapping[str, float]:
    """Return the metrics of one broker by event, kind or reason."""
    samples = [one for one in frontends.samples() if one.labels["broker"] == broker]
    return {list(one.labels.values())[1]: one.value for one in samples}


async def test_each_broker_has_its_routes_requests_and_status(tmp_path: Path) -> None:
    async with (
        two(tmp_path) as (first, second),
        serving(first.url, MqttBroker("plant", second.url)) as frontends,
        peer(first.port) as here,
        peer(second.port) as there,
    ):
        await until(lambda: frontends.online)
        for one, route, value in ((here, "here", 1.0), (there, "there", 2.0)):
            await one.subscribe(f"edge/{ID}/#", "replies/x")
            assert (await one.next(STATUS)).payload == b"online"
            await one.publish("single/a", f"[{value}]")
            assert echoed(await one.next_json(f"edge/{ID}/results/{route}/a")) == value
            tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [value]}
            await one.publish(
                f"edge/{ID}/infer/identity_fp32", json.dumps({"inputs": [tensor]}), ResponseTopic="replies/x"
            )
            assert echoed(await one.next_json("replies/x")) == value
        assert counted(frontends, "default")["requests"] == counted(frontends, "plant")["requests"] == 1
        assert frontends.problem == ""


async def test_a_broker_that_is_killed_does_not_affect_the_other_one(tmp_path: Path) -> None:
    async with (
        two(tmp_path) as (first, second),
        serving(first.url, MqttBroker("plant", second.url)) as frontends,
        peer(second.port) as there,
    ):
        await until(lambda: frontends.online)
        await there.subscribe(PLANT)
        await first.kill()
        await until(lambda: not counted(frontends, "default")["connected"])
        assert not frontends.online
        assert frontends.problem.startswith("broker default: the ")
        assert "broker plant" not in frontends.problem
        for value in range(50):
            await there.publish("single/a", f"[{value}]")
            assert echoed(await there.next_json(PLANT)) == value
        assert counted(frontends, "plant")["connected"] == 1
        await first.start()
        await until(lambda: frontends.online)


async def test_a_broker_that_was_never_there_does_not_delay_the_other_one(tmp_path: Path) -> None:
    async with (
        mosquitto(tmp_path) as first,
        serving(first.url, MqttBroker("plant", "mqtt://127.0.0.1:1")) as frontends,
        peer(first.port) as here,
    ):
        await here.subscribe(STATUS)
        assert (await here.next(STATUS)).payload == b"online"
        await until(lambda: counted(frontends, "plant").get("connect_failures", 0) >= 2)
        assert frontends.problem.startswith("broker plant: ")


async def test_windows_of_each_broker_have_a_journal_of_their_own(tmp_path: Path) -> None:
    async with two(tmp_path) as (first, second):
        plant, state = MqttBroker("plant", second.url), tmp_path / "state"
        async with serving(first.url, plant, HERE, WAVES, folder=state) as frontends, peer(second.port) as there:
            await until(lambda: frontends.online)
            await there.publish("wave/a", json.dumps([[0.0, 0.0, 0.0]] * 3))
            await until(lambda: counted(frontends, "plant").get("acknowledged") == 1)
        assert (state / FILE).exists()
        assert (state / FOLDER / "plant" / FILE).exists()
        async with serving(first.url, plant, HERE, WAVES, folder=state) as frontends, peer(second.port) as there:
            await until(lambda: frontends.online)
            await there.subscribe(f"edge/{ID}/results/waves/a")
            await there.publish("wave/a", json.dumps([[1.0, 1.0, 1.0]]))
            await there.next(f"edge/{ID}/results/waves/a")


async def test_the_second_broker_has_client_certificates_from_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Authority().write(tmp_path)
    lines = f"cafile {tmp_path}/ca.pem\ncertfile {tmp_path}/cert.pem\nkeyfile {tmp_path}/key.pem\n"
    (tmp_path / "b").mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    files = {name: f"credential:{name}.pem" for name in ("ca", "cert", "key")}
    async with mosquitto(tmp_path / "b", f"{lines}require_certificate true\n") as second:
        plant = MqttBroker("plant", f"mqtts://localhost:{second.port}", **files)
        async with serving("mqtt://127.0.0.1:1", plant) as frontends:
            await until(lambda: bool(counted(frontends, "plant")["connected"]))


async def test_user_and_password_of_the_second_broker_are_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passwords = tmp_path / "passwords"
    made = await asyncio.create_subprocess_exec("mosquitto_passwd", "-b", "-c", str(passwords), "line-7", "s3cret")
    assert await made.wait() == 0
    (tmp_path / "user").write_text("line-7\n")
    (tmp_path / "word").write_text("s3cret\r\nmore\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (tmp_path / "b").mkdir()
    async with mosquitto(tmp_path / "b", f"password_file {passwords}", anonymous=False) as second:
        plant = MqttBroker("plant", second.url, username_file="credential:user", password_file="credential:word")
        async with serving("mqtt://127.0.0.1:1", plant) as frontends:
            await until(lambda: bool(counted(frontends, "plant")["connected"]))


async def test_a_broker_whose_password_is_absent_is_tried_again_while_the_others_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    async with two(tmp_path) as (first, second):
        plant = MqttBroker("plant", second.url, username="u", password_file="credential:word")
        async with serving(first.url, plant, HERE) as frontends, peer(first.port) as here:
            await until(lambda: bool(counted(frontends, "default")["connected"]))
            await until(lambda: counted(frontends, "plant")["connect_failures"] > 1)
            assert "broker plant: the main connection is not made: password_file: " in frontends.problem
            await here.subscribe(f"edge/{ID}/results/#")
            await here.publish("single/a", "[1]")
            assert echoed(await here.next_json(f"edge/{ID}/results/here/a")) == 1
            (tmp_path / "word").write_text("s3cret\n")
            await until(lambda: frontends.online)
            assert frontends.problem == ""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"url": "mqtt://no-such-host.invalid"}, "Name or service not known|name resolution|No address"),
        ({"url": "mqtts://localhost:1", "ca": "/absent/ca.pem"}, "ca, cert, key: cannot be used"),
        ({"username_file": "/absent/user"}, "username_file: cannot be read .*/absent/user"),
    ],
)
async def test_a_fault_of_one_broker_is_its_problem_alone(tmp_path: Path, change: dict[str, str], problem: str) -> None:
    plant = replace(MqttBroker("plant", "mqtt://127.0.0.1:1"), **change)
    async with mosquitto(tmp_path) as first, serving(first.url, plant) as frontends:
        await until(lambda: bool(counted(frontends, "default")["connected"]))
        await until(lambda: re.search(f"^broker plant: .*({problem})", frontends.problem) is not None)


async def test_both_brokers_are_told_that_the_gateway_stops(tmp_path: Path) -> None:
    async with two(tmp_path) as (first, second), peer(first.port) as here, peer(second.port) as there:
        async with serving(first.url, MqttBroker("plant", second.url)) as frontends:
            await asyncio.wait_for(until(lambda: frontends.online), WAIT_S)
            for one in (here, there):
                await one.subscribe(STATUS)
                assert (await one.next(STATUS)).payload == b"online"
        for one in (here, there):
            assert (await one.next(STATUS)).payload == b"offline"


async def test_publications_outside_the_permitted_topics_are_errors(tmp_path: Path) -> None:
    """The bound of the second broker is its own; the first one has none."""
    form = ResultSettings(topic="line/{sensor}")
    routes = replace(HERE, result=form), replace(THERE, result=form)
    async with two(tmp_path) as (first, second):
        plant = MqttBroker("plant", second.url, publish_topics=("line/a", "edge/<id>/reply/#"))
        async with (
            serving(first.url, plant, *routes) as frontends,
            peer(first.port) as here,
            peer(second.port) as there,
        ):
            await until(lambda: frontends.online)
            for one in (here, there):
                await one.subscribe("line/+", f"edge/{ID}/errors")
                await one.publish("single/a", "[1]")
                await one.next_json("line/a")
                await one.publish("single/b", "[2]")
            assert echoed(await here.next_json("line/b")) == 2
            error = await there.next_json(f"edge/{ID}/errors")
            assert (error["fault"], error["topic"]) == ("DENIED", "single/b")
            assert "'line/b'" in error["message"]
            await there.publish(f"edge/{ID}/infer/identity_fp32", "{}", ResponseTopic="secret/x")
            assert "'secret/x'" in (await there.next_json(f"edge/{ID}/errors"))["message"]
            await until(lambda: counted(frontends, "plant").get("acknowledged") == 3)
            assert counted(frontends, "plant")["publications_denied"] == 2
            assert "publications_denied" not in counted(frontends, "default")


async def test_a_sensor_beyond_its_quota_does_not_reduce_the_others(tmp_path: Path) -> None:
    quota = MqttQuota(messages_per_s=0.001, burst=5)
    limited = replace(HERE, quota=quota)
    async with two(tmp_path) as (first, second):
        plant = MqttBroker("plant", second.url)
        async with serving(first.url, plant, limited) as frontends, peer(first.port) as loud, peer(first.port) as quiet:
            await until(lambda: frontends.online)
            await quiet.subscribe(f"edge/{ID}/results/here/+", f"edge/{ID}/errors")
            flood = asyncio.gather(*(loud.publish("single/loud", f"[{value}]") for value in range(500)))
            for value in range(5):
                await quiet.publish("single/quiet", f"[{value}]")
                assert echoed(await quiet.next_json(f"edge/{ID}/results/here/quiet")) == value
            await flood
            await until(lambda: counted(frontends, "default").get("acknowledged") == 505)
            assert counted(frontends, "default")["quota"] == 495
            results = [each for each in quiet.received if each.topic.endswith("/loud")]
            errors = [json.loads(each.payload) for each in quiet.received if each.topic.endswith("/errors")]
            assert len(results) == 5
            assert [(each["fault"], each["topic"]) for each in errors] == [("OVERLOADED", "single/loud")]


async def test_a_quota_may_belong_to_a_client_that_a_property_names(tmp_path: Path) -> None:
    limited = replace(HERE, quota=MqttQuota(messages_per_s=0.001, burst=2, by="property.client"))
    async with (
        mosquitto(tmp_path) as first,
        serving(first.url, MqttBroker("plant", "mqtt://127.0.0.1:1"), limited) as frontends,
        peer(first.port) as one,
    ):
        await until(lambda: bool(counted(frontends, "default")["connected"]))
        for client in ("c-1", "c-1", "c-1", "c-2"):
            await one.publish("single/a", "[1]", UserProperty=[("client", client)])
        await until(lambda: counted(frontends, "default").get("answered") == 3)
        assert counted(frontends, "default")["quota"] == 1
