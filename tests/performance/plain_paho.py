"""The baseline `paho`: what an engineer writes by hand for sensors. paho-mqtt, json, ONNX Runtime, no more.

    python -m tests.performance.plain_paho MODEL.onnx PORT QOS

Answers JSON arrays on `single/+` with the scores, and says `online` when it listens.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import onnxruntime
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion


def serve(model: str, port: int, qos: int) -> None:
    """Serve until it is killed."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (source,) = session.get_inputs()

    def answer(client: Client, _userdata: object, message: MQTTMessage) -> None:
        row = np.array([json.loads(message.payload)], np.float32)
        (scores,) = session.run(None, {source.name: row})
        sensor = message.topic.partition("/")[2]
        said = json.dumps({"outputs": scores.tolist(), "sensor": sensor})
        client.publish(f"edge/bench/results/single/{sensor}", said, qos)

    def begin(client: Client, *_: Any) -> None:
        client.subscribe("single/+", qos)
        client.publish("edge/bench/status", b"online", 1, retain=True)

    client = Client(CallbackAPIVersion.VERSION2, client_id="plain", protocol=MQTTProtocolVersion.MQTTv5)
    client.max_inflight_messages_set(1000)
    client.on_connect, client.on_message = begin, answer
    client.connect("127.0.0.1", port)
    client.loop_forever()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
