"""Packets of the MQTT client: properties against paho's, publications there and back, and any bytes from a broker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

from gateway.serving.frontends.mqtt.messages import Message, OutgoingPublish, Subscription
from gateway.serving.frontends.mqtt.session import control
from gateway.serving.frontends.mqtt.session.control import ConnectAnswer, read_disconnect, reason_name
from gateway.serving.frontends.mqtt.session.listener import read_welcome
from gateway.serving.frontends.mqtt.session.packets import MalformedPacketError, PacketReader, write_length
from gateway.serving.frontends.mqtt.session.properties import Property, read_length, read_properties, write_properties
from gateway.serving.frontends.mqtt.session.publications import PublicationWriter, read_publish
from gateway.serving.frontends.mqtt.settings.templates import is_topic

LIMIT_BYTES = 1_000_000
texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=40)
NAMES = {
    Property.CONTENT_TYPE: ("ContentType", texts),
    Property.RESPONSE_TOPIC: ("ResponseTopic", texts.filter(lambda text: not set(text) & set("+#"))),
    Property.CORRELATION_DATA: ("CorrelationData", st.binary(max_size=40)),
    Property.MESSAGE_EXPIRY_INTERVAL: ("MessageExpiryInterval", st.integers(1, 2**32 - 1)),
    Property.USER_PROPERTY: ("UserProperty", st.lists(st.tuples(texts, texts), min_size=1, max_size=3)),
}
given_properties = st.fixed_dictionaries({}, optional={key: values for key, (_, values) in NAMES.items()})


def paho_properties(kind: int, given_values: dict[Property, Any], names: dict[Property, str]) -> bytes:
    bag: Any = PahoProperties(kind)  # type: ignore[no-untyped-call]
    for key, value in given_values.items():
        setattr(bag, names[key], value)
    packed: bytes = bag.pack()
    return packed


def framed(packet: bytes) -> tuple[int, bytes]:
    reader = PacketReader(LIMIT_BYTES)
    reader.feed(packet)
    found = reader.take()
    assert found is not None
    assert not reader.may_have_packet
    return found


@given(given_properties)
def test_properties_of_publications_are_those_that_paho_writes_and_reads(values: dict[Property, Any]) -> None:
    names = {key: name for key, (name, _) in NAMES.items()}
    theirs = paho_properties(PacketTypes.PUBLISH, values, names)
    assert read_properties(b"xx" + theirs + b"payload", 2) == (values, 2 + len(theirs))
    bag: Any = PahoProperties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    bag.unpack(write_properties(values))
    assert {key: getattr(bag, name) for key, name in names.items() if hasattr(bag, name)} == values


@given(st.integers(0, 2**32 - 1), st.integers(1, 65_535), st.integers(1, 268_435_455), st.booleans())
def test_a_connect_has_the_properties_that_paho_writes(expiry_s: int, maximum: int, size: int, clean: bool) -> None:
    will = OutgoingPublish("edge/gw/status", b"offline", 1, retain=True)
    options = control.ConnectOptions("gw", 30, clean, "user", "secret", will, 5, expiry_s, maximum, size)
    first, body = framed(control.write_connect(options, version_5=True))
    values = {
        Property.SESSION_EXPIRY_INTERVAL: expiry_s,
        Property.RECEIVE_MAXIMUM: maximum,
        Property.MAXIMUM_PACKET_SIZE: size,
    }
    names = dict(zip(values, ("SessionExpiryInterval", "ReceiveMaximum", "MaximumPacketSize"), strict=True))
    properties = paho_properties(PacketTypes.CONNECT, values, names)
    delay = paho_properties(
        PacketTypes.WILLMESSAGE, {Property.WILL_DELAY_INTERVAL: 5}, {Property.WILL_DELAY_INTERVAL: "WillDelayInterval"}
    )
    flags = 0xC0 | 0x20 | 0x08 | 0x04 | (0x02 if clean else 0)
    head = b"\x00\x04MQTT\x05" + bytes((flags,)) + b"\x00\x1e"
    ends = b"\x00\x0eedge/gw/status\x00\x07offline\x00\x04user\x00\x06secret"
    assert (first, body) == (0x10, head + properties + b"\x00\x02gw" + delay + ends)


def test_a_connect_of_mqtt_3_1_1_has_no_properties() -> None:
    packet = control.write_connect(control.ConnectOptions("gw", 30, clean=True), version_5=False)
    assert packet == b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x1e\x00\x02gw"


def test_a_subscription_asks_for_retained_messages_only_if_it_wants_them() -> None:
    asked = (Subscription("a/+", 1), Subscription("b", 0, retained=True))
    assert control.write_subscribe(7, asked, version_5=True) == b"\x82\x0d\x00\x07\x00\x00\x03a/+\x21\x00\x01b\x00"
    assert control.write_subscribe(7, asked, version_5=False) == b"\x82\x0c\x00\x07\x00\x03a/+\x01\x00\x01b\x00"


def test_subscriptions_are_ended_with_a_code_for_each_in_mqtt_5_only() -> None:
    assert control.write_unsubscribe(7, ("a/+", "b"), version_5=True) == b"\xa2\x0b\x00\x07\x00\x00\x03a/+\x00\x01b"
    assert control.write_unsubscribe(7, ("a/+", "b"), version_5=False) == b"\xa2\x0a\x00\x07\x00\x03a/+\x00\x01b"
    assert control.read_unsuback(b"\x00\x07\x00\x00\x11", version_5=True) == [0, 0x11]
    assert control.read_unsuback(b"\x00\x07", version_5=False) == []


@pytest.mark.parametrize("version_5", [True, False])
@given(texts.filter(bool), st.binary(max_size=300), st.integers(0, 65_535), given_properties)
def test_a_publication_is_read_as_it_was_written(
    version_5: bool, topic: str, payload: bytes, mid: int, values: dict[Property, Any]
) -> None:
    qos = min(mid, 1)
    publication = OutgoingPublish(
        topic,
        payload,
        qos,
        content_type=values.get(Property.CONTENT_TYPE, ""),
        correlation=values.get(Property.CORRELATION_DATA),
        expiry_s=values.get(Property.MESSAGE_EXPIRY_INTERVAL, 0),
        user=tuple(values.get(Property.USER_PROPERTY, ())),
    )
    writer = PublicationWriter(version_5=version_5)
    packets = {writer.write(publication, mid, retain=True) for _ in range(2)}
    assert len(packets) == 1
    read = read_publish(*framed(packets.pop()), 3, version_5=version_5)
    read.arrived_ns = read.wall_ns = 0
    expected = Message(topic, payload, qos, retain=True, mid=mid, epoch=3)
    if version_5:
        expected.content_type, expected.correlation = publication.content_type, publication.correlation
        expected.expiry_s, expected.user = publication.expiry_s or None, publication.user
    assert read == expected


@pytest.mark.parametrize("version_5", [True, False])
@given(st.integers(0, 255), st.binary(max_size=60))
def test_any_packet_is_read_or_refused(version_5: bool, first: int, body: bytes) -> None:
    readers: tuple[Callable[[], object], ...] = (
        lambda: read_publish(first, body, 1, version_5=version_5),
        lambda: control.read_connack(body, version_5=version_5),
        lambda: control.read_suback(body, version_5=version_5),
        lambda: control.read_unsuback(body, version_5=version_5),
        lambda: control.read_puback(body, version_5=version_5),
        lambda: control.read_disconnect(body),
    )
    for read in readers:
        with suppress(MalformedPacketError):
            read()


@given(st.integers(0, 268_435_455))
def test_lengths_are_read_as_they_were_written(value: int) -> None:
    written = write_length(value)
    assert read_length(b"x" + written, 1) == (value, 1 + len(written))


def test_a_property_that_occurs_twice_is_refused_unless_it_may() -> None:
    twice = b"\x0a\x03\x00\x01a\x03\x00\x01b\x00\x00"
    with pytest.raises(MalformedPacketError, match="0x03 occurs twice"):
        read_properties(twice, 0)
    assert read_properties(b"\x04\x0b\x01\x0b\x02", 0)[0] == {Property.SUBSCRIPTION_IDENTIFIER: 2}


def test_texts_that_are_not_utf_8_do_not_end_the_connection() -> None:
    properties = b"\x03\x00\x02a\xff\x08\x00\x02b\xff\x26\x00\x01\xff\x00\x01c"
    body = b"\x00\x01t" + bytes((len(properties),)) + properties + b"payload"
    message = read_publish(0x30, body, 1, version_5=True)
    assert (message.content_type, message.user, message.payload) == ("a\ufffd", (("\ufffd", "c"),), b"payload")
    assert not is_topic(message.response_topic), "an answer there would go to another topic"


def test_reasons_have_names() -> None:
    assert reason_name(0x87, version_5=True, text="no such user") == "not authorized (no such user)"
    assert reason_name(5, version_5=False) == "not authorized"
    assert reason_name(0xFF, version_5=True) == "reason code 0xff"
    assert reason_name(read_disconnect(b"")[0], version_5=True) == "normal disconnection"


@pytest.mark.parametrize("limit", [{Property.RECEIVE_MAXIMUM: 0}, {Property.MAXIMUM_PACKET_SIZE: 0}])
def test_a_limit_of_0_is_malformed(limit: dict[Property, int]) -> None:
    """Publications would wait for ever, and the link would count as complete."""
    with pytest.raises(MalformedPacketError, match="of 0"):
        read_welcome(ConnectAnswer(False, 0, limit), 30, "gw", version_5=True)
