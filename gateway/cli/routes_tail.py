"""Action `edge-gateway routes tail`: what the routes make of the messages on a configured broker, as they come.

It subscribes at QoS 0 under a client id of its own, and publishes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.cli.mqtt_choice import NamedBroker
from gateway.cli.subscriber import subscribed
from gateway.frontends.mqtt.inbound.routing import Router
from gateway.frontends.mqtt.messages import Message, Subscription
from gateway.frontends.mqtt.settings.route import MqttRoute
from gateway.frontends.mqtt.settings.topic_filters import read_filter

ROLE = "tail"
Show = Callable[[MqttRoute, Message], None]


async def tail(broker: NamedBroker, gateway: str, routes: tuple[MqttRoute, ...], count: int, show: Show) -> None:
    """Call `show` with every message of `routes`; end after `count` messages (0: never).

    Raises ConfigurationError for files that cannot be read, and UnreachableError if the broker does not accept the
    connection.
    """
    router, ended = Router(routes, gateway), asyncio.Event()
    shown, failed = 0, list[Exception]()

    def receive(message: Message) -> None:
        nonlocal shown
        for route in router.routes(message.topic):
            if ended.is_set():
                return
            try:
                show(route, message)
            except Exception as error:  # noqa: BLE001  a callback of the connection: raised again where it is awaited
                failed.append(error)
            shown += 1
            ended.set() if failed or shown == count else None

    filters = tuple(Subscription(_unshared(each.filter), 0) for each in router.subscriptions)
    async with subscribed(broker, ROLE, f"{gateway}-{ROLE}", filters, receive):
        await ended.wait()
    if failed:
        raise failed[0]


def _unshared(text: str) -> str:
    """Return a filter without `$share/<group>/`: a member of the group would take messages from the gateways."""
    return "/".join(read_filter(text).levels)
