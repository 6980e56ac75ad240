"""Results of cameras, their states, and the pictures of their events, at one broker.

Of frames the newest counts: results do not wait for a broker that is away, and only some for one that is slow. Messages
of rules wait until the outbox is full, and so does the newest picture of each camera.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest
from gateway.serving.domain.cameras import CameraAnswer, KnownCamera
from gateway.serving.frontends.mqtt.messages import JSON, REFUSED, Message, OutgoingPublish
from gateway.serving.frontends.mqtt.outbound.contents import plan_results, write_error
from gateway.serving.frontends.mqtt.outbound.context import Outlet, RouteContext
from gateway.serving.frontends.mqtt.outbound.delivery import Debt
from gateway.serving.frontends.mqtt.outbound.inputs import Ready, message_id
from gateway.serving.frontends.mqtt.outbound.results import RouteResults
from gateway.serving.frontends.mqtt.settings.broker import EVERY_CAMERA
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.settings.templates import RESULT_NAMES, RULE_NAMES, read_template, render_topic

_log = logging.getLogger(__name__)
JPEG = "image/jpeg"
PENDING_LIMIT = 8
"""Most results of one camera on one route that wait for the broker: those of a broker that is slow are soon old."""
PUBLISH_BYTES = 64
"""More bytes than a PUBLISH of a picture has besides topic and payload."""


_Routes = dict[str, list[tuple[MqttRoute, RouteResults]]]


def _results_of(routes: _Routes) -> set[RouteResults]:
    return {results for several in routes.values() for _, results in several}


def _without_cameras(route: MqttRoute) -> MqttRoute:
    """Return a route as it is for any cameras."""
    return replace(route, cameras=(EVERY_CAMERA,))


def camera_topic(gateway_id: str, camera: str, kind: str) -> str:
    """Return the topic of a camera's `status` (online, offline) or `snapshot` (JPEG)."""
    return f"edge/{gateway_id}/cameras/{camera}/{kind}"


class CameraLink(Outlet, Protocol):
    """Interface of the link to the broker, as far as cameras use it."""

    @property
    def packet_limit_bytes(self) -> int | None: ...
    def publish_status(self, publication: OutgoingPublish) -> None: ...


