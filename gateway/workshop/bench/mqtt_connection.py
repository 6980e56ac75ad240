"""Connection of the load over MQTT 3.1.1: requests at QoS 0 through a broker, with a reply topic of its own."""

from __future__ import annotations

import json
import secrets
import socket

from gateway.serving.frontends.mqtt.messages import Subscription
from gateway.serving.frontends.mqtt.session.control import (
    CONNACK,
    KIND,
    PUBLISH,
    SUBACK,
    ConnectOptions,
    read_connack,
    read_suback,
    write_connect,
    write_subscribe,
)
from gateway.serving.frontends.mqtt.session.packets import MalformedPacketError, PacketReader, write_packet, write_text
from gateway.workshop.bench.http_connection import READ_BYTES, LoadError

FAULT = b'"fault"'
"""Key that only refusals have among the members of an answer."""
REFUSED = 0x80
"""Code of a refused subscription (MQTT 3.1.1, 3.9.3)."""


class MqttLoadConnection:
    """Connection to the broker at `address`. `body`: JSON object of a request, published on `topic` each time."""

    def __init__(self, address: tuple[str, int], topic: str, body: bytes, timeout_s: float, limit_bytes: int) -> None:
        self.socket = socket.create_connection(address, timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._packets = PacketReader(limit_bytes)
        self._ready = False
        reply = f"edge-gateway-bench/{secrets.token_hex(8)}"
        named = json.dumps({"parameters": {"reply_topic": reply}}).encode()
        self._request = write_packet(PUBLISH, write_text(topic), named[:-1] + b"," + body[1:])
        try:
            self.socket.sendall(write_connect(ConnectOptions("", 0, clean=True), version_5=False))
            self.socket.sendall(write_subscribe(1, [Subscription(reply, 0)], version_5=False))
            while not self._ready:
                self.receive()
        except (OSError, LoadError):
            self.close()
            raise

    def send(self) -> None:
        """Publish the request."""
        self.socket.sendall(self._request)

    def receive(self) -> bool:
        """Read what has come; return True if an answer did. Raise LoadError."""
        piece = self.socket.recv(READ_BYTES)
        if not piece:
            raise LoadError("the broker closed the connection; see its log")
        self._packets.feed(piece)
        answered = False
        try:
            while packet := self._packets.take():
                answered = self._packet(*packet) or answered
        except MalformedPacketError as error:
            raise LoadError(f"the broker cannot be understood: {error}") from None
        return answered

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _packet(self, first: int, body: bytes) -> bool:
        kind = first & KIND
        if kind == CONNACK and (code := read_connack(body, version_5=False).code):
            raise LoadError(f"the broker refuses clients without a name and password (code {code})")
        if kind == SUBACK:
            self._ready = True
            if REFUSED in read_suback(body, version_5=False)[1]:
                raise LoadError("the broker refuses the subscription to edge-gateway-bench/#")
        if kind == PUBLISH and FAULT in body:
            _check(body[2 + int.from_bytes(body[:2], "big") :])
        return kind == PUBLISH


def _check(answer: bytes) -> None:
    """Raise LoadError if an answer is a refusal."""
    document = json.loads(answer)
    if "fault" in document:
        raise LoadError(f"the gateway refused a request: {document['fault']}: {document.get('message', '')!s:.300}")
