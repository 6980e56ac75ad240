"""Results, rules and discovery as configured in a file: the real daemon, mosquitto and its clients."""

import json
import subprocess
from contextlib import contextmanager

import numpy as np
import pytest

from gateway.serving.frontends.mqtt.home_assistant import documents
from tests.simulators import models
from tests.simulators.daemon import QUIET, SHORT_TRIALS, running
from tests.system.serving.test_mqtt import publish, subscribed, tool

ROWS = np.random.default_rng(11).normal(size=(40, 4)).astype(np.float32).round(3)
LABELS = [models.dense().labels[best] for best in (ROWS @ models.WEIGHTS + models.BIAS).argmax(axis=1)]
CONFIG = f"""{QUIET}{SHORT_TRIALS}
[gateway]
id = "bench"
[models]
control = true
[mqtt.home_assistant]
enabled = true
birth_delay_s = 0.0
[[mqtt.route]]
name = "lamp"
topics = ["lamp/+"]
sensor = "topic[1]"
model = "dense"
[mqtt.route.result]
publish = "change"
payload = "text"
template = "{{sensor}} is {{label}}"
topic = "home/{{sensor}}/colour"
retain = true
[[mqtt.route.rule]]
name = "red"
labels = ["red"]
retain = true
[[mqtt.route.rule]]
name = "often"
aggregate = "majority"
aggregate_results = 3
publish = "result"
topic = "home/{{sensor}}/often"
payload = "json"
template = '{{"colour": {{state}}, "by": {{gateway}}}}'
"""


@pytest.fixture(scope="module", autouse=True)
def gateway(broker, tmp_path_factory, state):
    library = tmp_path_factory.mktemp("models")
    models.write_release(library, models.dense(), "onnx")
    folder = tmp_path_factory.mktemp("gateway")
    with running(folder, models=library, state=state, config=CONFIG, mqtt=broker.url) as daemon:
        daemon.wait_logged("link completed")
        yield daemon


def received(broker, topic, count):
    """Return payloads on `topic`, beginning with one that the broker keeps."""
    options = ("-C", str(count), "-W", "15", "-F", "%r %p", "-t", topic, "-q", "1")
    done = subprocess.run(tool("mosquitto_sub", broker, *options), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@contextmanager
def listening(broker, topic):
    """Yield the lines of new messages on `topic`, from the broker's SUBACK on: `0 PAYLOAD`."""
    command = ["stdbuf", "-oL", *tool("mosquitto_sub", broker, "-d", "-W", "30", "-F", "%r %p", "-t", topic, "-q", "1")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines = iter(process.stdout.readline, "")
        while "SUBACK" not in next(lines):
            pass
        yield (line.rstrip() for line in lines if line.startswith("0 "))
        process.terminate()


def changes(values):
    return [value for index, value in enumerate(values) if index == 0 or value != values[index - 1]]


def play(broker, sensor):
    publish(broker, f"lamp/{sensor}", "".join(json.dumps([row.tolist()]) + "\n" for row in ROWS), "-l")


def majority(three):
    return max(reversed(three), key=three.count)


def test_only_changes_are_published_and_the_last_is_retained(broker):
    wanted = [f"a is {label}" for label in changes(LABELS)]
    assert 1 < len(wanted) < len(LABELS)
    with listening(broker, "home/a/colour") as lines:
        play(broker, "a")
        assert [next(lines) for _ in wanted] == [f"0 {each}" for each in wanted]
    assert received(broker, "home/a/colour", 1) == [f"1 {wanted[-1]}"]
    assert received(broker, "edge/bench/rules/lamp/red/a", 1) == [f"1 {'on' if LABELS[-1] == 'red' else 'off'}"]


def test_an_aggregate_is_published_as_json(broker):
    wanted = [majority(LABELS[index : index + 3]) for index in range(len(LABELS) - 2)]
    assert len(set(wanted)) > 1
    with subscribed(broker, "home/b/often", len(wanted)) as heard:
        play(broker, "b")
    assert [each["payload"] for each in heard] == [{"colour": colour, "by": "bench"} for colour in wanted]


def test_home_assistant_finds_the_sensor_and_follows_the_model(broker, gateway):
    play(broker, "c")
    topic = f"homeassistant/device/edge_bench/{documents.object_id('lamp', 'c')}/config"
    (line,) = received(broker, topic, 1)
    document = json.loads(line.partition(" ")[2])
    assert [each["state_topic"] for each in document["components"].values()] == ["edge/bench/rules/lamp/red/c"]
    ready = document["availability"][1]["topic"]
    assert received(broker, ready, 1) == ["1 online"]
    with listening(broker, ready) as lines:
        for verb, word in (("unload", "0 offline"), ("load", "0 online")):
            url = f"http://{gateway.http}/v2/repository/models/dense/{verb}"
            command = ["curl", "-sSf", "-X", "POST", url]
            subprocess.run(command, check=True, capture_output=True)
            assert next(lines) == word
