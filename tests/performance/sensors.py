"""Load over MQTT by paho, in a pinned child: forty sensors' windows, or single messages, some of them in flight.

python -m tests.performance.sensors windows PORT QOS
python -m tests.performance.sensors singles PORT QOS IN_FLIGHT SECONDS
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from tests.performance.networks import tiny
from tests.performance.servers import LOAD_CORE, golden, said

RESULTS_S = 60.0
IN_FLIGHT = (1, 4, 32)
QOS_0_PER_S = 2000
"""QoS 0 is lost where it comes faster than it is taken, so it is paced and only its CPU time says something."""


def play(port: int, qos: int) -> dict[str, float]:
    """Send forty sensors' windows as fast as the broker takes them; end with the last result."""
    return _child("windows", port, qos)


def ask(port: int, qos: int, in_flight: int, seconds: float) -> dict[str, float]:
    """Send single messages, `in_flight` at a time; each result brings the next."""
    return _child("singles", port, qos, in_flight, seconds)


def _child(*words: object) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.performance.sensors", *map(str, words)]
    return dict(json.loads(said(command, LOAD_CORE, RESULTS_S + 60)))


def wait_online(port: int) -> None:
    """Return once the gateway's retained status says `online`."""
    import threading

    import paho.mqtt.client as paho

    online = threading.Event()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="bench-wait")
    client.on_message = lambda _client, _userdata, said: online.set() if said.payload == b"online" else None
    client.connect("127.0.0.1", port)
    client.subscribe("edge/bench/status", 1)
    client.loop_start()
    came = online.wait(RESULTS_S)
    client.disconnect()
    client.loop_stop()
    if not came:
        raise SystemExit("the gateway never said that it is online")


def _ask(port: int, qos: int, in_flight: int, seconds: float) -> dict[str, float]:
    import paho.mqtt.client as paho

    row, sent_s, took_s = json.dumps(np.round(tiny().row().ravel(), 6).tolist()), dict[str, float](), list[float]()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="bench-load", protocol=paho.MQTTv5)
    client.max_inflight_messages_set(1000)

    def publish(sensor: str) -> None:
        sent_s[sensor] = time.perf_counter()
        client.publish(f"single/{sensor}", row, qos)

    def received(_client: paho.Client, _userdata: object, result: paho.MQTTMessage) -> None:
        sensor = result.topic.rpartition("/")[2]
        if b'"outputs"' not in result.payload:
            raise SystemExit(f"no result: {result.payload!r}")
        took_s.append(time.perf_counter() - sent_s[sensor])
        publish(sensor)

    client.on_message = received
    client.connect("127.0.0.1", port)
    client.subscribe("edge/bench/results/single/+", qos)
    for index in range(in_flight):
        publish(str(index))
    began_s = time.perf_counter()
    while (passed_s := time.perf_counter() - began_s) < seconds:
        client.loop(0.1)
    p50, p99 = np.percentile(took_s, (50, 99)) * 1e6
    return {"requests": len(took_s), "per_s": len(took_s) / passed_s, "p50_us": float(p50), "p99_us": float(p99)}


def _play(port: int, qos: int) -> dict[str, float]:
    import threading

    import paho.mqtt.client as paho

    windows = golden("activity")["input.motion"]
    payloads = [[json.dumps(np.round(row, 6).tolist()) for row in window] for window in windows]
    results, online, complete = set(), threading.Event(), threading.Event()

    def on_message(_client: paho.Client, _userdata: object, received: paho.MQTTMessage) -> None:
        if received.topic == "edge/bench/status":
            return online.set() if received.payload == b"online" else None
        results.add(received.topic)
        return complete.set() if len(results) == len(windows) else None

    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="bench-load")
    client.on_message = on_message
    client.max_inflight_messages_set(1000)
    client.max_queued_messages_set(0)
    client.connect("127.0.0.1", port)
    client.subscribe([("edge/bench/status", 1), ("edge/bench/results/wrists/+", 1)])
    client.loop_start()
    if not online.wait(RESULTS_S):
        raise SystemExit("the gateway never said that it is online")
    began = time.perf_counter()
    for row in range(len(payloads[0])):
        for index, window in enumerate(payloads):
            client.publish(f"sensors/{index}/imu", window[row], qos=qos)
        if qos == 0:
            time.sleep(max(0.0, began + (row + 1) * len(payloads) / QOS_0_PER_S - time.perf_counter()))
    if not complete.wait(RESULTS_S):
        raise SystemExit(f"{len(results)} of {len(windows)} windows were answered")
    seconds = time.perf_counter() - began
    client.loop_stop()
    messages = sum(len(window) for window in payloads)
    return {"requests": messages, "per_s": messages / seconds}


if __name__ == "__main__":
    what, port, qos, *rest = sys.argv[1:]
    figures = _ask(int(port), int(qos), int(rest[0]), float(rest[1])) if rest else _play(int(port), int(qos))
    sys.stdout.write(json.dumps(figures))
