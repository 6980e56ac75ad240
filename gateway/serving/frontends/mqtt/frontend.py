"""MQTT frontend, as the daemon starts and stops it, with its metrics (METRICS.md).

There is one for each broker, so that a broker that is away does not affect the others (decision 0049).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.statistics import MetricSample
from gateway.common.files.durable import make_folder
from gateway.common.files.locks import sole_writer
from gateway.serving.domain.cameras import CameraAnswer, KnownCamera
from gateway.serving.domain.ports import InferenceEngine
from gateway.serving.frontends.mqtt.home_assistant.announcements import Announcements
from gateway.serving.frontends.mqtt.home_assistant.announcer import Announcer
from gateway.serving.frontends.mqtt.inbound.reading import PayloadReader
from gateway.serving.frontends.mqtt.inbound.routing import Router
from gateway.serving.frontends.mqtt.journal.journal import SampleJournal
from gateway.serving.frontends.mqtt.journal.writer import CommitRhythm
from gateway.serving.frontends.mqtt.messages import Message, OutgoingPublish, Subscription
from gateway.serving.frontends.mqtt.outbound.context import RouteContext
from gateway.serving.frontends.mqtt.outbound.publish_topics import PublishTopics
from gateway.serving.frontends.mqtt.pipeline.cameras import CameraResults, camera_topic
from gateway.serving.frontends.mqtt.pipeline.pipeline import MessagePipeline
from gateway.serving.frontends.mqtt.session.connection import ReadBatch
from gateway.serving.frontends.mqtt.session.identity import RESULTS_SUFFIX, MqttIdentity
from gateway.serving.frontends.mqtt.session.link import Link
from gateway.serving.frontends.mqtt.session.listener import Welcome
from gateway.serving.frontends.mqtt.session.subscriptions import SubscriptionRecord
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings, blamed_on, broker_of
from gateway.serving.frontends.mqtt.settings.route import DEFAULT_BROKER, MqttRoute
from gateway.serving.frontends.mqtt.settings.templates import is_topic

_LOG = logging.getLogger(__name__)
ONLINE, OFFLINE = "online", "offline"
GOODBYE_S = 2.0
"""Time for the `offline` message and the disconnect after the grace period."""


def checked_routes(settings: MqttSettings, gateway_id: str, counters: Counter[str]) -> tuple[Router, PublishTopics]:
    """Return the routes of one broker and the topics that they may publish on.

    Raises ConfigurationError for an id that is no level of a topic, and for routes that cannot work.
    """
    if not is_topic(gateway_id) or "/" in gateway_id or len(gateway_id) > 128:
        problem = f"{gateway_id!r:.150} must be 1 to 128 characters without + # and /; it is part of topics"
        raise ConfigurationError(problem, table="gateway", key="id")
    router = Router(settings.route, gateway_id)
    topics = PublishTopics(settings.publish_topics, gateway_id, counters)
    for route in settings.route:
        topics.check_route(route)
        if route.topics:
            PayloadReader(route)
    return router, topics


class MqttFrontend:
    """MQTT frontend for requests, sensors and cameras. Construct, `start`, `stop`; all on one event loop."""

    def __init__(
        self,
        engine: InferenceEngine,
        settings: MqttSettings,
        gateway_id: str,
        folder: Path | None = None,
        *,
        name: str = DEFAULT_BROKER,
        idle: Callable[[], None] = lambda: None,
        cameras: Sequence[KnownCamera] = (),
    ) -> None:
        """Set up the frontend; `settings.url` must be set. Raises ConfigurationError for routes that cannot work.

        `folder`: for the journal and the record of subscriptions; None: there are none. `name`: the broker's, for
        metrics. `idle` is called when no job is left. `cameras`: those that routes name, and perhaps others.
        """
        self._engine, self._settings, self._id, self._folder = engine, settings, gateway_id, folder
        self._name, self._idle, self._known_cameras = name, idle, cameras
        self._journal: SampleJournal | None = None
        self._journal_problem = ""
        self._counters: Counter[str] = Counter()
        self._router, self._topics = checked_routes(settings, gateway_id, self._counters)
        self._link: Link | None = None
        self._announcer: Announcer | None = None
        self._pipeline: MessagePipeline | None = None
        self.cameras: CameraResults | None = None
        """Listener to cameras; None before the start."""
        self._timer: asyncio.TimerHandle | None = None
        self.online = asyncio.Event()
        """Set while the broker grants everything that was asked for."""

    async def start(self) -> None:
        """Begin to connect and return at once, even if the broker is unavailable or its password cannot be read."""
        settings = self._settings
        identities = (
            MqttIdentity(self._id, self._status(OFFLINE)),
            MqttIdentity(f"{self._id}{RESULTS_SUFFIX}", None, clean=True),
        )
        asked, record = [Subscription(f"edge/{self._id}/infer/#", 1)], None
        if self._folder is not None:
            record = SubscriptionRecord(self._folder, settings.url, self._id)
        states, held = Subscription(camera_topic(self._id, "+", "status"), 1, retained=True), record and record.filters
        if any(route.cameras for route in settings.route) or states.filter in (held or ()):
            asked.append(states)  # also without cameras if there were some: what the broker keeps of them is removed
        announcements = Announcements(
            settings.home_assistant, self._id, settings.route, self._counters, self._known_cameras
        )
        discovery = announcements.subscriptions if settings.home_assistant.enabled else ()
        self._link = Link(
            settings,
            f"edge/{self._id}/",
            identities,
            (*asked, *self._router.subscriptions, *discovery),
            connack=self._on_connack,
            receive=self._receive,
            changed=self._changed,
            room=self._resume,
            batch=ReadBatch(self._engine.hold, self._engine.release),
            counters=self._counters,
            record=record,
        )
        if discovery:
            self._announcer = Announcer(announcements, settings, self._id, engine=self._engine, outlet=self._link)
        self._journal = self._opened_journal()
        seen = None if self._announcer is None else self._announcer.seen
        context = RouteContext(
            self._engine, settings, self._id, self._link, self._counters, self._topics, self._journal, seen
        )
        self.cameras = CameraResults(context, self._link, self._known_cameras)
        messages = replace(settings, route=tuple(route for route in settings.route if route.topics))
        self._pipeline = MessagePipeline(replace(context, settings=messages), self._router, self._idle)
        self._pipeline.recover()
        self._link.start()

    def follow(self, routes: Sequence[MqttRoute], cameras: Sequence[KnownCamera]) -> None:
        """Publish for these routes of cameras from now on. Routes with topics are as before."""
        self._known_cameras, own = cameras, [route for route in routes if route.cameras]
        topical = [route for route in self._settings.route if not route.cameras]
        self._settings = replace(self._settings, route=(*topical, *own))
        if self.cameras is not None:
            self.cameras.follow(own, cameras)
        if self._announcer is not None:
            self._announcer.follow(self._settings.route, cameras)

    async def stop(self, grace_s: float) -> None:
        """Accept no more messages, finish those in progress, publish `offline` and disconnect.

        Messages that are not finished after `grace_s` stay unacknowledged: the broker sends them again after the next
        start.
        """
        if self._link is None or self._pipeline is None:
            return
        if self._announcer is not None:
            self._announcer.close()
        ends_s = asyncio.get_running_loop().time() + grace_s
        await self._pipeline.drain(grace_s)
        if self.cameras is not None:
            self.cameras.close()
        await self._link.drain(max(GOODBYE_S, ends_s - asyncio.get_running_loop().time()))
        await self._link.stop(self._status(OFFLINE), GOODBYE_S)
        self._stop_timer()
        journal, self._journal = self._journal, None
        if journal is not None:
            await asyncio.to_thread(journal.close)
        self.online.clear()

    def readiness_changed(self) -> None:
        """Publish the readiness of models, which may have changed, and continue with windows that waited for one."""
        if self._pipeline is not None:
            self._pipeline.readiness_changed()
        if self._announcer is not None and self._link is not None and self._link.connected:
            self._announcer.readiness_changed()

    def counters(self) -> Mapping[str, int]:
        """Return counters since the start, and gauges (`metrics.GAUGES`)."""
        gauges = {} if self._pipeline is None else self._pipeline.gauges
        if self._link is None:
            return {**self._counters, **gauges, "outbox": 0, "connected": 0, "problems": 0}
        link = self._link
        states = {"outbox": link.waiting, "connected": int(link.connected), "problems": len(link.health)}
        return {**self._counters, **gauges, **states}

    def samples(self) -> Iterable[MetricSample]:
        """Return the metrics (METRICS.md)."""
        return samples(self._name, self.counters(), {} if self._link is None else self._link.welcomes)

    @property
    def problem(self) -> str:
        """Return what the broker does not grant, for operators; "" if it grants everything."""
        journal = self._journal.problem if self._journal else self._journal_problem
        found = [] if self._link is None else list(self._link.health)
        return "; ".join([*found, *([f"journal: {journal}"] if journal else [])])

    def _opened_journal(self) -> SampleJournal | None:
        """Return the journal if it is configured, and its folder can be used."""
        settings = self._settings
        if self._folder is None or not settings.journal:
            return None
        try:
            rhythm = CommitRhythm(settings.journal_commit_s, settings.journal_commit_messages, settings.retry_max_s)
            size = settings.journal_snapshot_bytes
            return SampleJournal(self._folder, rhythm, snapshot_bytes=size, counters=self._counters)
        except OSError as error:
            _LOG.warning("no MQTT journal: %s; a crash loses samples of windows that are not full", error)
            self._journal_problem = str(error)
            return None

    def _on_connack(self, welcome: Welcome, epoch: int) -> None:
        broker = broker_of(self._settings.url)
        if self._pipeline is not None:
            home = f"{welcome.client_id}@{broker.host}:{broker.port}"
            self._pipeline.connected(home, epoch, resumed=welcome.resumed)

    def _receive(self, message: Message) -> None:
        if self._announcer is not None and self._announcer.take(message):
            return
        if self.cameras is not None and self.cameras.take(message):
            return
        if self._pipeline is not None:
            self._pipeline.receive(message)

    def _resume(self) -> None:
        if self.cameras is not None:
            self.cameras.resume()
        if self._pipeline is not None:
            self._pipeline.resume()

    def _changed(self) -> None:
        """Publish `online` at once, `offline` if the link is not complete in time."""
        if self._link is None:
            return
        if self._link.connected:
            self._stop_timer()
            if self.cameras is not None:  # before `online`: the broker may have states of an earlier process
                self.cameras.connected()
            self._link.publish_status(self._status(ONLINE))
            if self._announcer is not None:
                self._announcer.connected()
            self.online.set()
            return
        self.online.clear()
        if self._timer is None:
            wait_s = self._settings.connect_timeout_s
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._publish_offline)

    def _publish_offline(self) -> None:
        self._timer = None
        if self._link is not None and self._link.has_status and not self._link.connected:
            self._link.publish_status(self._status(OFFLINE))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _status(self, word: str) -> OutgoingPublish:
        return OutgoingPublish(f"edge/{self._id}/status", word.encode(), qos=1, retain=True)


GAUGES = frozenset({"connected", "queued", "running", "sensors", "outbox", "problems"})
DROPPED = "dropped_"
NOW, EVENTS = "MQTT connections, queues and windows, by kind.", "MQTT messages and link events, by event."
LIMITS = ("receive_maximum", "maximum_packet_bytes", "maximum_qos", "keepalive_s", "retain")
"""Limits of the broker, as its CONNACK says them."""


def samples(broker: str, counters: Mapping[str, int], connections: Mapping[str, Welcome]) -> Iterator[MetricSample]:
    """Yield one sample per counter of `MqttFrontend.counters()`, and those of each connection, by its role.

    `broker`: the broker's name, a label of all of them.
    """
    for name, value in counters.items():
        if name in GAUGES:
            yield MetricSample("edge_gateway_mqtt_now", NOW, value, {"broker": broker, "what": name}, counter=False)
        elif name.startswith(DROPPED):
            labels = {"broker": broker, "reason": name.removeprefix(DROPPED)}
            yield MetricSample("edge_gateway_mqtt_drops_total", "Messages that were dropped.", value, labels)
        else:
            yield MetricSample("edge_gateway_mqtt_events_total", EVENTS, value, {"broker": broker, "event": name})
    for role, accepted in connections.items():
        common = {"broker": broker, "connection": role}
        labels = {**common, "protocol": accepted.version, "client_id": accepted.client_id}
        yield MetricSample("edge_gateway_mqtt_connection_info", "Connections to the broker.", 1, labels, counter=False)
        for name in LIMITS:
            limit, value = {**common, "limit": name}, int(getattr(accepted, name))
            yield MetricSample("edge_gateway_mqtt_broker_limit", "Limits of the broker.", value, limit, counter=False)


FOLDER = "mqtt-brokers"
"""Folder of the folders of all brokers but the default one, whose journal has kept its place."""
LOCK_FILE = "mqtt.lock"
REMEDY = "stop it, or give this gateway a folder of its own with --state: only verdicts are shared"


class MqttFrontends:
    """Frontends by the name of their broker. Construct, `start`, `stop`; all on one event loop.

    Implements `domain.cameras.CameraListener`.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        brokers: Mapping[str, MqttSettings],
        gateway_id: str,
        folder: Path | None,
        idle: Callable[[], None] = lambda: None,
        *,
        cameras: Sequence[KnownCamera] = (),
    ) -> None:
        """Set up the frontends. Raises ConfigurationError as `MqttFrontend`."""
        self._frontends: dict[str, MqttFrontend] = {}
        self._folders: list[Path] = []
        for name, settings in brokers.items():
            own = folder if folder is None or name == DEFAULT_BROKER else folder / FOLDER / name
            self._folders += [own] if own else []
            with blamed_on(name):
                self._frontends[name] = MqttFrontend(
                    engine, settings, gateway_id, own, name=name, idle=idle, cameras=cameras
                )

    @property
    def online(self) -> bool:
        """Return True if all brokers grant everything that was asked for."""
        return all(frontend.online.is_set() for frontend in self._frontends.values())

    @property
    def problem(self) -> str:
        """Return what brokers do not grant, for operators; "" if all grant everything."""
        found = {name: frontend.problem for name, frontend in self._frontends.items()}
        if len(found) == 1:
            return next(iter(found.values()))
        return "; ".join(f"broker {name}: {problem}" for name, problem in found.items() if problem)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the locks of the brokers' folders. Raises UnreachableError if another daemon writes to one of them."""
        with ExitStack() as stack:
            for folder in self._folders:
                try:
                    make_folder(folder)
                    stack.enter_context(sole_writer(folder / LOCK_FILE, "edge-gateway with MQTT", REMEDY))
                except OSError as error:
                    _LOG.warning("MQTT state not locked: %s: %s; let no other gateway use this folder", folder, error)
            yield

    async def start(self) -> None:
        """Begin to connect to all brokers."""
        for frontend in self._frontends.values():
            await frontend.start()

    async def stop(self, grace_s: float) -> None:
        """Stop all frontends at the same time, each as `MqttFrontend.stop`."""
        await asyncio.gather(*(frontend.stop(grace_s) for frontend in self._frontends.values()))

    def follow(self, brokers: Mapping[str, MqttSettings], cameras: Sequence[KnownCamera]) -> None:
        """Publish for the routes of cameras of these brokers from now on. Brokers that are new wait for a restart."""
        for name, frontend in self._frontends.items():
            frontend.follow(brokers[name].route if name in brokers else (), cameras)

    def answered(self, answer: CameraAnswer) -> None:
        """Publish the results of a camera's frame, at the brokers of its routes."""
        for cameras in self._listeners():
            cameras.answered(answer)

    def changed(self, camera: str, *, streaming: bool) -> None:
        """Publish that a camera's frames begin or end to arrive."""
        for cameras in self._listeners():
            cameras.changed(camera, streaming=streaming)

    def pictured(self, camera: str, wall_ns: int, jpeg: bytes) -> None:
        """Publish the picture of an event."""
        for cameras in self._listeners():
            cameras.pictured(camera, wall_ns, jpeg)

    def _listeners(self) -> Iterator[CameraResults]:
        return (each.cameras for each in self._frontends.values() if each.cameras is not None)

    def readiness_changed(self) -> None:
        """Tell all frontends that models may have become ready or unready."""
        for frontend in self._frontends.values():
            frontend.readiness_changed()

    def samples(self) -> Iterable[MetricSample]:
        """Yield the metrics of all brokers (METRICS.md)."""
        for frontend in self._frontends.values():
            yield from frontend.samples()
