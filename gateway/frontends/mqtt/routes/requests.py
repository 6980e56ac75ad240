"""Inference requests on the infer topics, and the topics that their answers may use. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.domain.errors import Fault, RequestError
from gateway.domain.infer import InferRequest, InferResponse
from gateway.domain.tensor import Steps
from gateway.frontends.mqtt.messages import JSON, Message, OutgoingPublish, Taken
from gateway.frontends.mqtt.payloads.content_type import read_content_type
from gateway.frontends.mqtt.routes.routing import Router
from gateway.frontends.mqtt.settings import MqttSettings
from gateway.frontends.oip_json import parse_body, request_steps
from gateway.frontends.oip_json_answers import encode_response

CALLER = "mqtt:infer"
"""Caller of all requests: a broker does not identify publishers."""
Asked = tuple[InferRequest, Callable[[InferResponse], bytes]]


@dataclass(frozen=True, slots=True)
class Reply:
    """Response topic and correlation data of a request."""

    topic: str
    correlation: bytes | None

    def publication(self, payload: bytes, qos: int, taken: Taken) -> OutgoingPublish:
        """Return an answer with the request's correlation data."""
        return OutgoingPublish(self.topic, payload, qos, content_type=JSON, correlation=self.correlation, taken=taken)


class Requests:
    """Reader of requests on `edge/<id>/infer/<model>[/<version>]`."""

    def __init__(self, settings: MqttSettings, gateway_id: str, router: Router) -> None:
        self._home = f"edge/{gateway_id}/"
        self._asked = f"{self._home}infer/"
        self._prefixes = tuple(prefix.replace("<id>", gateway_id) for prefix in settings.response_prefixes)
        self._max_topic_bytes = settings.max_topic_bytes
        self._router = router

    def asked(self, topic: str) -> bool:
        """Return True if requests are sent to `topic`."""
        return topic.startswith(self._asked)

    def model(self, topic: str) -> str:
        """Return the model that `topic` names."""
        return topic.removeprefix(self._asked).partition("/")[0]

    def reply(self, message: Message) -> Reply:
        """Return the destination of the answer.

        Raises RequestError: INVALID without a usable response topic, DENIED for a topic that requests may not name.
        Without that check every client that may publish requests could make the gateway publish on any topic.
        """
        topic = message.response_topic
        if not topic:
            raise RequestError(Fault.INVALID, "the request has no Response Topic; ask with MQTT 5 and set one")
        if set(topic) & set("+#\0") or len(topic.encode(errors="replace")) > self._max_topic_bytes:
            limit = self._max_topic_bytes
            problem = f"the Response Topic must be a topic without + and #, of at most {limit} bytes"
            raise RequestError(Fault.INVALID, problem)
        if self._prefixes and not topic.startswith(self._prefixes):
            problem = f"answers go only to topics that begin with {', '.join(self._prefixes)} (mqtt.response_prefixes)"
            raise RequestError(Fault.DENIED, problem)
        if self._taken(topic):
            problem = "answers never go to a gateway's own topics (but edge/<id>/reply/), a route's, or the broker's"
            raise RequestError(Fault.DENIED, problem)
        return Reply(topic, message.correlation)

    def steps(self, message: Message) -> Steps[Asked]:
        """Return the request, and the function that encodes its answer.

        Raises RequestError INVALID if topic, content type or body is wrong.
        """
        model, _, version = message.topic.removeprefix(self._asked).partition("/")
        if not model or "/" in version:
            raise RequestError(Fault.INVALID, f"ask on {self._asked}<model> or {self._asked}<model>/<version>")
        media = read_content_type(message.content_type or JSON).media
        if media != JSON:
            raise RequestError(Fault.INVALID, f"requests are {JSON}, not '{media:.80}'")
        parsed = parse_body(message.payload)
        yield
        asked = yield from request_steps(
            parsed, model, version, binary=None, now_ns=message.arrived_ns, caller=CALLER, regions=None
        )
        request = asked.request
        ends = [end for end in (request.deadline_ns, message.deadline_ns()) if end is not None]
        request.deadline_ns = min(ends, default=None)
        return request, lambda response: bytes(encode_response(response))

    def _taken(self, topic: str) -> bool:
        """Return True for topics that a gateway subscribes to or publishes on itself, and for the broker's own."""
        if topic.startswith(f"{self._home}reply/"):
            return False
        return topic.startswith(("edge/", "$")) or self._router.route(topic) is not None
