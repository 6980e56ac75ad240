"""Forty wrist sensors: each publishes its held-out window sample by sample, as JSON, and awaits one result."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import numpy as np
import paho.mqtt.client as paho
from camera import Played, Tick

RELEASE = Path(__file__).resolve().parents[2] / "models" / "activity" / "1"
SAMPLE_PERIOD_S = 0.02
"""Five times faster than the sensors' 10 Hz, so that the demo ends soon: 2,000 messages a second in all."""
RESULTS_S = 30.0
"""Patience with a machine that has other things to do; the broker keeps what the gateway has not taken yet."""


def play_sensors(port: int, gateway_id: str, tick: Tick) -> Played:
    """Publish all sensors' samples in step; count results whose label is right. Latency: last sample → result."""
    with np.load(RELEASE / "golden.npz", allow_pickle=False) as golden:
        windows, truth = golden["input.motion"], golden["label"]
    labels = _labels()
    collector = _Collector(len(windows))
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="demo-sensors")
    client.on_message = collector.on_message
    client.max_queued_messages_set(0)
    client.max_inflight_messages_set(500)
    client.connect("127.0.0.1", port)
    client.subscribe([(f"edge/{gateway_id}/status", 1), (f"edge/{gateway_id}/results/wrists/+", 1)])
    client.loop_start()
    try:
        if not collector.online.wait(RESULTS_S):
            raise SystemExit("the gateway did not reach the broker")
        _publish(client, windows, collector, tick)
        collector.complete.wait(RESULTS_S)
    finally:
        client.loop_stop()
        client.disconnect()
    right = sum(collector.answers.get(f"wrist-{i:02}") == labels[int(label)] for i, label in enumerate(truth))
    return Played(len(windows), len(collector.answers), right, collector.latencies_ms())


class _Collector:
    """Results as they come in, on paho's thread."""

    def __init__(self, wanted: int) -> None:
        self.online, self.complete = threading.Event(), threading.Event()
        self.answers: dict[str, str] = {}
        self.last_sample_s: dict[str, float] = {}
        self._answered_s: dict[str, float] = {}
        self._wanted = wanted

    def on_message(self, _client: paho.Client, _userdata: object, message: paho.MQTTMessage) -> None:
        if message.topic.endswith("/status"):
            return self.online.set() if message.payload == b"online" else None
        result = json.loads(message.payload)
        self._answered_s[result["sensor"]] = time.perf_counter()
        self.answers[result["sensor"]] = result["label"]
        return self.complete.set() if len(self.answers) == self._wanted else None

    def latencies_ms(self) -> list[float]:
        return [(at - self.last_sample_s[sensor]) * 1000 for sensor, at in self._answered_s.items()]


def _publish(client: paho.Client, windows: np.ndarray, collector: _Collector, tick: Tick) -> None:
    began = time.perf_counter()
    rows = windows.shape[1]
    for row in range(rows):
        for index, window in enumerate(windows):
            sensor = f"wrist-{index:02}"
            collector.last_sample_s[sensor] = time.perf_counter()
            client.publish(f"sensors/{sensor}/imu", json.dumps([round(float(v), 6) for v in window[row]]), qos=1)
        tick(row + 1, rows)
        time.sleep(max(0.0, began + (row + 1) * SAMPLE_PERIOD_S - time.perf_counter()))


def _labels() -> list[str]:
    from gateway.common.domain.python310 import tomllib

    return list(tomllib.loads((RELEASE / "manifest.toml").read_text())["labels"])
