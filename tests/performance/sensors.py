"""Load over MQTT: forty sensors' windows by paho, in a pinned child. `python -m tests.performance.sensors PORT QOS`."""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from tests.performance.servers import LOAD_CORE, golden, said

RESULTS_S = 60.0
QOS_0_PER_S = 2000
"""QoS 0 is lost where it comes faster than it is taken, so it is paced and only its CPU time says something."""


def play(port: int, qos: int) -> dict[str, float]:
    """Forty sensors' windows as fast as the broker takes them; ends with the last result."""
    command = [sys.executable, "-m", "tests.performance.sensors", str(port), str(qos)]
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
    sys.stdout.write(json.dumps(_play(int(sys.argv[1]), int(sys.argv[2]))))
