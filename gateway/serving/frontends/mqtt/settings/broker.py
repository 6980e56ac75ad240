"""Settings of the MQTT frontend, of its connections and of each broker. They are checked when they are built."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import urlsplit

from gateway.common.domain.errors import ConfigurationError, suggest
from gateway.serving.frontends.mqtt.settings.route import DEFAULT_BROKER, MqttRoute


@dataclass(frozen=True, slots=True)
class HomeAssistantSettings:
    """Settings of `[mqtt.home_assistant]`: discovery of the gateway and its sensors."""

    enabled: bool = False
    """Announce the gateway, and each sensor after its first result, to Home Assistant."""
    prefix: str = "homeassistant"
    """Home Assistant's discovery prefix."""
    max_sensors: int = 200
    """Sensors of all routes that are announced; others are counted and not announced."""
    birth_delay_s: ClassVar[float] = 5.0
    """Upper end of the random delay after a start of Home Assistant before everything is announced again."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work. Raises ConfigurationError (table mqtt.home_assistant)."""
        for key, wrong, rule in (
            ("prefix", not re.fullmatch(r"(?!edge(/|$))[^+#$/\0][^+#\0]{0,255}", self.prefix), "a topic, not edge/…"),
            ("max_sensors", not 1 <= self.max_sensors <= 10_000, "1 to 10000"),
        ):
            if wrong:
                problem = f"must be {rule}, not {getattr(self, key)!r:.80}"
                raise ConfigurationError(problem, table="mqtt.home_assistant", key=key)


PACKET_LIMIT_BYTES = 268_435_455
"""Largest packet of the protocol (MQTT 5, 2.1.4)."""
RANGES = (
    ("keepalive_s", 1, 65_535),
    ("session_expiry_s", 0, 2**32 - 1),  # MQTT 5 keeps intervals in four bytes
    ("max_payload_bytes", 0, PACKET_LIMIT_BYTES),
    ("max_result_bytes", 1_024, PACKET_LIMIT_BYTES),
    ("max_held_bytes", 0, 2**32),
    ("connect_timeout_s", 0.001, 3600),
    ("hold_s", 0.001, 3600),
)
"""Settings with a minimum and a maximum."""
PROTOCOLS = ("auto", "5", "3.1.1")
SECURE_PORT, PLAIN_PORT = 8883, 1883
BROKER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class MqttBroker:
    """Settings of one `[[mqtt.broker]]`: another broker than that of `[mqtt]`.

    Address, user, certificates and discovery are its own, so that no password goes to a broker that it is not for. What
    is None is as in `[mqtt]`.
    """

    name: str
    """Name of the broker, for `broker` of routes, in metrics and in the journal's folder."""
    url: str
    """URL of the broker, mqtt://host[:port] or mqtts://host[:port], without password."""
    username: str | None = None
    """User name at this broker; None: anonymous."""
    username_file: str | None = None
    """File whose first line is the user name."""
    password_file: str | None = None
    """File whose first line is the password."""
    ca: str | None = None
    """PEM file of the authorities that may sign this broker's certificate; None: the system's."""
    cert: str | None = None
    """PEM file of our client certificate for this broker."""
    key: str | None = None
    """PEM file of its key."""
    response_prefixes: tuple[str, ...] | None = None
    """Permitted prefixes of a Response Topic."""
    publish_topics: tuple[str, ...] | None = None
    """Topic filters that bound where results, messages of rules and answers are published at this broker."""
    home_assistant: HomeAssistantSettings = field(default_factory=HomeAssistantSettings)
    """Discovery by Home Assistant at this broker; off unless it is enabled here."""

    def __post_init__(self) -> None:
        """Refuse a name that cannot be a folder's, and a missing URL. Raises ConfigurationError (table mqtt.broker)."""
        table = f"mqtt.broker[{self.name:.80}]"
        if not BROKER_NAME.fullmatch(self.name) or self.name == DEFAULT_BROKER:
            problem = "must be 1 to 64 letters, digits, '.', '_' or '-', begin with a letter or digit, and not be "
            raise ConfigurationError(
                f"{problem}{DEFAULT_BROKER!r}, which is the broker of [mqtt]; it is {self.name!r:.150}",
                table=table,
                key="name",
            )
        if not self.url:
            raise ConfigurationError("missing; write mqtt://host:1883 or mqtts://host:8883", table=table, key="url")


