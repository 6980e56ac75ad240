"""The load: h2load (nghttp2's, not ours) for gRPC, paho in a pinned child for MQTT."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from gateway.frontends.grpc_v2.protocol import message
from tests.performance.servers import ROOT, golden

METHOD = "/inference.GRPCInferenceService/ModelInfer"
RESULTS_S = 60.0
QOS_0_PER_S = 2000
"""QoS 0 is lost where it comes faster than it is taken, so it is paced and only its CPU time says something."""


def request_file(folder: Path, model: str) -> Path:
    """One framed ModelInferRequest of one row, as h2load posts it."""
    row = np.zeros((1, 16), "<f4") if model == "tiny" else golden(model)["input.image"][:1]
    request = message("inference.ModelInferRequest")(model_name=model)
    request.inputs.add(name="x" if model == "tiny" else "image", datatype="FP32", shape=row.shape)
    request.raw_input_contents.append(row.tobytes())
    body = request.SerializeToString()
    file = folder / f"{model}.grpc"
    file.write_bytes(struct.pack(">BI", 0, len(body)) + body)
    return file


def h2load(port: int, body: Path, *, connections: int, seconds: int, core: int) -> dict[str, float]:
    """`connections` connections, one request each at a time, for `seconds`. Fails where an answer is not 200."""
    log = body.with_suffix(".log")
    log.unlink(missing_ok=True)
    command = ["taskset", "-c", str(core), "h2load", f"-c{connections}", "-m1", "-t1", f"-D{seconds}", f"-d{body}"]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"--log-file={log}"]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{port}{METHOD}"], capture_output=True, text=True, check=True, timeout=seconds + 60
    )
    counted = re.search(
        r"requests: (\d+) total.*?(\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored", done.stdout
    )
    if counted is None or int(counted[4]) or int(counted[5]):
        raise SystemExit(f"h2load was refused:\n{done.stdout}")
    times_us = [int(line.split("\t")[2]) for line in log.read_text().splitlines()]
    p50, p99 = np.percentile(times_us, (50, 99))
    requests = len(times_us)
    return {"requests": requests, "per_s": requests / seconds, "p50_us": float(p50), "p99_us": float(p99)}


def mqtt(port: int, qos: int, core: int) -> dict[str, float]:
    """Forty sensors' windows as fast as the broker takes them; ends with the last result."""
    command = ["taskset", "-c", str(core), sys.executable, "-m", "tests.performance.load", str(port), str(qos)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=RESULTS_S + 60)
    return dict(json.loads(done.stdout))


def wait_online(port: int) -> None:
    """Return once the gateway's retained status says `online`."""
    from paho.mqtt import subscribe

    end_s = time.monotonic() + RESULTS_S
    while time.monotonic() < end_s:
        said = subscribe.simple("edge/bench/#", qos=1, hostname="127.0.0.1", port=port, client_id="bench-wait")
        if said.topic == "edge/bench/status" and said.payload == b"online":
            return
        time.sleep(0.05)
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
    return {"messages": messages, "per_s": messages / seconds}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_play(int(sys.argv[1]), int(sys.argv[2]))))