class CameraResults:
    """Publisher for the cameras of the routes of one broker; other cameras are ignored.

    Implements `domain.cameras.CameraListener`.
    """

    def __init__(self, context: RouteContext, link: CameraLink, cameras: Sequence[KnownCamera] = ()) -> None:
        self._id, self._counters, self._topics, self._link = context.gateway_id, context.counters, context.topics, link
        self._engine, self._context = context.engine, context
        self._repeat_ns = int(context.settings.error_repeat_s * 1e9)
        self._known: dict[str, KnownCamera] = {}
        self._routes: _Routes = {}
        self._take([route for route in context.settings.route if route.cameras], cameras)
        self._streaming = dict.fromkeys(self._routes, False)
        self._pictures: dict[str, bytes] = {}
        """Newest picture of each camera that could not be sent yet."""
        self._pending = Counter[tuple[str, str]]()
        """Results that the broker has not accepted yet, by route and camera."""
        self._refused_ns: dict[tuple[str, str], int] = {}

    def follow(self, routes: Sequence[MqttRoute], cameras: Sequence[KnownCamera]) -> None:
        """Publish for these routes and cameras from now on, and remove what the broker keeps of others."""
        former = self._take(routes, cameras)
        for camera, several in former.items():
            now = {results for _, results in self._routes.get(camera, ())}
            kept = {topic for route, _ in self._routes.get(camera, ()) for topic in self._retained(route, camera)}
            for route, results in several:
                if results not in now:
                    results.forget(camera)
                    self._remove([topic for topic in self._retained(route, camera) if topic not in kept])
            if camera not in self._routes:
                self._pictures.pop(camera, None)
                self._link.publish_status(
                    OutgoingPublish(camera_topic(self._id, camera, "status"), b"", 1, retain=True)
                )
                self._remove([camera_topic(self._id, camera, "snapshot")])
        used = _results_of(self._routes)
        for results in _results_of(former) - used:
            results.close()
        self._streaming = {camera: self._streaming.get(camera, False) for camera in (*self._known, *self._routes)}
        self._publish_states(self._routes.keys() - former.keys())

    def _take(self, routes: Sequence[MqttRoute], cameras: Sequence[KnownCamera]) -> _Routes:
        """Take routes. Those with other cameras only keep the states of their rules. Return what was before."""
        former, self._routes = self._routes, {}
        same = {_without_cameras(route): results for several in former.values() for route, results in several}
        self._known = {camera.name: camera for camera in cameras}
        for route in routes:
            results = same.get(_without_cameras(route)) or RouteResults(route, self._context)
            for camera in route.cameras:
                self._routes.setdefault(camera, []).append((route, results))
        return former

    def answered(self, answer: CameraAnswer) -> None:
        """Publish the results of a frame, and messages of rules."""
        for route, results in self._routes.get(answer.camera, ()):
            try:
                self._publish(route, results, answer)
            except RequestError as refused:
                self._complain(route, answer.camera, refused)
            except Exception:  # noqa: BLE001  a listener must not raise
                _log.exception("camera result failed: camera %s; report this traceback", answer.camera)

    def changed(self, camera: str, *, streaming: bool) -> None:
        """Publish that the frames of a camera begin or end to arrive."""
        self._streaming[camera] = streaming  # also without a route: one may come
        self._publish_states([camera])

    def pictured(self, camera: str, wall_ns: int, jpeg: bytes) -> None:
        """Publish the picture of an event, retained. One that is larger than the broker takes is dropped."""
        if camera not in self._routes:
            return
        topic, limit_bytes = camera_topic(self._id, camera, "snapshot"), self._link.packet_limit_bytes
        if limit_bytes is None or self._link.full:
            self._pictures[camera] = jpeg
        elif len(jpeg) + len(topic) + PUBLISH_BYTES > limit_bytes:
            self._counters["dropped_picture_too_large"] += 1
        else:
            self._pictures.pop(camera, None)
            self._link.publish(OutgoingPublish(topic, jpeg, 1, retain=True, content_type=JPEG))

    def connected(self) -> None:
        """Publish the states of all cameras: the broker may have lost them, or have those of an earlier process."""
        self._publish_states(self._streaming)
        self.resume()

    def resume(self) -> None:
        """Publish the pictures that waited."""
        for camera, jpeg in list(self._pictures.items()):
            self.pictured(camera, 0, jpeg)

    def take(self, message: Message) -> bool:
        """Take a state from the broker, and remove what it keeps of a camera that is no longer configured.

        Return False for any other message.
        """
        before, _, after = camera_topic(self._id, "+", "status").partition("+")
        if not (message.topic.startswith(before) and message.topic.endswith(after)):
            return False
        camera = message.topic.removeprefix(before).removesuffix(after)
        if message.retain and message.payload and camera not in self._routes:
            self._remove(camera_topic(self._id, camera, kind) for kind in ("snapshot", "status"))
            for route in {route for several in self._routes.values() for route, _ in several}:
                self._remove(self._retained(route, camera))
        self._link.acknowledge(message)
        return True

    def close(self) -> None:
        """Publish that no camera streams any more, and no more messages of rules."""
        online = [camera for camera, streaming in self._streaming.items() if streaming]
        self._streaming = dict.fromkeys(self._streaming, False)
        self._publish_states(online)
        for results in _results_of(self._routes):
            results.close()
        self._routes, self._streaming, self._pictures = {}, {}, {}

    def _remove(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._link.publish(OutgoingPublish(topic, b"", 1, retain=True))

    def _retained(self, route: MqttRoute, camera: str) -> Iterator[str]:
        """Yield the topics on which the broker may keep results, or messages of rules, of a camera."""
        kept = [(route.result.topic, "")] if route.result.retain else []
        for text, rule in (*kept, *((each.topic, each.name) for each in route.rule if each.retain)):
            template = read_template(text, RULE_NAMES)
            if not template.names & RESULT_NAMES:
                values = {"gateway": self._id, "route": route.name, "sensor": camera, "rule": rule}
                with suppress(RequestError):
                    self._topics.check(topic := render_topic(template, values))
                    yield topic

    def _publish(self, route: MqttRoute, results: RouteResults, answer: CameraAnswer) -> None:
        """Publish the result of one route. Raises RequestError as `RouteResults.encode`, and for missing outputs."""
        response = answer.response
        if missing := [name for name in route.outputs if name not in response.outputs]:
            known = ", ".join(response.outputs)
            problem = f"route '{route.name}': the answer has no output '{missing[0]}'; its outputs are {known:.300}"
            raise RequestError(Fault.UNSUPPORTED, f"{problem}: correct the route's outputs")
        plan = plan_results(answer.manifest, route.outputs, route.result)
        announced = self._announced(answer)
        ready = Ready(answer.camera, announced, plan, answer.tensor, answer.wall_ns, answer.wall_ns)
        message, key = Message("", b""), (route.name, answer.camera)
        debt = Debt(message, route.qos, "", identity=response.id or message_id(message, "", timed=False))
        payload = results.encode(debt, ready, lambda _ready, _version: plan, response)
        if payload is None:
            self._counters["suppressed"] += 1
        elif self._link.packet_limit_bytes is None:
            self._counters["dropped_broker_away"] += 1
            debt.drop()
        elif self._link.full or self._pending[key] >= PENDING_LIMIT:
            self._counters["dropped_outbox_full"] += 1
            debt.drop()
        else:
            self._pending[key] += 1
            if not self._link.publish(debt.publication(payload, partial(self._taken, debt, key))):
                self._taken(debt, key, REFUSED)

    def _announced(self, answer: CameraAnswer) -> ModelManifest:
        """Return the manifest of the camera's version: Home Assistant must not follow each answer of several."""
        with suppress(RequestError):
            known = self._known.get(answer.camera)
            if known is not None and known.model == answer.manifest.name:
                return self._engine.describe(known.model, known.version)
        return answer.manifest

    def _taken(self, debt: Debt, key: tuple[str, str], code: int) -> None:
        """Handle the broker's code for a result: the next frame brings another one, so that it is not sent again."""
        self._pending[key] -= 1
        if code >= REFUSED:
            debt.drop()
        self._counters["answered"] += code < REFUSED

    def _complain(self, route: MqttRoute, camera: str, refused: RequestError) -> None:
        """Publish why a result is not published, once per `error_repeat_s`: each frame would repeat it."""
        self._counters["refused"] += 1
        now_ns, last_ns = time.monotonic_ns(), self._refused_ns.get((route.name, camera))
        if not self._link.full and (last_ns is None or now_ns - last_ns >= self._repeat_ns):
            self._refused_ns[route.name, camera] = now_ns
            payload = write_error("", f"edge/{self._id}/cameras/{camera}", refused)
            self._link.publish(OutgoingPublish(f"edge/{self._id}/errors", payload, content_type=JSON))

    def _publish_states(self, cameras: Iterable[str]) -> None:
        for camera in cameras:
            if camera not in self._routes:
                continue
            word = b"online" if self._streaming[camera] else b"offline"
            self._link.publish_status(OutgoingPublish(camera_topic(self._id, camera, "status"), word, 1, retain=True))