@dataclass(frozen=True, slots=True)
class MqttSettings:
    """Settings of the connection to the broker; `<id>` in prefixes and `publish_topics` is the gateway's id."""

    url: str = ""
    """URL of the broker, mqtt://host[:port] or mqtts://host[:port], without password; empty: no MQTT."""
    username: str | None = None
    """User name at the broker; None: anonymous."""
    username_file: str | None = None
    """File whose first line is the user name, in place of `username`."""
    password_file: str | None = None
    """File whose first line is the password; this file and others may be `credential:NAME` (files/credentials.py)."""
    protocol: str = "auto"
    """Protocol version: "5", "3.1.1", or "auto" for MQTT 5 unless the broker is known to refuse it."""
    ca: str | None = None
    """PEM file of the authorities that may sign the broker's certificate; None: the system's."""
    cert: str | None = None
    """PEM file of our client certificate."""
    key: str | None = None
    """PEM file of its key."""
    keepalive_s: int = 30
    """Time without packets after which we send a ping; also the broker's time to answer a ping."""
    session_expiry_s: int = 86_400
    """Time for which the broker keeps our subscriptions and unacknowledged messages without a connection (MQTT 5)."""
    connect_timeout_s: float = 5.0
    """Time for a TCP connection and its TLS handshake; then for the answer to CONNECT (longer after failures, at most
    `keepalive_s`); then for the other connection, before `offline` is said."""
    max_payload_bytes: int = 4 * 2**20
    """Largest payload that is decoded; a larger one is refused as TOO_LARGE."""
    max_result_bytes: int = 256 * 2**10
    """Largest result of a route that is published; a larger one is refused as TOO_LARGE."""
    response_prefixes: tuple[str, ...] = ()
    """Permitted prefixes of a Response Topic; none: any topic that is not a gateway's own, routed or `$…`."""
    publish_topics: tuple[str, ...] = ()
    """Topic filters that bound where results, messages of rules and answers are published; none: no bound."""
    dedup_ttl_s: float = 120.0
    """Time for which an answered message is remembered, so that a repetition does not run again."""
    hold_s: float = 600.0
    """Time for which messages wait for a model that loads; then the route's `model_away` applies."""
    max_held_bytes: int = 32 * 2**20
    """Memory, and about as much disk, of messages that wait for their model; the next is refused as UNAVAILABLE."""
    journal: bool = True
    """Keep samples of windows on the disk, from before their acknowledgement until their results are delivered."""
    home_assistant: HomeAssistantSettings = field(default_factory=HomeAssistantSettings)
    """Discovery by Home Assistant."""
    route: tuple[MqttRoute, ...] = ()
    """Routes from sensors' messages to models."""
    broker: tuple[MqttBroker, ...] = ()
    """Other brokers, by name (`brokers`)."""
    will_delay_s: ClassVar[int] = 5
    """Time between a lost connection and the Will, `offline` (MQTT 5), so that short gaps are not published."""
    subscribe_timeout_s: ClassVar[float] = 10.0
    """Time for the broker's answer to our subscriptions; then the connection is made again."""
    publish_timeout_s: ClassVar[float] = 30.0
    """Time for the broker's PUBACK of a publication; then the connection is made again."""
    reconnect_min_s: ClassVar[float] = 1.0
    """Upper end of the first random delay before a reconnect; it doubles with every failure."""
    reconnect_max_s: ClassVar[float] = 60.0
    """Upper end of every later delay; a connection that lasted this long resets the doubling."""
    receive_maximum: ClassVar[int] = 64
    """Unacknowledged QoS 1 messages the broker may send us at a time (MQTT 5)."""
    max_inflight: ClassVar[int] = 100
    """Unacknowledged QoS 1 publications in flight, or the broker's Receive Maximum if that is less."""
    max_outbox: ClassVar[int] = 4_000
    """Publications that the broker has not accepted at which messages are no longer read."""
    max_outbox_bytes: ClassVar[int] = 64 * 2**20
    """Payload bytes that the broker has not accepted at which messages are no longer read."""
    max_queued: ClassVar[int] = 256
    """QoS 1 jobs at which the socket is no longer read; QoS 0 jobs that may wait before the oldest is dropped."""
    max_running: ClassVar[int] = 32
    """Inferences in progress at a time."""
    max_topic_bytes: ClassVar[int] = 1_024
    """Longest topic or response topic that is accepted."""
    dedup_entries: ClassVar[int] = 4_096
    """Messages that are remembered."""
    dedup_bytes: ClassVar[int] = 8 * 2**20
    """Bytes of answers that are remembered."""
    max_attempts: ClassVar[int] = 3
    """Runs after which a message is refused permanently, if it fails with INTERNAL or the broker refuses its answer."""
    retry_min_s: ClassVar[float] = 0.05
    """Upper end of the first random delay before an overloaded or failed inference is tried again; it doubles."""
    retry_max_s: ClassVar[float] = 5.0
    """Upper end of every later delay."""
    error_repeat_s: ClassVar[float] = 10.0
    """Time between two errors of a window route whose model is unavailable, or two log lines of one refused topic."""
    journal_commit_s: ClassVar[float] = 0.05
    """Least time between two syncs of the journal; samples that come meanwhile are synced together."""
    journal_commit_messages: ClassVar[int] = 16
    """Messages that wait for the journal and end that time; at most as many as the broker has in flight to us."""
    journal_snapshot_bytes: ClassVar[int] = 4 * 2**20
    """Growth of the journal after which it is replaced by what is still needed, or 4 times that if it is more."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work. Raises ConfigurationError (table mqtt)."""
        if self.url:
            broker_of(self.url)
        for key, least, most in RANGES:
            if not least <= getattr(self, key) <= most:
                raise _refused(key, f"must be between {least} and {most}, not {getattr(self, key)}")
        if self.protocol not in PROTOCOLS:
            raise _refused("protocol", f"must be one of {', '.join(PROTOCOLS)}, not {self.protocol!r:.150}")
        if bool(self.cert) != bool(self.key):
            raise _refused("cert" if self.key else "key", "missing; a client certificate needs both cert and key")
        if self.username and self.username_file:
            raise _refused("username_file", "absent, because username is set; remove one of them")
        if self.password_file and not (self.username or self.username_file):
            raise _refused("username", "missing; a password without a user name is never asked for")
        for prefix in self.response_prefixes:
            if not prefix or set(prefix) & set("+#\0"):
                raise _refused("response_prefixes", f"{prefix!r} must be the beginning of a topic, without + and #")

    @property
    def max_packet_bytes(self) -> int:
        """Return the size of the largest packet that the broker may send; the connection ends before a larger one.

        A payload that is too large can thus be read, and refused with an error.
        """
        return min(PACKET_LIMIT_BYTES, max(2**20, 4 * self.max_payload_bytes))


