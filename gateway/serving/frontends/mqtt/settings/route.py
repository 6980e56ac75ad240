"""Settings of routes: topics, model, form of payloads, and quota. They are checked when they are built."""

from __future__ import annotations

import dataclasses
import re
import struct
from dataclasses import dataclass, field
from typing import ClassVar

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.settings import SIGNED
from gateway.serving.frontends.mqtt.settings.paths import check_path
from gateway.serving.frontends.mqtt.settings.presets import FILLED, JSON, PRESETS, SPARKPLUG
from gateway.serving.frontends.mqtt.settings.results import ResultSettings
from gateway.serving.frontends.mqtt.settings.rules import RuleSettings
from gateway.serving.frontends.mqtt.settings.samples import MqttTime, MqttWindow

LAYOUT_LIMIT_CHARS = 128
"""Longest layout."""
FIELDS_LIMIT = 1_024
"""Most numbers of one packed row."""
_LAYOUT_FORM = re.compile(r"[<>!]( *\d{0,4}[xbBhHiIlLqQefd?])+ *")


def compile_layout(layout: str) -> struct.Struct:
    """Return the compiled layout.

    Raises ValueError if it has no byte order, other types than numbers, or too many fields.
    """
    if len(layout) > LAYOUT_LIMIT_CHARS or not _LAYOUT_FORM.fullmatch(layout):
        raise ValueError("a layout is < or > (the byte order) and types of Python's struct: bBhHiIqQ, efd, ? and x")
    compiled = struct.Struct(layout)
    fields = sum(int(count or 1) for count, code in re.findall(r"(\d*)([a-zA-Z?])", layout) if code != "x")
    if not 0 < fields <= FIELDS_LIMIT:
        raise ValueError(f"a layout has 1 to {FIELDS_LIMIT} fields, not {fields}")
    return compiled


QUOTA_TABLE = "mqtt.route.quota"
RATE_LIMIT, BURST_LIMIT = 1_000_000, 10_000_000
BURST_S = 10.0
"""Time whose messages may come at once if `burst` does not say how many."""
_QUOTA_FORM = re.compile(r"(topic(\[\d{1,3}:?\])?|property\.\S+)?")


@dataclass(frozen=True, slots=True)
class MqttQuota:
    """Settings of one `[mqtt.route.quota]`. What exceeds it is dropped, counted, and reported as an error."""

    messages_per_s: float = 0.0
    """Messages per second of each sensor, on average; 0: no quota."""
    burst: int = 0
    """Messages that a sensor may send at once, such as those that the broker kept for us; 0: those of 10 s."""
    by: str = ""
    """Name that a quota belongs to: topic, topic[i], topic[i:] or property.<name>; empty: as `sensor` of the route."""
    max_sensors: ClassVar[int] = 10_000
    """Sensors whose use is remembered; of more, the one that sent least recently begins with a full quota again."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work. Raises ConfigurationError (table mqtt.route.quota)."""
        for key, wrong, rule in (
            ("messages_per_s", not 0 <= self.messages_per_s <= RATE_LIMIT, f"0 to {RATE_LIMIT} messages per second"),
            ("messages_per_s", not self.messages_per_s and bool(self.burst or self.by), "more than 0 with burst or by"),
            ("burst", not 0 <= self.burst <= BURST_LIMIT, f"0 to {BURST_LIMIT} messages"),
            ("by", not _QUOTA_FORM.fullmatch(self.by), "topic, topic[i], topic[i:] or property.<name>"),
        ):
            if wrong:
                raise ConfigurationError(f"must be {rule}, not {getattr(self, key)!r:.150}", table=QUOTA_TABLE, key=key)

    @property
    def allowance(self) -> float:
        """Return the messages that may come at once."""
        return self.burst or max(1.0, self.messages_per_s * BURST_S)


PROTOBUF = ("application/protobuf", "application/x-protobuf")
CONTENT_TYPES = (
    *(JSON, "application/x-ndjson", "text/plain", "text/csv", "application/cbor"),
    *("application/x-msgpack", "application/msgpack", "application/senml+json", "application/senml+cbor"),
    *(*PROTOBUF, SPARKPLUG, "application/octet-stream", "image/jpeg", "image/png", "audio/wav"),
)
SENSOR_FORM = re.compile(r"topic(\[\d{1,3}:?\])?|payload(\.[^.\s]+)+|property\.\S+")
MESSAGE_ID_FORM = re.compile(r"(payload(\.[^.\s]+)+|property\.\S+)?")
KEY_FORM = re.compile(r"(topic\[\d{1,3}:?\])?")
MISSING = ("refuse", "skip", "last", "zero")
CHANNEL_TYPES = ("number", "flag")
MODEL_AWAY = ("refuse", "hold")
DEFAULT_BROKER = "default"
"""Name of the broker of `[mqtt]`."""
BYTE_ORDERS, ENCODINGS = ("little", "big"), ("base64", "hex")
OUTPUT_NAME_LIMIT_CHARS = 256
"""Longest name of an output, as long as names of tensors may be (manifest_toml)."""
CHANNELS_LIMIT = 1_024
"""Most channels of a route."""
WORDS_LIMIT = 256
"""Most words of a channel."""
CAMERA_KEYS = frozenset({"name", "cameras", "broker", "qos", "outputs", "max_sensors", "result", "rule"})
"""Settings of a route with cameras."""


