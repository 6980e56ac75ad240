"""Limits of the MQTT frontend, and the configured routes. They are checked when they are built."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from gateway.domain.errors import ConfigurationError
from gateway.frontends.mqtt.results.settings import ResultSettings
from gateway.frontends.mqtt.rules.settings import RuleSettings

CONTENT_TYPES = (
    "application/json",
    "application/cbor",
    "application/x-msgpack",
    "application/octet-stream",
    "image/jpeg",
    "image/png",
)
RANGES = (
    ("keepalive_s", 1, 65_535),
    ("receive_maximum", 1, 65_535),
    ("max_inflight", 1, 65_535),
    ("max_outbox", 1, 65_535),
    ("max_outbox_bytes", 1_024, 2**32),
    ("max_queued", 1, 65_535),
    ("max_running", 1, 65_535),
    ("session_expiry_s", 0, 2**32 - 1),  # MQTT 5 keeps intervals in four bytes
    ("will_delay_s", 0, 2**32 - 1),
    ("max_result_bytes", 1_024, 268_435_455),
    ("max_packet_bytes", 1_024, 268_435_455),  # the largest packet of the protocol (MQTT 5, 2.1.4)
)
"""Settings with a minimum and a maximum."""
SENSOR_FORM = re.compile(r"topic(\[\d{1,3}\])?|payload(\.[^.\s]+)+|property\.\S+")
OUTPUT_NAME_LIMIT_CHARS = 256
"""Longest name of an output, as long as names of tensors may be (manifest_toml)."""
SECURE_PORT, PLAIN_PORT = 8883, 1883


@dataclass(frozen=True, slots=True)
class MqttRoute:
    """Settings of one `[[mqtt.route]]`: its topics, its model, and the format of its payloads."""

    name: str
    """Level of the result topic `edge/<id>/results/<name>/<sensor>`."""
    topics: tuple[str, ...]
    """Topic filters, with + and #; `$share/<group>/…` shares them with other gateways."""
    model: str
    """Model that runs; it may be loaded later."""
    version: str = ""
    """Version of the model; empty: the one that the policy serves."""
    sensor: str = "topic"
    """Rule for the sensor's name.

    topic[i] (a level, from 0), topic (all of it), payload.a.b (JSON, CBOR) or property.x (MQTT 5).
    """
    content_type: str = "application/json"
    """Content type of payloads that have no Content Type property."""
    qos: int = 1
    """Quality of service of the subscription, 0 or 1; results are published with the same."""
    hop_rows: int = 0
    """Samples between two windows; 0: as the manifest's [window] says."""
    size_rows: int = 0
    """Samples in a window; 0: as the manifest's [window] says."""
    max_sensors: int = 10_000
    """Sensors with a window of their own; beyond it the least recently seen one is dropped and counted."""
    idle_expiry_s: float = 60.0
    """Time without samples after which a sensor's window starts again, as its samples no longer belong together."""
    outputs: tuple[str, ...] = ()
    """Outputs of the model that results carry by name.

    Empty: label and score if an output is a score vector, else all outputs.
    """
    dtype: str = ""
    """Datatype of application/octet-stream (FP32, INT16, …); empty: that of the model's input."""
    shape: tuple[int, ...] = ()
    """Shape of application/octet-stream; empty: that of the model's input."""
    result: ResultSettings = field(default_factory=ResultSettings)
    """Which results are published, and in which form."""
    rule: tuple[RuleSettings, ...] = ()
    """Rules that decide on the results of each sensor, and publish messages of their own."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work. Raises ConfigurationError (table mqtt.route)."""
        for key, wrong, rule in (
            ("name", not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", self.name), "1 to 64 letters, digits, '.', '_' or '-'"),
            ("topics", not self.topics, "at least one topic filter"),
            ("model", not self.model, "the name of a model"),
            ("sensor", not SENSOR_FORM.fullmatch(self.sensor), "topic[i], topic, payload.<path> or property.<name>"),
            ("content_type", self.media not in CONTENT_TYPES, f"one of {', '.join(CONTENT_TYPES)}"),
            ("qos", self.qos not in {0, 1}, "0 or 1"),
            ("hop_rows", not 0 <= self.hop_rows <= 1_000_000, "0 to 1000000 rows"),
            ("size_rows", not 0 <= self.size_rows <= 1_000_000, "0 to 1000000 rows"),
            ("max_sensors", not 1 <= self.max_sensors <= 1_000_000, "1 to 1000000"),
            ("idle_expiry_s", not self.idle_expiry_s > 0, "more than 0 seconds"),
            ("outputs", not _are_names(self.outputs), f"different names of 1 to {OUTPUT_NAME_LIMIT_CHARS} characters"),
            ("shape", any(side < 1 for side in self.shape), "positive sizes"),
            ("rule", len({rule.name for rule in self.rule}) < len(self.rule), "rules of different names"),
        ):
            if wrong:
                value = getattr(self, key)
                raise ConfigurationError(f"must be {rule}, not {value!r:.150}", table=self.table, key=key)

    @property
    def table(self) -> str:
        """Return the name of this route in error messages."""
        return f"mqtt.route[{self.name}]"

    @property
    def media(self) -> str:
        """Return the content type without its parameters, in lower case."""
        return self.content_type.partition(";")[0].strip().lower()


@dataclass(frozen=True, slots=True)
class HomeAssistantSettings:
    """Settings of `[mqtt.home_assistant]`: discovery of the gateway and its sensors."""

    enabled: bool = False
    """Whether the gateway, and sensors once they have a result, are announced to Home Assistant."""
    prefix: str = "homeassistant"
    """Home Assistant's discovery prefix."""
    max_sensors: int = 200
    """Sensors of all routes that are announced; others are counted and not announced."""
    birth_delay_s: float = 5.0
    """Upper end of the random delay after a start of Home Assistant before everything is announced again."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work. Raises ConfigurationError (table mqtt.home_assistant)."""
        for key, wrong, rule in (
            ("prefix", not re.fullmatch(r"(?!edge(/|$))[^+#$/\0][^+#\0]{0,255}", self.prefix), "a topic, not edge/…"),
            ("max_sensors", not 1 <= self.max_sensors <= 10_000, "1 to 10000"),
            ("birth_delay_s", not 0 <= self.birth_delay_s <= 3600, "0 to 3600 seconds"),
        ):
            if wrong:
                problem = f"must be {rule}, not {getattr(self, key)!r:.80}"
                raise ConfigurationError(problem, table="mqtt.home_assistant", key=key)


@dataclass(frozen=True, slots=True)
class MqttSettings:
    """Settings of the connection to the broker; `<id>` in `response_prefixes` is the gateway's id."""

    url: str = ""
    """URL of the broker, mqtt://host[:port] or mqtts://host[:port], without password; empty: no MQTT."""
    username: str | None = None
    """User name at the broker; None: anonymous."""
    password_file: str | None = None
    """File whose first line is the password."""
    ca: str | None = None
    """PEM file of the authorities that may sign the broker's certificate; None: the system's."""
    cert: str | None = None
    """PEM file of our client certificate."""
    key: str | None = None
    """PEM file of its key."""
    keepalive_s: int = 30
    """Time without packets after which we send a ping; also the broker's time to answer a connection or a ping."""
    session_expiry_s: int = 86_400
    """Time for which the broker keeps our subscriptions and unacknowledged messages without a connection (MQTT 5)."""
    will_delay_s: int = 5
    """Time between a lost connection and the Will, `offline` (MQTT 5), so that short gaps are not published."""
    connect_timeout_s: float = 5.0
    """Time for a TCP connection and its TLS handshake."""
    reconnect_min_s: float = 1.0
    """Upper end of the first random delay before a reconnect; it doubles with every failure."""
    reconnect_max_s: float = 60.0
    """Upper end of every later delay; a connection that lasted this long resets the doubling."""
    receive_maximum: int = 64
    """Unacknowledged QoS 1 messages the broker may send us at a time (MQTT 5)."""
    max_inflight: int = 20
    """Unacknowledged QoS 1 publications in flight, or the broker's Receive Maximum if that is less."""
    max_outbox: int = 4_000
    """Publications that wait for the broker; beyond it they are dropped and counted."""
    max_outbox_bytes: int = 64 * 2**20
    """Payload bytes that the broker has not accepted; beyond it further publications are dropped and counted."""
    max_queued: int = 256
    """QoS 1 jobs at which the socket is no longer read; QoS 0 jobs that may wait before the oldest is dropped."""
    max_running: int = 32
    """Inferences in progress at a time."""
    max_payload_bytes: int = 4 * 2**20
    """Largest payload that is decoded; a larger one is refused as TOO_LARGE."""
    max_packet_bytes: int = 16 * 2**20
    """Largest packet that the broker may send us (MQTT 5; it discards larger ones)."""
    max_result_bytes: int = 256 * 2**10
    """Largest result of a route that is published; a larger one is refused as TOO_LARGE."""
    max_topic_bytes: int = 1_024
    """Longest topic or response topic that is accepted."""
    response_prefixes: tuple[str, ...] = ()
    """Permitted prefixes of a Response Topic; none: any topic that is not a gateway's own, routed or `$…`."""
    dedup_ttl_s: float = 120.0
    """Time for which an answered message is remembered, so that a repetition does not run again."""
    dedup_entries: int = 4_096
    """Messages that are remembered."""
    dedup_bytes: int = 8 * 2**20
    """Bytes of answers that are remembered."""
    max_attempts: int = 3
    """Runs after which a message is refused permanently, if it fails with INTERNAL or the broker refuses its answer."""
    retry_min_s: float = 0.05
    """Upper end of the first random delay before an overloaded or failed inference is tried again; it doubles."""
    retry_max_s: float = 5.0
    """Upper end of every later delay."""
    error_repeat_s: float = 10.0
    """Time between two errors of a window route whose model is unavailable; every sample is counted."""
    home_assistant: HomeAssistantSettings = field(default_factory=HomeAssistantSettings)
    """Discovery by Home Assistant."""
    route: tuple[MqttRoute, ...] = ()
    """Routes from sensors' messages to models."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work. Raises ConfigurationError (table mqtt)."""
        if self.url:
            broker_of(self.url)
        for key, least, most in RANGES:
            if not least <= getattr(self, key) <= most:
                raise _refused(key, f"must be between {least} and {most}, not {getattr(self, key)}")
        for key in ("reconnect_min_s", "reconnect_max_s", "connect_timeout_s", "retry_min_s", "retry_max_s"):
            if not 0 < getattr(self, key) <= 3600:
                raise _refused(key, f"must be more than 0 and at most 3600 seconds, not {getattr(self, key)}")
        if bool(self.cert) != bool(self.key):
            raise _refused("cert" if self.key else "key", "missing; a client certificate needs both cert and key")
        if self.password_file and not self.username:
            raise _refused("username", "missing; a password without a user name is never asked for")
        for prefix in self.response_prefixes:
            if not prefix or set(prefix) & set("+#\0"):
                raise _refused("response_prefixes", f"{prefix!r} must be the beginning of a topic, without + and #")


@dataclass(frozen=True, slots=True)
class Broker:
    """Address of the broker."""

    host: str
    port: int
    secure: bool


def broker_of(url: str) -> Broker:
    """Return host and port of `mqtt://…` or `mqtts://…`. Raises ConfigurationError (table mqtt, key url)."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _refused("url", f"{url!r:.150} is no broker address: {error}") from None
    if parts.username or parts.password:
        raise _refused("url", "must hold no user and password; set username and password_file")
    if parts.scheme not in {"mqtt", "mqtts"} or not parts.hostname or parts.path.strip("/") or parts.query:
        raise _refused("url", f"{url!r:.150} is no broker address; write mqtt://host:1883 or mqtts://host:8883")
    secure = parts.scheme == "mqtts"
    return Broker(parts.hostname, port or (SECURE_PORT if secure else PLAIN_PORT), secure)


def _are_names(names: tuple[str, ...]) -> bool:
    fit = all(0 < len(name) <= OUTPUT_NAME_LIMIT_CHARS and name.isprintable() for name in names)
    return fit and len(set(names)) == len(names)


def _refused(key: str, problem: str) -> ConfigurationError:
    return ConfigurationError(problem, table="mqtt", key=key)
