"""`edge-gateway watch` with the real daemon and mosquitto: as JSON, on a terminal, and after the daemon ended."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
from contextlib import contextmanager

import pytest

from tests.simulators.daemon import COMMAND, QUIET, ROOT, SHORT_TRIALS, golden, running
from tests.system.serving.test_mqtt import LABELS, publish, samples

CONFIG = f"""{QUIET}{SHORT_TRIALS}
[gateway]
id = "bench"
[[mqtt.route]]
name = "wrists"
topics = ["sensors/+/imu"]
sensor = "topic[1]"
content_type = "application/json"
model = "activity"
[[mqtt.route]]
name = "ankles"
topics = ["ankles/+/imu"]
sensor = "topic[1]"
content_type = "application/json"
model = "activity"
result = {{topic = "home/{{sensor}}/activity", payload = "value"}}
[[mqtt.route]]
name = "away"
topics = ["away/+"]
sensor = "topic[1]"
hop_rows = 10
model = "absent"
"""
SIZE = 16, 100
"""Rows and columns of the terminal."""
LEAVE_SCREEN = "\x1b[?1049l"


@pytest.fixture
def gateway(broker, tmp_path, state):
    with running(tmp_path, state=state, config=CONFIG, mqtt=broker.url) as daemon:
        daemon.wait_logged("link completed")
        yield daemon


def words(gateway, broker, *options):
    return [*COMMAND, "watch", str(gateway.config_file), "--mqtt", broker.url, "--url", gateway.http, *options]


@contextmanager
def sensors(broker):
    """Publish messages of sensors until the body ends: each of them again, for a verb that subscribes at any time."""
    window, ended = golden("activity", 8).rows[0], threading.Event()

    def send():
        while not ended.wait(0.1):
            for topic in ("sensors/left/imu", "ankles/right/imu"):
                publish(broker, topic, samples(window), "-l")
            for topic in ("sensors/left/imu", "away/attic"):
                publish(broker, topic, "[1, 2", "-s")

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def is_complete(table):
    """Return whether the table has everything that the sensors cause."""
    counts = {(line["route"], line["sensor"]): (line["results"], line["errors"]) for line in table["sensors"]}
    wrist, ankle = counts.get(("wrists", "left"), (0, 0)), counts.get(("ankles", "right"), (0, 0))
    return min(*wrist, ankle[0]) > 0 and ("away", "attic") in counts and table["daemon"]["drops"].get("model_away")


def test_programs_get_sensors_drops_and_health(gateway, broker):
    with subprocess.Popen(
        words(gateway, broker, "--json", "--every", "0.2"), cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as watch:
        tables = map(json.loads, watch.stdout)
        with sensors(broker):
            table = next(filter(is_complete, tables))
        lines = {(line["route"], line["sensor"]): line for line in table["sensors"]}
        wrist, ankle = lines["wrists", "left"], lines["ankles", "right"]
        assert wrist["label"] in LABELS
        assert wrist["last"].startswith(wrist["label"])
        assert wrist["lag_s"] is not None
        assert wrist["results_per_s"] > 0
        assert wrist["last_error"].startswith("INVALID: ")
        assert (ankle["last"] in LABELS, ankle["label"], ankle["lag_s"]) == (True, None, None)
        assert (table["status"], table["daemon"]["link"]["connected"], table["daemon"]["problem"]) == (
            "online",
            1,
            None,
        )
        gateway.stop()
        table = next(each for each in tables if each["daemon"]["problem"] and each["status"] == "offline")
        assert "no gateway answers" in table["daemon"]["problem"]
        assert {(line["route"], line["sensor"]) for line in table["sensors"]} >= {("wrists", "left")}
        watch.send_signal(signal.SIGINT)
        assert watch.wait(15) == 0


def test_a_terminal_shows_one_table_that_stays_after_sigint(gateway, broker):
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
    environ = {name: text for name, text in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    with subprocess.Popen(
        words(gateway, broker, "--every", "0.2", "--route", "wrists"),
        **dict.fromkeys(("stdin", "stdout", "stderr"), end),
        cwd=ROOT,
        env=environ,
    ) as watch:
        os.close(end)
        with sensors(broker):
            drawn = read_until(terminal, lambda text: "INVALID" in text and any(label in text for label in LABELS))
        watch.send_signal(signal.SIGINT)
        drawn += read_until(terminal, lambda _: False)
        assert watch.wait(15) == 0
    last = drawn.partition(LEAVE_SCREEN)[2]
    assert all(word in last for word in ("gateway bench", "status online", "wrists", "left", "link: complete"))
    assert "ankles" not in drawn
    os.close(terminal)


def read_until(terminal, is_enough):
    """Return what the terminal gets, until it is enough or its other end is closed."""
    found = b""
    while not is_enough(found.decode(errors="replace")):
        try:
            found += os.read(terminal, 65_536)
        except OSError:  # EIO: the other end is closed
            break
    return found.decode(errors="replace")