@dataclass(frozen=True, slots=True)
class MqttChannel:
    """Settings of one `[[mqtt.route.channel]]`: where its value is, and how the value becomes a number."""

    path: str
    """JMESPath of the value in a row, such as `temperature`, `BME280.Temperature` or `"switch:0".apower`."""
    name: str = ""
    """Channel of the model's [window]; empty: channels are in the order of the model's."""
    type: str = "number"
    """Kind of value: number, or flag, which makes every number but 0 to 1."""
    scale: float = field(default=1.0, metadata=SIGNED)
    """Factor of the value."""
    offset: float = field(default=0.0, metadata=SIGNED)
    """Summand after `scale`: value · scale + offset."""
    unit: str = ""
    """Unit of the number that results: Home Assistant shows it, nothing is converted."""
    words: tuple[str, ...] = ()
    """Words that stand for 0, 1, 2, …; empty: the known ones, such as OFF and ON, closed and open."""
    missing: str = ""
    """Policy for a value that is null, absent, unavailable or unknown: refuse, skip, last or zero; empty: preset's."""
    max_age_s: float = 3_600.0
    """Age beyond which `missing = "last"` does not use a value any more; the row is then left out."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work. Raises ConfigurationError (table mqtt.route.channel)."""
        check_path(self.path, "path", "mqtt.route.channel")
        for key, wrong, rule in (
            ("type", self.type not in CHANNEL_TYPES, f"one of {', '.join(CHANNEL_TYPES)}"),
            ("missing", self.missing not in {"", *MISSING}, f"one of {', '.join(MISSING)}"),
            ("scale", not self.scale, "a number other than 0"),
            (
                "words",
                len({word.casefold() for word in self.words[:WORDS_LIMIT]}) < len(self.words),
                f"at most {WORDS_LIMIT} different words, without regard to case",
            ),
            ("max_age_s", not self.max_age_s > 0, "more than 0 seconds"),
        ):
            if wrong:
                raise _refused("mqtt.route.channel", key, rule, getattr(self, key))


