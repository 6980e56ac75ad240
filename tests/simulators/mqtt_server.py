"""MQTT 5 broker of a few lines for one test: it answers packets as told, or not at all, and publishes on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from tests.simulators.broker import scripted

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK = 1, 2, 3, 4, 8, 9, 10, 11
PINGREQ, DISCONNECT = 12, 14
ANSWERED = frozenset({CONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, PINGREQ})
SUCCESS = b"\x20\x03\x00\x00\x00"
"""CONNACK: accepted, without properties."""


class Received(NamedTuple):
    """Packet from the gateway: client id of its connection, type, flags, and what follows the fixed header."""

    client: str
    kind: int
    flags: int
    body: bytes


class FakeBroker:
    """Broker that answers the kinds of packets in `answered`. `packets` keeps what arrived, in order.

    `old`: it speaks MQTT 3.1.1, and waits for more after a CONNECT of MQTT 5.
    """

    def __init__(self, *, connack: bytes = SUCCESS, old: bool = False) -> None:
        self._old = old
        self.port = 0
        self.answered = set(ANSWERED)
        self.mute: set[str] = set()
        """Clients whose publications are not acknowledged."""
        self.suback = 0x01
        """Code of each subscription."""
        self.unsuback = b"\x00"
        """Codes of each UNSUBACK."""
        self.packets: list[Received] = []
        self.writers: dict[str, asyncio.StreamWriter] = {}
        self._connack = connack

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def count(self, kind: int, client: str = "gw") -> int:
        """Return the number of packets of a kind from a client."""
        return sum(packet.kind == kind and packet.client == client for packet in self.packets)

    def topics(self, client: str) -> list[tuple[str, bytes]]:
        """Return topic and payload of what a client published at QoS 1 without properties, once per packet."""
        return [
            _published(packet.body) for packet in self.packets if packet.kind == PUBLISH and packet.client == client
        ]

    def send(self, content: bytes, client: str = "gw") -> None:
        """Send bytes to a client."""
        self.writers[client].write(content)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        client = ""
        while True:
            kind, flags, body = await read_packet(reader)
            if kind == CONNECT and self._old and body[6] == 5:
                continue
            if kind == CONNECT:
                client = _client_id(body)
                self.writers[client] = writer
            self.packets.append(Received(client, kind, flags, body))
            if kind in self.answered and not (kind == PUBLISH and client in self.mute):
                writer.write(self._answer(kind, flags, body))
            if kind == DISCONNECT:
                return

    def _answer(self, kind: int, flags: int, body: bytes) -> bytes:
        if kind == CONNECT:
            return self._connack
        if kind == SUBSCRIBE:
            codes = bytes([self.suback]) * _subscriptions(body, 2 if self._old else 3)
            head = body[:2] if self._old else body[:2] + b"\x00"
            return bytes([SUBACK << 4, len(head) + len(codes)]) + head + codes
        if kind == UNSUBSCRIBE:
            return bytes([UNSUBACK << 4, 3 + len(self.unsuback)]) + body[:2] + b"\x00" + self.unsuback
        if kind == PINGREQ:
            return b"\xd0\x00"
        if not flags & 0x06:
            return b""
        size = int.from_bytes(body[:2], "big")
        return b"\x40\x02" + body[2 + size : 4 + size]


async def read_packet(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """Return type, flags and body of the next packet. Raises IncompleteReadError at the end."""
    first, length, shift = (await reader.readexactly(1))[0], 0, 0
    while True:
        value = (await reader.readexactly(1))[0]
        length |= (value & 127) << shift
        shift += 7
        if value < 128:
            return first >> 4, first & 15, await reader.readexactly(length)


def _client_id(connect: bytes) -> str:
    at = 10  # protocol name, version, flags, keepalive; in MQTT 5 properties of fewer than 128 bytes
    at += 1 + connect[10] if connect[6] == 5 else 0
    size = int.from_bytes(connect[at : at + 2], "big")
    return connect[at + 2 : at + 2 + size].decode()


def _subscriptions(subscribe: bytes, at: int) -> int:
    """Return the number of filters, which begin after the packet id (and no properties, in MQTT 5)."""
    count = 0
    while at < len(subscribe):
        at += 2 + int.from_bytes(subscribe[at : at + 2], "big") + 1
        count += 1
    return count


def _published(body: bytes) -> tuple[str, bytes]:
    size = int.from_bytes(body[:2], "big")
    at = 4 + size
    return body[2 : 2 + size].decode(), body[at + 1 + body[at] :]


def publish(topic: str, payload: bytes, mid: int) -> bytes:
    """Return a PUBLISH of fewer than 128 bytes at QoS 1."""
    body = len(topic).to_bytes(2, "big") + topic.encode() + mid.to_bytes(2, "big") + b"\x00" + payload
    return bytes([PUBLISH << 4 | 2, len(body)]) + body


@asynccontextmanager
async def fake_broker(*, connack: bytes = SUCCESS, old: bool = False) -> AsyncIterator[FakeBroker]:
    """Run such a broker."""
    broker = FakeBroker(connack=connack, old=old)
    async with scripted(broker.talk) as broker.port:
        yield broker
