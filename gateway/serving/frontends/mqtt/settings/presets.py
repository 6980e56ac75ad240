"""Presets of routes: what payloads of known projects look like (docs/pages/howto/payloads.md). Pure data.

A preset fills in settings that a route leaves empty. A setting that the route has itself takes precedence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

JSON, TEXT = "application/json", "text/plain"
SPARKPLUG = "application/x-sparkplug-b"
NAMESPACE = "spBv1.0"
"""First level of Sparkplug's topics."""


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings of a route for the payloads of one project. `topics` are examples, which are not filled in.

    `missing` is the policy of channels that have none of their own.
    """

    title: str
    topics: tuple[str, ...]
    sensor: str
    content_type: str = JSON
    rows: str = ""
    key: str = ""
    record_name: str = ""
    record_value: str = ""
    struct_path: str = ""
    missing: str = "refuse"


FILLED = ("sensor", "content_type", "rows", "key", "record_name", "record_value", "struct_path")
"""Settings of a route that a preset fills in."""
PRESETS: Mapping[str, Preset] = {
    "zigbee2mqtt": Preset("Zigbee2MQTT", ("zigbee2mqtt/+",), "topic[1:]", missing="skip"),
    "tasmota": Preset("Tasmota", ("tele/+/SENSOR",), "topic[1]", missing="skip"),
    "shelly-gen1": Preset(
        "Shelly, generation 1", ("shellies/+/+/#",), "topic[1]", TEXT, key="topic[2:]", missing="last"
    ),
    "shelly-gen2": Preset(
        "Shelly, generation 2 and later",
        ("+/events/rpc", "+/status/switch:0"),
        "topic[0]",
        rows="params || @",
        missing="last",
    ),
    "esphome": Preset(
        "ESPHome", ("+/sensor/+/state", "+/binary_sensor/+/state"), "topic[0]", TEXT, key="topic[2]", missing="last"
    ),
    "homeassistant": Preset(
        "Home Assistant, MQTT Statestream",
        ("homeassistant/sensor/+/state", "homeassistant/binary_sensor/+/state"),
        "topic[2]",
        TEXT,
        missing="skip",
    ),
    "chirpstack": Preset(
        "ChirpStack 4",
        ("application/+/device/+/event/up",),
        "payload.deviceInfo.devEui",
        rows="object",
        struct_path="data",
    ),
    "things-stack": Preset(
        "The Things Stack 3",
        ("v3/+/devices/+/up",),
        "payload.end_device_ids.device_id",
        rows="uplink_message.decoded_payload",
        struct_path="uplink_message.frm_payload",
    ),
    "frigate": Preset("Frigate, events", ("frigate/events",), "payload.after.camera", rows="after"),
    "frigate-snapshot": Preset("Frigate, snapshots", ("frigate/+/+/snapshot",), "topic[1]", "image/jpeg"),
    "kepware": Preset(
        "Kepware IoT Gateway",
        ("iotgateway",),
        "topic[0]",
        rows="values[?q != `false`]",
        record_name="id",
        record_value="v",
        missing="last",
    ),
    "neuron": Preset("Neuron, values format", ("/neuron/+/+/+",), "payload.node", rows="values", missing="skip"),
    "neuron-tags": Preset(
        "Neuron, tags format",
        ("/neuron/+/+/+",),
        "payload.node",
        rows="tags",
        record_name="name",
        record_value="value",
        missing="skip",
    ),
    "opcua": Preset(
        "OPC UA PubSub, JSON",
        ("opcua/json/data/#",),
        "payload.PublisherId",
        rows="Messages[].Payload || Messages.Payload",
    ),
    "victron": Preset("Victron Venus OS", ("N/+/#",), "topic[1]", rows="value", key="topic[2:]", missing="last"),
    "sparkplug": Preset("Sparkplug B", ("spBv1.0/+/+/#",), "topic[3:]", SPARKPLUG, rows="metrics", missing="last"),
    "senml": Preset("SenML in JSON", ("sensors/#",), "payload.bn", "application/senml+json", missing="skip"),
    "senml-cbor": Preset("SenML in CBOR", ("sensors/#",), "payload.bn", "application/senml+cbor", missing="skip"),
}