@dataclass(frozen=True, slots=True)
class Broker:
    """Address of the broker."""

    host: str
    port: int
    secure: bool


def broker_of(url: str) -> Broker:
    """Return host and port of `mqtt://…` or `mqtts://…`. Raises ConfigurationError (table mqtt, key url)."""
    if "@" in url:  # not from `urlsplit`, which takes a password with "/" for a port and quotes it
        raise _refused("url", "must hold no user and password; set username and password_file")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _refused("url", f"{url!r:.150} is no broker address: {error}") from None
    if parts.scheme not in {"mqtt", "mqtts"} or not parts.hostname or parts.path.strip("/") or parts.query:
        raise _refused(
            "url", f"{url!r:.150} is no broker address; write mqtt://host:1883 or mqtts://host:8883 (EG-604)"
        )
    secure = parts.scheme == "mqtts"
    return Broker(parts.hostname, port or (SECURE_PORT if secure else PLAIN_PORT), secure)


def _refused(key: str, problem: str, broker: str = DEFAULT_BROKER) -> ConfigurationError:
    return ConfigurationError(problem, table=table_of(broker), key=key)


OWN = ("url", "username", "username_file", "password_file", "ca", "cert", "key", "home_assistant")
"""Settings that are never those of `[mqtt]`: a password is sent only to the broker that it is for."""


