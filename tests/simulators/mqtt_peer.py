"""A sensor or dashboard: a plain paho client on its own thread, awaited from the test's loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from gateway.common.timeouts import timeout, wait_for

WAIT_S = 15.0


class Peer:
    """MQTT client. `received` keeps all messages in order."""

    def __init__(self, client: Client, *, version_5: bool) -> None:
        self.received: list[MQTTMessage] = []
        self._client, self._version_5 = client, version_5
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        client.on_message = lambda _c, _u, message: self._tell(self._keep, message)

    @property
    def connected(self) -> bool:
        """Return True while the broker has accepted the connection."""
        return self._client.is_connected()

    async def subscribe(self, *filters: str) -> None:
        """Subscribe at QoS 1. Return after the broker's SUBACK."""
        done = asyncio.Event()
        self._client.on_subscribe = lambda *_: self._tell(done.set)
        self._client.subscribe([(filter_, 1) for filter_ in filters])
        await wait_for(done.wait(), WAIT_S)

    async def publish(
        self, topic: str, payload: bytes | str, qos: int = 1, *, retain: bool = False, **properties: Any
    ) -> None:
        """Publish; at QoS 1 return after the broker's PUBACK. `properties` have paho's names (ResponseTopic=…)."""
        said = None
        if self._version_5:
            said = Properties(PacketTypes.PUBLISH)
            for name, value in properties.items():
                setattr(said, name, value)
        information = self._client.publish(topic, payload, qos, retain, properties=said)
        await asyncio.to_thread(information.wait_for_publish, WAIT_S)

    async def next(self, wanted: str | Callable[[MQTTMessage], bool]) -> MQTTMessage:
        """Remove and return the first message on topic `wanted`, or that `wanted` accepts."""
        accepts = (lambda message: message.topic == wanted) if isinstance(wanted, str) else wanted
        async with timeout(WAIT_S):
            while True:
                found = next((message for message in self.received if accepts(message)), None)
                if found is not None:
                    # Not `remove`: paho's messages are equal if their packet ids are, and at QoS 0 these are all 0.
                    self.received = [message for message in self.received if message is not found]
                    return found
                self._changed.clear()
                await self._changed.wait()

    async def next_json(self, wanted: str | Callable[[MQTTMessage], bool]) -> Any:
        """Return the parsed payload of `next`."""
        return json.loads((await self.next(wanted)).payload)

    def _keep(self, message: MQTTMessage) -> None:
        self.received.append(message)
        self._changed.set()

    def _tell(self, call: Callable[..., object], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(call, *arguments)


@asynccontextmanager
async def peer(port: int, *, version_5: bool = True, **login: str) -> AsyncIterator[Peer]:
    """Connect a client. `login` may hold username and password."""
    version = MQTTProtocolVersion.MQTTv5 if version_5 else MQTTProtocolVersion.MQTTv311
    client = Client(CallbackAPIVersion.VERSION2, protocol=version)
    if login:
        client.username_pw_set(**login)
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    one = Peer(client, version_5=version_5)
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        assert await asyncio.to_thread(connected.wait, WAIT_S), "the broker does not answer"
        yield one
    finally:
        client.disconnect()
        await asyncio.to_thread(client.loop_stop)
