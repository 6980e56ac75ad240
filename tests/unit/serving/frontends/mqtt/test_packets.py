"""Framing of packets: whole packets however the bytes arrive, and none beyond the limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.frontends.mqtt.session.packets import FramedPacket, PacketReader, PacketTooLargeError

LIMIT_BYTES = 400
packets = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=LIMIT_BYTES - 3)), max_size=8)


def framed(first: int, body: bytes) -> bytes:
    """Return a packet with its fixed header, as MQTT 5, 1.5.5 writes lengths."""
    length, left = b"", len(body)
    while True:
        left, low = divmod(left, 128)
        length += bytes([low | (128 if left else 0)])
        if not left:
            return bytes([first]) + length + body


def read(reader: PacketReader, content: bytes) -> list[FramedPacket]:
    """Return all packets that are complete with `content`."""
    reader.feed(content)
    taken = []
    while (packet := reader.take()) is not None:
        taken.append(packet)
    assert not reader.may_have_packet
    return taken


@given(packets, st.data())
def test_packets_are_read_however_their_bytes_arrive(sent: list[tuple[int, bytes]], data: st.DataObject) -> None:
    stream = b"".join(framed(first, body) for first, body in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader, taken = PacketReader(LIMIT_BYTES), list[FramedPacket]()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        taken += read(reader, stream[start:end])
    assert taken == sent


@given(packets, st.integers(LIMIT_BYTES, 268_435_455), st.integers(1, 5))
def test_a_packet_beyond_the_limit_is_refused_at_its_header(
    sent: list[tuple[int, bytes]], length: int, chunk: int
) -> None:
    before = b"".join(framed(first, body) for first, body in sent)
    header = b"\x30" + bytes([length & 127 | 128, length >> 7 & 127 | 128, length >> 14 & 127 | 128, length >> 21])
    reader, taken = PacketReader(LIMIT_BYTES), list[FramedPacket]()

    def read_all(stream: bytes) -> None:
        for at in range(0, len(stream), chunk):
            reader.feed(stream[at : at + chunk])
            while (packet := reader.take()) is not None:
                taken.append(packet)

    with pytest.raises(PacketTooLargeError, match="max_payload_bytes"):
        read_all(before + header)
    assert taken == sent


def test_the_largest_packet_is_read() -> None:
    body = b"x" * (LIMIT_BYTES - 3)
    assert read(PacketReader(LIMIT_BYTES), framed(0x30, body)) == [(0x30, body)]
    with pytest.raises(PacketTooLargeError):
        read(PacketReader(LIMIT_BYTES), framed(0x30, body + b"x"))


def test_a_length_of_more_than_four_bytes_is_refused() -> None:
    reader = PacketReader(2**31)
    assert read(reader, b"\x30\xff\xff\xff") == []
    with pytest.raises(PacketTooLargeError, match="four bytes"):
        read(reader, b"\xff")


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_any_bytes_are_packets_or_refused(chunks: list[bytes]) -> None:
    reader = PacketReader(LIMIT_BYTES)
    try:
        size = sum(len(body) for chunk in chunks for _, body in read(reader, chunk))
    except PacketTooLargeError:
        return
    assert size <= sum(map(len, chunks))
