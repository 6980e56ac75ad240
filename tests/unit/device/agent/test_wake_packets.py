"""The few packets of MQTT that a hint needs, whatever a broker sends."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.device.agent.fetch.wake_packets import (
    PACKET_LIMIT_BYTES,
    Packet,
    PacketKind,
    Reader,
    WireError,
    connect,
    subscribe,
)

CONNACK, SUBACK, PINGRESP = b"\x20\x02\x00\x00", b"\x90\x03\x00\x01\x01", b"\xd0\x00"
MESSAGE = b"\x32\x09\x00\x03a/b\x00\x07hi"
"""Message at least once, number 7."""


def test_what_is_sent_is_as_the_standard_says() -> None:
    assert connect("door", 300) == b"\x10\x10\x00\x04MQTT\x04\x00\x01\x2c\x00\x04door"
    assert subscribe("a/b") == b"\x82\x08\x00\x01\x00\x03a/b\x01"
    assert connect("d" * 200, 300)[1:3] == b"\xd4\x01"


def test_messages_are_acknowledged_and_not_kept() -> None:
    packets = Reader().feed(CONNACK + SUBACK + MESSAGE + b"\x30\x05\x00\x03a/b" + PINGRESP)
    assert packets == [
        Packet(PacketKind.CONNACK),
        Packet(PacketKind.SUBACK),
        Packet(PacketKind.PUBLISH, b"\x40\x02\x00\x07"),
        Packet(PacketKind.PUBLISH),
        Packet(PacketKind.PINGRESP),
    ]


BAD = {
    "refused": b"\x20\x02\x00\x05",
    "no topic for us": b"\x90\x03\x00\x01\x80",
    "of quality 2": b"\x34\x09\x00\x03a/b\x00\x07hi",
    "half a message": b"\x32\x04\x00\x03a/",
    "not asked for": b"\x10\x00",
    "too large": b"\x30\xff\xff\x7f",
    "a length without end": b"\x30\xff\xff\xff\xff\x01",
}


@pytest.mark.parametrize("case", BAD)
def test_a_broker_that_errs_is_hung_up_on(case: str) -> None:
    with pytest.raises(WireError):
        Reader().feed(BAD[case])


@given(cuts=st.lists(st.integers(0, 60), max_size=8))
def test_packets_may_come_in_any_pieces(cuts: list[int]) -> None:
    stream, reader = CONNACK + SUBACK + MESSAGE * 3 + PINGRESP, Reader()
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    found = [packet for a, b in itertools.pairwise(places) for packet in reader.feed(stream[a:b])]
    assert [packet.kind.name for packet in found] == ["CONNACK", "SUBACK", *["PUBLISH"] * 3, "PINGRESP"]


@given(pieces=st.lists(st.binary(max_size=200), max_size=20))
def test_whatever_comes_ends_in_packets_or_one_kind_of_error_and_little_is_kept(pieces: list[bytes]) -> None:
    reader = Reader()
    try:
        for piece in pieces:
            reader.feed(piece)
            assert len(reader._buffer) <= PACKET_LIMIT_BYTES + 5
    except WireError:
        pass
