"""Conversion of this package's values to paho-mqtt's: client, properties and messages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gateway.frontends.mqtt.messages import Message, OutgoingPublish
from gateway.frontends.mqtt.session.identity import MqttIdentity
from gateway.frontends.mqtt.settings import MqttSettings, broker_of

if TYPE_CHECKING:
    from paho.mqtt.client import Client
    from paho.mqtt.properties import Properties

    from gateway.frontends.mqtt.session.client import GuardedClient

QOS, RETAIN, DUP = 0x06, 0x01, 0x08
"""Flags of a PUBLISH (MQTT 5, 3.3.1)."""
_PROPERTY_FIELDS = ("packetType", "types", "names", "properties")
"""Fields that paho's properties always have."""


class Packed:
    """Properties that are packed once: paho packs its own for each publication."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def pack(self) -> bytes:
        """Return the bytes."""
        return self._packed


def new_client(settings: MqttSettings, identity: MqttIdentity, *, version_5: bool) -> GuardedClient:
    """Return a client that is not connected yet."""
    from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

    from gateway.frontends.mqtt.session.client import GuardedClient

    client = GuardedClient(
        CallbackAPIVersion.VERSION2,
        client_id=identity.client_id,
        clean_session=None if version_5 else identity.clean,
        protocol=MQTTProtocolVersion.MQTTv5 if version_5 else MQTTProtocolVersion.MQTTv311,
        reconnect_on_failure=False,
        manual_ack=True,
        max_packet_bytes=settings.max_packet_bytes,
    )
    client.max_inflight_messages = 0  # the outbox limits them, by the Receive Maximum of the CONNACK
    client.connect_timeout = settings.connect_timeout_s
    if settings.username:
        client.username_pw_set(settings.username, identity.password)
    if identity.tls is not None:
        client.tls_set_context(identity.tls)
    if identity.will is not None:
        _set_will(client, identity.will, settings.will_delay_s, version_5=version_5)
    broker = broker_of(settings.url)
    if version_5:
        properties = _connect_properties(settings, keep=not identity.clean)
        client.connect_async(
            broker.host, broker.port, settings.keepalive_s, clean_start=identity.clean, properties=properties
        )
    else:
        client.connect_async(broker.host, broker.port, settings.keepalive_s)
    return client


def _set_will(client: Client, will: OutgoingPublish, delay_s: int, *, version_5: bool) -> None:
    properties = None
    if version_5:
        properties = _empty("WILLMESSAGE")
        properties.WillDelayInterval = delay_s
    client.will_set(will.topic, will.payload, will.qos, will.retain, properties)


def _empty(kind: str) -> Any:
    """Return empty properties of paho for packets of `kind`. They have no type annotations."""
    from paho.mqtt import packettypes, properties

    bag: Any = properties.Properties
    return bag(getattr(packettypes.PacketTypes, kind))


def _connect_properties(settings: MqttSettings, *, keep: bool) -> Properties:
    properties = _empty("CONNECT")
    properties.SessionExpiryInterval = settings.session_expiry_s if keep else 0
    properties.ReceiveMaximum = settings.receive_maximum
    properties.MaximumPacketSize = settings.max_packet_bytes
    said: Properties = properties
    return said


def pack(publication: OutgoingPublish) -> Packed:
    """Return the properties of a publication."""
    properties = _empty("PUBLISH")
    if publication.content_type:
        properties.ContentType = publication.content_type
    if publication.correlation is not None:
        properties.CorrelationData = publication.correlation
    if publication.expiry_s:
        properties.MessageExpiryInterval = publication.expiry_s
    if publication.user:
        properties.UserProperty = list(publication.user)
    return Packed(properties.pack())


def read_plain(topic: bytes, payload: bytes, first: int, mid: int, epoch: int) -> Message:
    """Return a message without properties of the connection `epoch`; `first` is the first byte of its packet."""
    try:
        name = topic.decode()
    except UnicodeDecodeError:
        name = ""  # no filter of ours matches it: counted as unrouted
    return Message(
        name,
        payload,
        (first & QOS) >> 1,
        bool(first & DUP),
        bool(first & RETAIN),
        mid,
        epoch,
        time.monotonic_ns(),
        time.time_ns(),
    )


def read_message(received: Any, epoch: int) -> Message:
    """Return a received message of the connection `epoch`, with the time now."""
    first = received.qos << 1 | received.dup * DUP | received.retain * RETAIN
    message = read_plain(received._topic, bytes(received.payload), first, received.mid, epoch)
    said = vars(received.properties) if received.properties is not None else {}
    if len(said) > len(_PROPERTY_FIELDS):
        message.content_type = said.get("ContentType", "")
        message.response_topic = said.get("ResponseTopic", "")
        message.correlation = said.get("CorrelationData")
        message.expiry_s = said.get("MessageExpiryInterval")
        message.user = tuple(said.get("UserProperty", ()))
    return message
