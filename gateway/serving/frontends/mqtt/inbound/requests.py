"""Inference requests on the infer topics, and the topics that their answers may use. Pure: no I/O."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import msgspec

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import Steps
from gateway.common.domain.text_model import REQUEST, STREAM, TEXT
from gateway.serving.domain.infer import InferRequest, InferResponse, Parameter
from gateway.serving.frontends.mqtt.inbound.payloads.content import ContentType, read_content_type
from gateway.serving.frontends.mqtt.inbound.payloads.formats import FORMATS
from gateway.serving.frontends.mqtt.inbound.payloads.raw import RAW
from gateway.serving.frontends.mqtt.inbound.routing import Router
from gateway.serving.frontends.mqtt.messages import JSON, Message
from gateway.serving.frontends.mqtt.outbound.delivery import Reply
from gateway.serving.frontends.mqtt.outbound.publish_topics import ANY_TOPIC, PublishTopics
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings
from gateway.serving.frontends.mqtt.settings.results import TRACE_CONTEXT
from gateway.serving.frontends.mqtt.settings.templates import is_topic
from gateway.serving.frontends.oip_json import BINARY_SIZE, JsonBody, parse_body, request_steps
from gateway.serving.frontends.oip_json_answers import encode_response
from gateway.serving.frontends.oip_raw import raw_request

CALLER = "mqtt:infer"
"""Caller of all requests: a broker does not identify publishers."""
Describe = Callable[[str, str], ModelManifest]
"""Function that returns the manifest of a model and version."""
Asked = tuple[InferRequest, Callable[[InferResponse], bytes]]


REPLY_TOPIC, CORRELATION = "reply_topic", "correlation"
"""Parameters of a request in place of Response Topic and Correlation Data, which MQTT 3.1.1 lacks."""
CORRELATION_LIMIT_CHARS = 1_024
BINARY_FORMS = ("application/cbor", "application/x-msgpack", "application/msgpack")
"""Formats of requests besides JSON and raw numbers: the same object, in which `data` may be a byte string."""


class _Parameters(msgspec.Struct):
    reply_topic: str = ""
    correlation: str = ""


class _ReplyBody(msgspec.Struct):
    parameters: _Parameters = msgspec.field(default_factory=_Parameters)


_REPLY_BODY = msgspec.json.Decoder(_ReplyBody)


class Requests:
    """Reader of requests on `edge/<id>/infer/<model>[/<version>]`."""

    def __init__(
        self,
        settings: MqttSettings,
        gateway_id: str,
        router: Router,
        describe: Describe,
        topics: PublishTopics = ANY_TOPIC,
    ) -> None:
        self._home = f"edge/{gateway_id}/"
        self.prefix = f"{self._home}infer/"
        """Beginning of the topics of requests."""
        self._prefixes = tuple(prefix.replace("<id>", gateway_id) for prefix in settings.response_prefixes)
        self._max_topic_bytes, self._max_payload_bytes = settings.max_topic_bytes, settings.max_payload_bytes
        discovery = settings.home_assistant
        self._reserved = ("edge/", "$", *((f"{discovery.prefix}/",) if discovery.enabled else ()))
        self._router, self._topics, self._describe = router, topics, describe

    def model(self, topic: str) -> str:
        """Return the model that `topic` names."""
        return topic.removeprefix(self.prefix).partition("/")[0]

    def reply(self, message: Message) -> Reply:
        """Return the destination of the answer. One that is in the body becomes the message's.

        Raises RequestError: INVALID without a usable response topic, DENIED for a topic that requests may not name.
        Without that check every client that may publish requests could make the gateway publish on any topic.
        """
        body_correlation = "" if message.response_topic else self._read_body(message)
        topic = message.response_topic
        if not topic:
            problem = "the request has no Response Topic; set one, or with MQTT 3.1.1 the parameter reply_topic"
            raise RequestError(Fault.INVALID, problem)
        if not is_topic(topic) or len(topic.encode(errors="replace")) > self._max_topic_bytes:
            limit = self._max_topic_bytes
            problem = (
                f"the Response Topic must be a topic without +, # and control characters, of at most {limit} bytes"
            )
            raise RequestError(Fault.INVALID, problem)
        if self._prefixes and not topic.startswith(self._prefixes):
            problem = f"answers go only to topics that begin with {', '.join(self._prefixes)} (mqtt.response_prefixes)"
            raise RequestError(Fault.DENIED, problem)
        is_reply = topic.startswith(f"{self._home}reply/")
        if not is_reply and (topic.startswith(self._reserved) or self._router.is_taken(topic)):
            problem = "answers never go to a gateway's own topics (but edge/<id>/reply/), a route's, or the broker's"
            raise RequestError(Fault.DENIED, problem)
        self._topics.check(topic)
        user = tuple(pair for pair in message.user if pair[0] in TRACE_CONTEXT)
        return Reply(topic, message.correlation, user, body_correlation)

    def steps(self, message: Message) -> Steps[Asked]:
        """Return the request, and the function that encodes its answer.

        Raises RequestError INVALID if topic, content type or body is wrong.
        """
        model, _, version = message.topic.removeprefix(self.prefix).partition("/")
        if not model or "/" in version:
            raise RequestError(Fault.INVALID, f"ask on {self.prefix}<model> or {self.prefix}<model>/<version>")
        content = read_content_type(message.content_type or JSON)
        if content.media == RAW:
            request = raw_request(
                memoryview(message.payload), self._describe(model, version), version, caller=CALLER
            ).request
            request.deadline_ns = message.deadline_ns()
            return request, partial(_encode, None)
        parsed, binary = _parsed(message.payload, content)
        given = parsed.parameters or {}
        correlation, _ = given.pop(CORRELATION, None), given.pop(REPLY_TOPIC, None)
        yield
        asked = yield from request_steps(
            parsed, model, version, binary=binary, now_ns=message.arrived_ns, caller=CALLER, regions=None
        )
        request = asked.request
        wants = request.inputs.get(STREAM) if {TEXT, REQUEST} & request.inputs.keys() else None
        request.in_parts = request.whole_last = wants is not None and bool(wants.array.all())
        ends = [end for end in (request.deadline_ns, message.deadline_ns()) if end is not None]
        request.deadline_ns = min(ends, default=None)
        return request, partial(_encode, correlation)

    def _read_body(self, message: Message) -> str:
        """Take topic and correlation of the answer from a request's parameters. Return the correlation.

        Tensors are skipped, at 0.7 ms per MB. Raises RequestError INVALID if it is too long.
        """
        if len(message.payload) > self._max_payload_bytes:
            return ""
        try:
            given = _REPLY_BODY.decode(message.payload).parameters
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return ""
        if len(given.correlation) > CORRELATION_LIMIT_CHARS:
            problem = f"the parameter correlation has more than {CORRELATION_LIMIT_CHARS} characters; shorten it"
            raise RequestError(Fault.INVALID, problem)
        message.response_topic = given.reply_topic
        message.correlation = given.correlation.encode(errors="replace") or message.correlation
        return given.correlation


def _parsed(payload: bytes, content: ContentType) -> tuple[JsonBody, memoryview | None]:
    """Return the body of a request, and the tensors whose `data` are byte strings of CBOR or MessagePack.

    Raises RequestError INVALID.
    """
    if content.media == JSON:
        return parse_body(payload), None
    if content.media not in BINARY_FORMS:
        known = ", ".join((JSON, *BINARY_FORMS, RAW))
        raise RequestError(Fault.INVALID, f"requests are {known}, not '{content.media:.80}'")
    raw = list[bytes]()
    try:
        document = FORMATS[content.media](payload, content)
        for item in document["inputs"]:
            if isinstance(item["data"], bytes):
                raw.append(item.pop("data"))
                item["parameters"] = {**item.get("parameters", {}), BINARY_SIZE: len(raw[-1])}
        write = json.dumps if any(item["datatype"] == "BYTES" for item in document["inputs"]) else msgspec.json.encode
        body = write(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        problem = f"the request body is no inference request: {type(error).__name__}: {error}"
        raise RequestError(Fault.INVALID, problem) from None
    return parse_body(body.encode() if isinstance(body, str) else body), memoryview(b"".join(raw)) if raw else None


def _encode(correlation: Parameter | None, response: InferResponse) -> bytes:
    """Return an answer. It repeats a correlation that came in the body, as its parameter."""
    if correlation is not None:
        response.parameters = {**response.parameters, CORRELATION: correlation}
    return bytes(encode_response(response))
