"""The MQTT side of the real daemon, with mosquitto and its own command-line clients on the other end."""

import json
import re
import subprocess
from contextlib import contextmanager

import numpy as np
import pytest

from tests.simulators.daemon import QUIET, SHORT_TRIALS, documented, golden, running

LABELS = ["Standing", "Running", "Walking", "Badminton"]
CONFIG = f"""{QUIET}{SHORT_TRIALS}
[gateway]
id = "bench"
[mqtt]
reconnect_min_s = 0.05
reconnect_max_s = 0.2
[[mqtt.route]]
name = "wrists"
topics = ["sensors/+/imu"]
sensor = "topic[1]"
content_type = "application/json"
model = "activity"
[[mqtt.route]]
name = "meters"
topics = ["meters/+/photo"]
sensor = "topic[1]"
content_type = "image/png"
model = "meter-reader"
"""


@pytest.fixture(scope="module")
def gateway(broker, tmp_path_factory, state):
    with running(tmp_path_factory.mktemp("gateway"), state=state, config=CONFIG, mqtt=broker.url) as daemon:
        daemon.wait_logged("link completed")
        yield daemon


def tool(name, broker, *options):
    return [name, "-h", "127.0.0.1", "-p", str(broker.port), *options]


@contextmanager
def subscribed(broker, topic, count):
    """Yield a list of `count` messages on `topic`, subscribed before the body.

    mosquitto_sub prints them, one JSON object a line.
    """
    form = '{"topic": "%t", "retained": %r, "payload": %p}'
    options = ("-v", "-d", "-V", "5", "-q", "1", "-C", str(count), "-W", "15", "-F", form, "-t", topic)
    command = ["stdbuf", "-oL", *tool("mosquitto_sub", broker, *options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listening:
        lines = iter(listening.stdout.readline, "")
        while "received SUBACK" not in next(lines):
            pass
        heard = []
        yield heard
        heard += [json.loads(line) for line in lines if line.startswith('{"topic"')]
    assert len(heard) == count


def publish(broker, topic, payload, *options):
    subprocess.run(
        tool("mosquitto_pub", broker, "-q", "1", "-t", topic, *options),
        input=payload if isinstance(payload, bytes) else payload.encode(),
        check=True,
    )


def samples(row):
    """Return a window as a sensor's lines: one JSON array a message."""
    return "".join(json.dumps([round(float(value), 6) for value in sample]) + "\n" for sample in row)


def test_a_window_of_samples_gets_its_label(gateway, broker):
    wanted = golden("activity", 8)
    for index in range(3):
        with subscribed(broker, f"edge/bench/results/wrists/wrist-{index}", 1) as heard:
            publish(broker, f"sensors/wrist-{index}/imu", samples(wanted.rows[index]), "-l")
        said = heard[0]["payload"]
        assert set(said) == {
            *("id", "label", "score", "model", "version", "variant", "sensor", "started_at", "ended_at"),
        }
        assert said["label"] == LABELS[wanted.scores[index].argmax()]
        assert said["score"] == pytest.approx(wanted.scores[index].max(), abs=0.05)
        assert (said["model"], said["version"], said["sensor"]) == ("activity", "1", f"wrist-{index}")
        assert said["variant"]
        assert said["started_at"] <= said["ended_at"]


def test_two_sensors_that_interleave_keep_their_windows_apart(gateway, broker):
    wanted = golden("activity", 40)
    classes = wanted.scores.argmax(axis=1)
    first, second = 0, int(np.flatnonzero(classes != classes[0])[0])
    with subscribed(broker, "edge/bench/results/wrists/+", 2) as heard:
        for half in (slice(0, 50), slice(50, 100)):
            publish(broker, "sensors/left/imu", samples(wanted.rows[first][half]), "-l")
            publish(broker, "sensors/right/imu", samples(wanted.rows[second][half]), "-l")
    labels = {message["topic"].rpartition("/")[2]: message["payload"]["label"] for message in heard}
    assert labels == {"left": LABELS[classes[first]], "right": LABELS[classes[second]]}


def test_a_photograph_gets_its_digit(gateway, broker, digit_png):
    image, digit = digit_png
    with subscribed(broker, "edge/bench/results/meters/cellar", 1) as heard:
        publish(broker, "meters/cellar/photo", image, "-s")
    assert heard[0]["payload"]["label"] == str(digit)


def request(wanted):
    tensor = {
        "name": wanted.name,
        "datatype": "FP32",
        "shape": list(wanted.rows.shape),
        "data": wanted.rows.round(5).tolist(),
    }
    return json.dumps({"id": "q1", "inputs": [tensor]})


@pytest.mark.parametrize("topic", ["edge/bench/infer/activity", "edge/bench/infer/activity/1"])
def test_a_question_is_answered_on_its_response_topic(gateway, broker, topic):
    wanted = golden("activity", 2)
    options = ("-V", "5", "-t", topic, "-e", "reply/bench", "-D", "publish", "correlation-data", "77")
    options += ("-F", "%D %p", "-W", "15", "-m", request(wanted))  # 2.0.11 sends nothing of -f and -s
    command = tool("mosquitto_rr", broker, *options)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    correlation, _, answer = done.stdout.partition(" ")
    said = json.loads(answer)
    assert "error" not in said
    assert correlation == "77", said
    assert (said["id"], said["model_name"]) == ("q1", "activity")
    scores = np.array(said["outputs"][0]["data"]).reshape(2, 4)
    assert (scores.argmax(axis=1) == wanted.scores.argmax(axis=1)).all()


def test_a_question_that_cannot_be_answered_is_told_so(gateway, broker):
    with subscribed(broker, "edge/bench/errors", 1) as heard:
        options = ("-V", "5", "-t", "edge/bench/infer/nobody", "-e", "reply/bench", "-m", '{"inputs": []}')
        done = subprocess.run(
            tool("mosquitto_rr", broker, *options, "-W", "15"), capture_output=True, text=True, check=True
        )
    assert json.loads(done.stdout)["fault"] == "NOT_FOUND"
    assert heard[0]["payload"]["fault"] == "NOT_FOUND"


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        ("sensors/poison/imu", b"{ this is no JSON"),
        ("sensors/poison/imu", b"[1, 2, 3]"),
        ("sensors/poison/imu", b'[1, 2, 3, 4, 5, "six"]'),
        ("sensors/poison/imu", b"[NaN, 1, 1, 1, 1, 1]"),
        ("meters/poison/photo", b"\x89PNG\r\n\x1a\nbroken"),
        ("meters/poison/photo", b""),
        ("edge/bench/infer/activity", b"no response topic"),
    ],
)
def test_poison_goes_to_the_errors_topic_and_the_next_message_is_served(gateway, broker, digit_png, topic, payload):
    with subscribed(broker, "edge/bench/errors", 1) as heard:
        publish(broker, topic, payload, "-s" if payload else "-n")
    said = heard[0]["payload"]
    assert {"id", "topic", "fault", "message"} <= set(said)
    assert (said["topic"], said["fault"]) == (topic, "INVALID")
    with subscribed(broker, "edge/bench/results/meters/after", 1) as heard:
        publish(broker, "meters/after/photo", digit_png[0], "-s")
    assert heard[0]["payload"]["label"] == str(digit_png[1])


def test_online_is_retained(gateway, broker):
    options = ("-C", "1", "-W", "15", "-F", "%r %p", "-t", "edge/bench/status")
    said = subprocess.run(tool("mosquitto_sub", broker, *options), capture_output=True, text=True, check=True).stdout
    assert said.strip() == "1 online"


def test_sensors_of_mqtt_3_work_too(gateway, broker, digit_png):
    with subscribed(broker, "edge/bench/results/meters/old", 1) as heard:
        publish(broker, "meters/old/photo", digit_png[0], "-s", "-V", "mqttv311")
    assert heard[0]["payload"]["label"] == str(digit_png[1])


def test_the_metrics_page_counts_it(gateway, broker):
    command = ["curl", "-sS", f"http://{gateway.http}/metrics"]
    page = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert 'edge_gateway_mqtt_now{broker="default",what="connected"} 1.0' in page
    told = set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
    assert told <= documented()
    assert "edge_gateway_mqtt_events_total" in page
