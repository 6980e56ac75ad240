"""The real daemon at two brokers: one in the clear, one by TLS with a client certificate from systemd's credentials."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.simulators.authority import Authority
from tests.simulators.broker import Mosquitto
from tests.simulators.daemon import COMMAND, LIVE, QUIET, ROOT, SHORT_TRIALS, WAIT_S, Daemon, golden, running
from tests.system.serving.test_mqtt import LABELS, publish, samples, subscribed

LISTENER = (
    "cafile {0}/ca.pem\ncertfile {0}/cert.pem\nkeyfile {0}/key.pem\nrequire_certificate true\nlistener 0 {0}/socket\n"
)
CONFIG = f"""{QUIET}{SHORT_TRIALS}
[gateway]
id = "bench"
[mqtt]
url = "{{here}}"
reconnect_min_s = 0.05
reconnect_max_s = 0.2
[[mqtt.broker]]
name = "plant"
url = "mqtts://localhost:{{port}}"
ca = "credential:ca.pem"
cert = "credential:cert.pem"
key = "credential:key.pem"
publish_topics = ["edge/<id>/#", "line/left"]
[[mqtt.route]]
name = "wrists"
topics = ["sensors/+/imu"]
sensor = "topic[1]"
model = "activity"
[mqtt.route.quota]
messages_per_s = 0.01
burst = 100
[[mqtt.route]]
name = "line"
broker = "plant"
topics = ["sensors/+/imu"]
sensor = "topic[1]"
model = "activity"
result = {{{{topic = "line/{{{{sensor}}}}"}}}}
"""


class PlantBroker(Mosquitto):
    """Broker with TLS and client certificates, and a UNIX socket without them for the tests' own clients."""

    def __init__(self, folder: Path) -> None:
        Authority().write(folder)
        super().__init__(folder, LISTENER.format(folder))


@pytest.fixture(name="plant")
def plant_broker(tmp_path: Path) -> Iterator[PlantBroker]:
    (tmp_path / "plant").mkdir()
    broker = PlantBroker(tmp_path / "plant")
    asyncio.run(broker.start())
    yield broker
    asyncio.run(broker.kill())


@contextmanager
def gateway(broker: Mosquitto, plant: PlantBroker, tmp_path: Path, state: Path) -> Iterator[Daemon]:
    config = CONFIG.format(here=broker.url, port=plant.port)
    environ = {"CREDENTIALS_DIRECTORY": str(plant.folder)}
    with running(tmp_path / "gateway", state=state, config=config, mqtt=broker.url, environ=environ) as daemon:
        for url in (broker.url, f"mqtts://localhost:{plant.port}"):
            daemon.wait_logged(f"link completed: the MQTT broker at {url} ")
        yield daemon


def plant_tool(name: str, plant: PlantBroker, *options: str) -> list[str]:
    return [name, "--unix", str(plant.folder / "socket"), "-q", "1", *options]


def metric(daemon: Daemon, name: str) -> str:
    """Return the value of one metric, with its labels."""
    command = ["curl", "-sS", f"http://{daemon.http}/metrics"]
    page = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return next((line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(name)), "absent")


def test_both_brokers_serve_and_one_that_is_killed_leaves_the_other(
    broker: Mosquitto, plant: PlantBroker, tmp_path: Path, state: Path
) -> None:
    window = golden("activity", 8).rows[0]
    with gateway(broker, plant, tmp_path, state) as daemon:
        listen = plant_tool("mosquitto_sub", plant, "-C", "1", "-W", "15", "-t", "edge/bench/errors", "-t", "line/+")
        for sensor, said in (("left", '"label":'), ("right", "may not publish on 'line/right'")):
            with subprocess.Popen([*listen, "-v"], stdout=subprocess.PIPE, text=True) as heard:
                send = plant_tool("mosquitto_pub", plant, "-l", "-t", f"sensors/{sensor}/imu")
                subprocess.run(send, input=samples(window), text=True, check=True)
                assert said in str(heard.communicate()[0])
        assert metric(daemon, 'edge_gateway_mqtt_events_total{broker="plant",event="publications_denied"}') == "1.0"
        asyncio.run(plant.kill())
        daemon.wait_logged(f"broker connection lost: main, mqtts://localhost:{plant.port}")
        with subscribed(broker, "edge/bench/results/wrists/left", 1) as results:
            publish(broker, "sensors/left/imu", samples(window), "-l")
        assert results[0]["payload"]["label"] in LABELS
        assert metric(daemon, 'edge_gateway_mqtt_now{broker="plant",what="connected"}') == "0.0"
        assert metric(daemon, 'edge_gateway_mqtt_now{broker="default",what="connected"}') == "1.0"


