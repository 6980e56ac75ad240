"""PUBLISH packets (MQTT 5, 3.3): received ones as messages, and publications as bytes. Pure but for the clocks."""

from __future__ import annotations

import time

from gateway.serving.frontends.mqtt.messages import Message, OutgoingPublish
from gateway.serving.frontends.mqtt.session.control import DUP, NO_PROPERTIES, PUBLISH, QOS, QOS_1, RETAIN
from gateway.serving.frontends.mqtt.session.packets import MalformedPacketError, write_length, write_text
from gateway.serving.frontends.mqtt.session.properties import Property, read_properties, write_properties


def read_publish(first: int, body: bytes, epoch: int, *, version_5: bool) -> Message:
    """Return a message of the connection `epoch`, with the time now. Raises MalformedPacketError.

    A topic that is not UTF-8 becomes "", which no filter matches: the message is counted as unrouted.
    """
    qos = first & QOS
    topic_end = 2 + (body[0] << 8 | body[1]) if len(body) > 1 else 0
    start = topic_end + qos  # two bytes of packet id at QoS 1
    if qos > QOS_1 or topic_end < 3 or start + version_5 > len(body):
        raise MalformedPacketError("the broker sent a PUBLISH that is incomplete, of QoS 2, or without topic")
    has_properties = version_5 and body[start]
    properties, start = read_properties(body, start) if has_properties else ({}, start + version_5)
    try:
        topic = body[2:topic_end].decode()
    except UnicodeDecodeError:
        topic = ""
    message = Message(
        topic,
        body[start:],
        qos >> 1,
        first & DUP > 0,
        first & RETAIN > 0,
        body[topic_end] << 8 | body[topic_end + 1] if qos else 0,
        epoch,
        time.monotonic_ns(),
        time.time_ns(),
    )
    if properties:
        message.content_type = properties.get(Property.CONTENT_TYPE, "")
        message.response_topic = properties.get(Property.RESPONSE_TOPIC, "")
        message.correlation = properties.get(Property.CORRELATION_DATA)
        message.expiry_s = properties.get(Property.MESSAGE_EXPIRY_INTERVAL)
        message.user = tuple(properties.get(Property.USER_PROPERTY, ()))
    return message


TOPICS_REMEMBERED = 1_024
"""Topics whose bytes are remembered."""


class PublicationWriter:
    """Writer of publications for one protocol version. It remembers the properties that most of them share."""

    def __init__(self, *, version_5: bool) -> None:
        self._version_5 = version_5
        self._common: dict[tuple[str, int], bytes] = {("", 0): NO_PROPERTIES}
        self._topics: dict[str, bytes] = {}

    def write(self, publication: OutgoingPublish, mid: int, *, retain: bool) -> bytes:
        """Return a PUBLISH with the packet id `mid` at QoS 1. Raises ValueError for texts beyond 65,535 bytes."""
        topic, qos, properties = publication.topic, publication.qos, b""
        if self._version_5:
            has_own = publication.user or publication.correlation is not None
            common = None if has_own else self._common.get((publication.content_type, publication.expiry_s))
            properties = common or self._properties(publication)
        written, packet_id = self._topics.get(topic) or self._topic(topic), mid.to_bytes(2, "big") if qos else b""
        body = b"".join((written, packet_id, properties, publication.payload))
        return bytes((PUBLISH | qos << 1 | (RETAIN if retain else 0),)) + write_length(len(body)) + body

    def _topic(self, topic: str) -> bytes:
        """Return a topic's bytes, and remember them."""
        if len(self._topics) >= TOPICS_REMEMBERED:
            self._topics.clear()
        written = self._topics[topic] = write_text(topic)
        return written

    def _properties(self, publication: OutgoingPublish) -> bytes:
        written = _written(publication)
        if publication.correlation is None and not publication.user:
            self._common[publication.content_type, publication.expiry_s] = written
        return written


def _written(publication: OutgoingPublish) -> bytes:
    """Return the properties of a publication."""
    given = {
        Property.CONTENT_TYPE: publication.content_type or None,
        Property.CORRELATION_DATA: publication.correlation,
        Property.MESSAGE_EXPIRY_INTERVAL: publication.expiry_s or None,
        Property.USER_PROPERTY: publication.user or None,
    }
    return write_properties({key: value for key, value in given.items() if value is not None})
