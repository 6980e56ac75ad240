"""Connection of a verb to a configured broker: it subscribes under a client id of its own and publishes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from gateway.common.domain.errors import UnreachableError
from gateway.common.timeouts import wait_for
from gateway.serving.cli.mqtt_choice import NamedBroker
from gateway.serving.frontends.mqtt.messages import Message, Subscription
from gateway.serving.frontends.mqtt.session.connection import Connection
from gateway.serving.frontends.mqtt.session.health import LinkHealth
from gateway.serving.frontends.mqtt.session.identity import MqttIdentity, connect_options, tls_context
from gateway.serving.frontends.mqtt.session.sender import OutboxSender
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings, blamed_on

GOODBYE_S = 2.0
"""Time for the disconnect."""
WELCOME_TIMES = 2
"""Attempts to connect, each of `connect_timeout_s` at most, after which the broker is unreachable."""
LOOK_S = 0.1
"""Time from one look at the attempts to the next."""


@asynccontextmanager
async def subscribed(
    broker: NamedBroker, role: str, client_id: str, filters: Sequence[Subscription], receive: Callable[[Message], None]
) -> AsyncIterator[LinkHealth]:
    """Connect, call `receive` with every message, and disconnect at the end. Yields the connection's problems.

    A connection that is lost later is made again. Raises ConfigurationError for files that cannot be read, and
    UnreachableError if the broker does not accept the connection.
    """
    settings, ready = replace(broker.settings, session_expiry_s=0), asyncio.Event()
    identity = MqttIdentity(client_id, None, clean=True)
    with blamed_on(broker.name):
        connect_options(settings, identity)
        tls_context(settings)
    health, counters = LinkHealth(settings.error_repeat_s, _ignore), Counter[str]()
    connection = Connection(
        settings,
        role,
        identity,
        OutboxSender(settings, role, home="", counters=counters, health=health, changed=_ignore),
        counters=counters,
        health=health,
        subscriptions=filters,
        receive=receive,
        ready=ready.set,
    )
    connection.start()
    try:
        await _connected(settings, connection, counters, ready, health)
        yield health
    finally:
        await connection.stop(GOODBYE_S)


async def _connected(
    settings: MqttSettings, connection: Connection, counters: Counter[str], ready: asyncio.Event, health: LinkHealth
) -> None:
    """Wait until the connection is ready. Raises UnreachableError.

    A broker that refuses at once is not waited for, unless another version of the protocol is tried.
    """
    clock, first = asyncio.get_running_loop().time, connection.choice
    end_s = clock() + settings.connect_timeout_s * WELCOME_TIMES
    while not ready.is_set():
        is_refused = counters["connect_failures"] >= WELCOME_TIMES and connection.choice == first
        if is_refused or clock() >= end_s:
            why = "; ".join(health) or "it does not answer"
            raise UnreachableError(f"the broker at {settings.url} cannot be used: {why}", table="mqtt", key="url")
        with suppress(TimeoutError):
            await wait_for(ready.wait(), LOOK_S)


def _ignore() -> None:
    """Do nothing: the health is read when it is needed."""