def test_a_flood_of_one_sensor_leaves_the_results_of_the_others(
    broker: Mosquitto, plant: PlantBroker, tmp_path: Path, state: Path
) -> None:
    window = golden("activity", 8).rows[0]
    with gateway(broker, plant, tmp_path, state) as daemon:
        lines = "[0,0,0,0,0,0]\n" * 2_000
        command = ["mosquitto_pub", "-p", str(broker.port), "-q", "1", "-t", "sensors/loud/imu", "-l"]
        with (
            subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as loud,
            subscribed(broker, "edge/bench/results/wrists/quiet", 1) as results,
        ):
            assert loud.stdin is not None
            loud.stdin.write(lines)
            loud.stdin.close()
            publish(broker, "sensors/quiet/imu", samples(window), "-l")
        assert results[0]["payload"]["sensor"] == "quiet"
        dropped = 'edge_gateway_mqtt_drops_total{broker="default",reason="quota"}'
        deadline_s = time.monotonic() + WAIT_S
        while (found := metric(daemon, dropped)) != "1900.0":
            assert time.monotonic() < deadline_s, found
        assert metric(daemon, 'edge_gateway_mqtt_drops_total{broker="plant",reason="quota"}') == "absent"


def test_the_verbs_follow_a_broker_by_name(broker: Mosquitto, plant: PlantBroker, tmp_path: Path, state: Path) -> None:
    with gateway(broker, plant, tmp_path, state) as daemon:
        environ = {"CREDENTIALS_DIRECTORY": str(plant.folder), "PATH": "/usr/bin:/bin"}
        file = str(daemon.config_file)
        for options in (("--broker", "plant"), ("--route", "line")):
            watch = [*COMMAND, "watch", file, "--once", "--json", "--every", "3", "--url", daemon.http, *options]
            done = subprocess.run(watch, cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
            table = json.loads(done.stdout)
            assert table["broker"]["url"] == f"mqtts://localhost:{plant.port}"
            assert (table["status"], table["daemon"]["link"]["connected"]) == ("online", 1)
        tail = [*COMMAND, "routes", "tail", file, "--broker", "plant", "--count", "1", "--json"]
        with subprocess.Popen(tail, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True) as tailing:
            send = plant_tool("mosquitto_pub", plant, "-t", "sensors/left/imu", "-m", "[1,2,3,4,5,6]")
            for _ in range(100):  # it subscribes at any time
                subprocess.run(send, check=True)
                with suppress(subprocess.TimeoutExpired):
                    tailing.wait(0.3)
                    break
            assert json.loads(tailing.communicate(timeout=WAIT_S)[0])["route"] == "line"
        absent = [*COMMAND, "watch", file, "--broker", "other"]
        done = subprocess.run(absent, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        assert (done.returncode, "known are default, plant" in done.stderr) == (2, True)


ALONE = f"""{QUIET}{SHORT_TRIALS}
[gateway]
id = "{{id}}"
[mqtt]
url = "{{here}}"
reconnect_min_s = 0.05
reconnect_max_s = 0.2
"""
ROUTE = """
[[mqtt.route]]
name = "wrists"
topics = ["sensors/+/imu"]
sensor = "topic[1]"
model = "activity"
"""


def test_a_second_daemon_shares_verdicts_and_no_mqtt_state(broker: Mosquitto, tmp_path: Path) -> None:
    """The lock ends with the first process, however it ends."""
    state = tmp_path / "state"
    first, second = (
        Daemon(tmp_path / name, state=state, config=ALONE.format(id=name, here=broker.url) + ROUTE, mqtt=broker.url)
        for name in ("first", "second")
    )
    first.start()
    try:
        with running(tmp_path / "third", state=state):
            second.start(ready=False)
            assert second.ended() == 3
        refused = f"{state}: another edge-gateway with MQTT uses this folder: process {first.pid} ("
        assert refused in second.log
        assert "--state: only verdicts are shared" in second.log
        assert "listening" not in second.log
        publish(broker, "sensors/left/imu", "[1,2,3,4,5,6]\n", "-l")
        first.kill()
        second.start()
        second.wait_logged("link completed: the MQTT broker")
        assert "damaged" not in second.log
    finally:
        for daemon in (first, second):
            if daemon in LIVE:
                assert daemon.stop() == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            ROUTE + ROUTE.replace("wrists", "arms").replace("sensors/+/imu", "$share/a/sensors/#"),
            "mqtt.route[arms].topics: '$share/a/sensors/#' overlaps",
        ),
        (
            f'{ROUTE}result = {{topic = "sensors/{{sensor}}/imu"}}',
            "mqtt.route.result.topic: 'sensors/{sensor}/imu' may",
        ),
        (ROUTE.replace("sensors/+/imu", "edge/one/#"), "mqtt.route[wrists].topics: 'edge/one/#' takes in edge/one/#"),
        (f'{ROUTE}content_type = "application/protobuf"\ndescriptor = "/absent"\nmessage = "a.B"', "/absent"),
        (f'publish_topics = ["line/#"]\n{ROUTE}', "mqtt.route.result.topic: "),
    ],
)
def test_a_start_refuses_before_models_load_what_config_check_finds(tmp_path: Path, text: str, problem: str) -> None:
    daemon = Daemon(
        tmp_path, config=ALONE.format(id="one", here="mqtt://127.0.0.1:1") + text, mqtt="mqtt://127.0.0.1:1"
    )
    checked = [*COMMAND, "config", "check", str(daemon.config_file), "--json"]
    done = subprocess.run(checked, cwd=ROOT, capture_output=True, text=True, check=False)
    (finding,) = json.loads(done.stdout)["findings"]
    assert problem in finding
    daemon.start(ready=False)
    assert daemon.ended() == 2
    assert finding in daemon.log
    assert "device surveyed" not in daemon.log


def test_a_broker_without_its_authority_is_degraded_and_the_rest_serves(
    broker: Mosquitto, plant: PlantBroker, tmp_path: Path, state: Path
) -> None:
    absent = tmp_path / "later.pem"
    config = CONFIG.format(here=broker.url, port=plant.port).replace("credential:ca.pem", str(absent))
    environ, window = {"CREDENTIALS_DIRECTORY": str(plant.folder)}, golden("activity", 8).rows[0]
    with running(tmp_path / "gateway", state=state, config=config, mqtt=broker.url, environ=environ) as daemon:
        daemon.wait_logged(f"link completed: the MQTT broker at {broker.url} ")
        daemon.wait_logged("ca, cert, key: cannot be used")
        with subscribed(broker, "edge/bench/results/wrists/left", 1) as results:
            publish(broker, "sensors/left/imu", samples(window), "-l")
        assert results[0]["payload"]["label"] in LABELS
        assert metric(daemon, 'edge_gateway_mqtt_now{broker="plant",what="connected"}') == "0.0"
        daemon.reload()
        absent.write_bytes((plant.folder / "ca.pem").read_bytes())
        daemon.wait_logged(f"link completed: the MQTT broker at mqtts://localhost:{plant.port} ")