def brokers(settings: MqttSettings, cameras: Sequence[str] = ()) -> dict[str, MqttSettings]:
    """Return the settings of each broker by name; that of `[mqtt]`, if it has a URL, is the first one.

    Routes name each of their `cameras`. Those of no route have the route CAMERA_ROUTE of `[mqtt]`. Raises
    ConfigurationError that names the broker or the route.
    """
    if not settings.url and not settings.broker:
        return {}
    settings = dataclasses.replace(settings, route=tuple(_with_cameras(settings, cameras)))
    found = {DEFAULT_BROKER: _own(settings, DEFAULT_BROKER)} if settings.url else {}
    for broker in settings.broker:
        if broker.name in found:
            raise _refused("name", "two brokers have this name; names must differ", broker.name)
        given = {spec.name: getattr(broker, spec.name) for spec in dataclasses.fields(broker) if spec.name != "name"}
        changes = {key: value for key, value in given.items() if value is not None or key in OWN}
        with blamed_on(broker.name):
            found[broker.name] = dataclasses.replace(_own(settings, broker.name), **changes)
    _check_addresses(found)
    _check_routes(settings.route, found)
    return found


def table_of(name: str) -> str:
    """Return the table of a broker in error messages."""
    return "mqtt" if name == DEFAULT_BROKER else f"mqtt.broker[{name}]"


@contextmanager
def blamed_on(name: str) -> Iterator[None]:
    """Let errors of the table `mqtt` name the table of this broker."""
    try:
        yield
    except ConfigurationError as error:
        if error.table != "mqtt":
            raise
        raise ConfigurationError(error.problem, file=error.file, table=table_of(name), key=error.key) from None


def _own(settings: MqttSettings, name: str) -> MqttSettings:
    """Return the settings with the routes of one broker."""
    return dataclasses.replace(settings, broker=(), route=tuple(each for each in settings.route if each.broker == name))


CAMERA_ROUTE = "camera"
"""Name of the route of cameras that no route names."""
EVERY_CAMERA = "*"


def _with_cameras(settings: MqttSettings, cameras: Sequence[str]) -> Iterator[MqttRoute]:
    """Yield the routes with the names of all their cameras, and that of cameras that no route names."""
    left = dict.fromkeys(cameras)
    for route in settings.route:
        if not route.cameras:
            yield route
            continue
        names = dict.fromkeys(route.cameras)
        if EVERY_CAMERA in names:
            names = {name: None for name in (*cameras, *names) if name != EVERY_CAMERA}
        if unknown := [name for name in names if name not in cameras]:
            known = f"known are {', '.join(cameras)}" if cameras else "there is no [[camera]]"
            problem = f"no camera is called {unknown[0]!r:.80}{suggest(unknown[0], cameras)}; {known}"
            raise ConfigurationError(problem, table=route.table, key="cameras")
        left = {name: None for name in left if name not in names}
        if names:
            yield dataclasses.replace(route, cameras=tuple(names))
    if left and settings.url:
        if taken := [route for route in settings.route if route.name == CAMERA_ROUTE]:
            problem = f"cameras that no route names have the route {CAMERA_ROUTE!r}, here {', '.join(left):.150}"
            problem += "; name them in a route, or rename this one"
            raise ConfigurationError(problem, table=taken[0].table, key="name")
        yield MqttRoute(CAMERA_ROUTE, cameras=tuple(left))


def _check_addresses(found: dict[str, MqttSettings]) -> None:
    """Refuse two brokers at one address: both would have our client id, and end each other's connections."""
    names: dict[tuple[str, int], str] = {}
    for name, settings in found.items():
        with blamed_on(name):
            address = broker_of(settings.url)
        other = names.setdefault((address.host, address.port), name)
        if other != name:
            problem = f"{settings.url!r:.150} is the address of broker {other!r} too; let its routes name that one"
            raise _refused("url", problem, name)


def _check_routes(routes: Collection[MqttRoute], names: Collection[str]) -> None:
    counts = Counter(route.name for route in routes)
    for route in routes:
        if counts[route.name] > 1:
            problem = f"two routes are called {route.name!r}; names must differ"
            raise ConfigurationError(problem, table=route.table, key="name")
        if route.broker not in names:
            known = ", ".join(names)
            problem = f"no broker is called {route.broker!r:.80}; known are {known}; others need a [[mqtt.broker]]"
            if route.broker == DEFAULT_BROKER:
                problem = f"[mqtt] has no url; set it, or name another broker: {known}"
            raise ConfigurationError(problem, table=route.table, key="broker")