@dataclass(frozen=True, slots=True)
class MqttRoute:
    """Settings of one `[[mqtt.route]]`: its topics, its model, and the form of its payloads."""

    name: str
    """Level of the result topic `edge/<id>/results/<name>/<sensor>`."""
    topics: tuple[str, ...] = ()
    """Topic filters, with + and #; `$share/<group>/…` shares them with other gateways. Those of routes may overlap."""
    model: str = ""
    """Model that runs; it may be loaded later."""
    version: str = ""
    """Version of the model; empty: the one that the policy serves."""
    broker: str = DEFAULT_BROKER
    """Name of the broker with the topics of the route, and its results: that of `[mqtt]`, or a `[[mqtt.broker]]`."""
    preset: str = ""
    """Project whose payloads the route takes (presets.py); it fills in settings that are empty here."""
    sensor: str = ""
    """Rule for the sensor's name; empty: the preset's, else topic.

    topic[i] (a level, from 0), topic[i:] (that level and all after it), topic (all of it), payload.a.b (a document) or
    property.x (MQTT 5).
    """
    message_id: str = ""
    """Rule for what identifies a message: payload.a.b (a document) or property.x (MQTT 5); empty: nothing does.

    One with the same value, topic and payload as one of the last `mqtt.dedup_ttl_s` is a repetition.
    """
    content_type: str = ""
    """Content type of payloads that have no Content Type property; empty: the preset's, else application/json."""
    qos: int = 1
    """Quality of service of the subscription, 0 or 1; results are published with the same."""
    hop_rows: int = 0
    """Samples between two windows; 0: as the manifest's [window] says."""
    size_rows: int = 0
    """Samples in a window; 0: as the manifest's [window] says."""
    max_sensors: int = 10_000
    """Sensors with a window of their own; beyond it the least recently seen one is dropped and counted."""
    idle_expiry_s: float = 0.0
    """Time without samples after which a sensor's window starts again, as its samples no longer belong together.

    0: 20 intervals of its samples, at least 5 s, or 60 s if the model does not tell their rate.
    """
    model_away: str = "refuse"
    """Treatment of QoS 1 messages while the model is unavailable: refuse (with an error), or hold (they wait)."""
    outputs: tuple[str, ...] = ()
    """Outputs of the model that results carry by name.

    Empty: label and score if an output is a score vector, else all outputs.
    """
    at_most_once: bool = False
    """Acknowledge messages as they arrive and publish results at QoS 0: faster, and a failure loses them."""
    dtype: str = ""
    """Datatype of application/octet-stream (FP32, INT16, …); empty: that of the model's input."""
    shape: tuple[int, ...] = ()
    """Shape of application/octet-stream; empty: that of the model's input."""
    byte_order: str = "little"
    """Byte order of application/octet-stream: little or big."""
    lenient: bool = False
    """Also take a byte order mark, NUL at the end, and numbers in texts with a decimal comma or a unit: 21,5 °C."""
    rows: str = ""
    """JMESPath of the row, or of the array of rows, in a document; empty: the preset's, else the whole document."""
    record_name: str = ""
    """Key of the name in an array of records such as {"id": "t1", "v": 4}, which become one object; empty: none."""
    record_value: str = ""
    """Key of the value in these records."""
    key: str = ""
    """Levels of the topic under which a value becomes an object: topic[i] or topic[i:]; empty: it does not."""
    struct: str = ""
    """Layout of packed bytes, as Python's struct has it: byte order < or >, then types, such as <hhHf."""
    struct_path: str = ""
    """JMESPath of the packed bytes in a document; empty: the preset's, else the whole payload is packed."""
    struct_encoding: str = "base64"
    """Text form of packed bytes in a document: base64 or hex."""
    descriptor: str = ""
    """File with the FileDescriptorSet of application/protobuf (protoc --include_imports --descriptor_set_out)."""
    message: str = ""
    """Full name of the protobuf message, such as acme.Reading."""
    result: ResultSettings = field(default_factory=ResultSettings)
    """Selection and form of the results that are published."""
    cameras: tuple[str, ...] = ()
    """Names of cameras, in place of topics and model; "*": all. The sensor of a result is its camera."""
    rule: tuple[RuleSettings, ...] = ()
    """Rules that decide on the results of each sensor, and publish messages of their own."""
    time: MqttTime = field(default_factory=MqttTime)
    """Time and sequence number of samples: the table `[mqtt.route.time]`."""
    window: MqttWindow = field(default_factory=MqttWindow)
    """Windows that end by silence: the table `[mqtt.route.window]`."""
    quota: MqttQuota = field(default_factory=MqttQuota)
    """Messages that each sensor may send: the table `[mqtt.route.quota]`."""
    channel: tuple[MqttChannel, ...] = ()
    """Values of a row, in the order of the model's channels; empty: a row has the form of the model's input."""

    def __post_init__(self) -> None:
        """Fill in the preset, and refuse values that cannot work. Raises ConfigurationError (table mqtt.route)."""
        if not self.topics and not self.cameras:
            raise ConfigurationError("missing; name topic filters, or cameras", table=self.table, key="topics")
        if self.cameras:
            self._check_absent()
        else:
            self._fill()
        for key, wrong, rule in (*self._rules(), *self._payload_rules()):
            if wrong and not (self.cameras and key not in CAMERA_KEYS):
                raise _refused(self.table, key, rule, getattr(self, key))
        if self.quota.messages_per_s and not self.quota.by and self.sensor.startswith("payload"):
            problem = f"missing; {self.sensor} is read too late for a quota: name topic, topic[i] or property.<name>"
            raise ConfigurationError(problem, table=self.table, key="quota.by")
        if self.struct:
            try:
                compile_layout(self.struct)
            except ValueError as error:
                problem = f"{self.struct!r:.150} cannot be used: {error}"
                raise ConfigurationError(problem, table=self.table, key="struct") from None
        for key in ("rows", "struct_path"):
            if getattr(self, key):
                check_path(getattr(self, key), key, self.table)

    @property
    def table(self) -> str:
        """Return the name of this route in error messages."""
        return f"mqtt.route[{self.name}]"

    @property
    def media(self) -> str:
        """Return the content type without its parameters, in lower case."""
        return self.content_type.partition(";")[0].strip().lower()

    @property
    def result_qos(self) -> int:
        """Return the quality of service of the results of windows."""
        return 0 if self.at_most_once else self.qos

    def _check_absent(self) -> None:
        """Refuse what messages have and frames of cameras have not. Raises ConfigurationError."""
        for spec in dataclasses.fields(self):
            default = spec.default if spec.default_factory is dataclasses.MISSING else spec.default_factory()
            if spec.name not in CAMERA_KEYS and getattr(self, spec.name) != default:
                problem = "must be absent: the route has cameras, and takes their frames in place of messages"
                raise ConfigurationError(problem, table=self.table, key=spec.name)

    def _fill(self) -> None:
        if self.preset and self.preset not in PRESETS:
            raise _refused(self.table, "preset", f"one of {', '.join(PRESETS)}", self.preset)
        preset = PRESETS.get(self.preset)
        filled = {name: getattr(self, name) or getattr(preset, name, "") for name in FILLED}
        filled["sensor"] = filled["sensor"] or "topic"
        filled["content_type"] = filled["content_type"] or JSON
        if self.struct:
            filled["rows"] = self.rows  # packed bytes take the place of what the preset's project decoded
        policy = preset.missing if preset else MISSING[0]
        channels = tuple(dataclasses.replace(each, missing=each.missing or policy) for each in self.channel)
        for name, value in {**filled, "channel": channels}.items():
            object.__setattr__(self, name, value)

    def _rules(self) -> tuple[tuple[str, bool, str], ...]:
        return (
            ("name", not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", self.name), "1 to 64 letters, digits, '.', '_' or '-'"),
            ("model", not self.model, "the name of a model"),
            (
                "sensor",
                not SENSOR_FORM.fullmatch(self.sensor),
                "topic[i], topic[i:], topic, payload.<path> or property.<name>",
            ),
            ("message_id", not MESSAGE_ID_FORM.fullmatch(self.message_id), "payload.<path> or property.<name>"),
            ("content_type", self.media not in CONTENT_TYPES, f"one of {', '.join(CONTENT_TYPES)}"),
            ("qos", self.qos not in {0, 1}, "0 or 1"),
            ("hop_rows", not 0 <= self.hop_rows <= 1_000_000, "0 to 1000000 rows"),
            ("size_rows", not 0 <= self.size_rows <= 1_000_000, "0 to 1000000 rows"),
            ("hop_rows", self.window.has_sessions and self.hop_rows > 0, "absent: sessions do not overlap"),
            (
                "idle_expiry_s",
                self.window.has_sessions and self.idle_expiry_s > 0,
                "absent: session_gap_s ends windows",
            ),
            ("max_sensors", not 1 <= self.max_sensors <= 1_000_000, "1 to 1000000"),
            ("model_away", self.model_away not in MODEL_AWAY, f"one of {', '.join(MODEL_AWAY)}"),
            ("outputs", not _are_names(self.outputs), f"different names of 1 to {OUTPUT_NAME_LIMIT_CHARS} characters"),
            ("shape", any(side < 1 for side in self.shape), "positive sizes"),
            ("rule", len({rule.name for rule in self.rule}) < len(self.rule), "rules of different names"),
        )

    def _payload_rules(self) -> tuple[tuple[str, bool, str], ...]:
        records, protobuf = bool(self.record_name), self.media in PROTOBUF
        lacks_lead = self.time.join_lead not in {"", *(name for one in self.channel for name in (one.path, one.name))}
        return (
            ("message_id", bool(self.message_id) and self.media == SPARKPLUG, "absent: Sparkplug numbers its messages"),
            ("byte_order", self.byte_order not in BYTE_ORDERS, "little or big"),
            ("record_value", bool(self.record_value) != records, "set together with record_name"),
            ("key", not KEY_FORM.fullmatch(self.key), "topic[i] or topic[i:]"),
            ("struct_encoding", self.struct_encoding not in ENCODINGS, "base64 or hex"),
            ("descriptor", protobuf and not self.descriptor, "the file of descriptors, for application/protobuf"),
            ("message", protobuf and not self.message, "the full name of a message, for application/protobuf"),
            ("channel", len(self.channel) > CHANNELS_LIMIT, f"at most {CHANNELS_LIMIT} channels"),
            ("rows", bool(self.rows and self.struct), "absent, because struct makes the rows"),
            ("channel", not self.channel and bool(self.struct), "present: struct needs a [[mqtt.route.channel]]"),
            ("channel", not self.channel and self.time.is_set, "present: time needs a [[mqtt.route.channel]]"),
            ("channel", len(self.channel) < 2 and self.time.joins, "at least two channels: join makes rows of them"),
            ("time", lacks_lead, "a join_lead that is the path or name of a channel"),
        )


def _are_names(names: tuple[str, ...]) -> bool:
    fit = all(0 < len(name) <= OUTPUT_NAME_LIMIT_CHARS and name.isprintable() for name in names)
    return fit and len(set(names)) == len(names)


def _refused(table: str, key: str, rule: str, value: object) -> ConfigurationError:
    return ConfigurationError(f"must be {rule}, not {value!r:.150}", table=table, key=key)
