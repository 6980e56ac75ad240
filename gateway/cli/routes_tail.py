"""Action `edge-gateway routes tail`: what the routes make of the messages on the configured broker, as they come.

It subscribes at QoS 0 under a client id of its own, and publishes nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from gateway.config import Config, gateway_id
from gateway.domain.errors import ConfigurationError, UnreachableError
from gateway.frontends.mqtt.messages import Message, Subscription
from gateway.frontends.mqtt.route_settings import MqttRoute
from gateway.frontends.mqtt.routes.routing import Router, read_filter
from gateway.frontends.mqtt.session.connection import Connection
from gateway.frontends.mqtt.session.health import LinkHealth
from gateway.frontends.mqtt.session.identity import MqttIdentity, read_password, tls_context
from gateway.frontends.mqtt.session.sender import OutboxSender
from gateway.frontends.mqtt.settings import MqttSettings

ROLE = "tail"
GOODBYE_S = 2.0
"""Time for the disconnect."""
WELCOME_TIMES = 2
"""Attempts to connect, each of `connect_timeout_s`, after which the broker is unreachable."""
Show = Callable[[MqttRoute, Message], None]


async def tail(config: Config, routes: tuple[MqttRoute, ...], count: int, show: Show) -> None:
    """Call `show` with every message of `routes`; end after `count` messages (0: never).

    Raises ConfigurationError without a broker, and UnreachableError if the broker does not accept the connection.
    """
    if not config.mqtt.url:
        raise ConfigurationError(
            "no broker is configured; set it, or use --mqtt", file=config.file, table="mqtt", key="url"
        )
    settings = replace(config.mqtt, session_expiry_s=0, route=routes)
    router, ended, connected = Router(routes, gateway_id(config)), asyncio.Event(), asyncio.Event()
    shown = 0

    def receive(message: Message) -> None:
        nonlocal shown
        route = router.route(message.topic)
        if route is not None and not ended.is_set():
            show(route, message)
            shown += 1
            ended.set() if shown == count else None

    filters = tuple(Subscription(_unshared(each.filter), 0) for each in router.subscriptions)
    health, counters = LinkHealth(settings.error_repeat_s, _ignore), Counter[str]()
    sender = OutboxSender(settings, ROLE, home="", counters=counters, health=health, changed=_ignore)
    connection = Connection(
        settings,
        ROLE,
        _identity(config),
        sender,
        counters=counters,
        health=health,
        subscriptions=filters,
        receive=receive,
        ready=connected.set,
    )
    connection.start()
    try:
        await _connect(settings, connected, health)
        await ended.wait()
    finally:
        await connection.stop(GOODBYE_S)


def _identity(config: Config) -> MqttIdentity:
    name = f"{gateway_id(config)}-{ROLE}"
    return MqttIdentity(name, None, read_password(config.mqtt), tls_context(config.mqtt), clean=True)


def _unshared(text: str) -> str:
    """Return a filter without `$share/<group>/`: a member of the group would take messages from the gateways."""
    return "/".join(read_filter(text).levels)


async def _connect(settings: MqttSettings, connected: asyncio.Event, health: LinkHealth) -> None:
    try:
        await asyncio.wait_for(connected.wait(), settings.connect_timeout_s * WELCOME_TIMES)
    except TimeoutError:
        why = "; ".join(health) or "it does not answer"
        raise UnreachableError(f"the broker at {settings.url} cannot be used: {why}", table="mqtt", key="url") from None


def _ignore() -> None:
    """Do nothing: the health is read once, if there is no connection in time."""
