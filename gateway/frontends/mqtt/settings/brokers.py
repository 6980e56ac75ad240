"""Settings of each broker: those of `[mqtt]` with those of its `[[mqtt.broker]]`, and its routes. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from gateway.domain.errors import ConfigurationError
from gateway.frontends.mqtt.settings.broker import MqttBroker, MqttSettings, broker_of
from gateway.frontends.mqtt.settings.route import DEFAULT_BROKER, MqttRoute

OWN = ("url", "username", "username_file", "password_file", "ca", "cert", "key", "home_assistant")
"""Settings that are never those of `[mqtt]`: a password is sent only to the broker that it is for."""


def brokers(settings: MqttSettings) -> dict[str, MqttSettings]:
    """Return the settings of each broker by name; that of `[mqtt]`, if it has a URL, is the first one.

    Raises ConfigurationError that names the broker or the route.
    """
    if not settings.url and not settings.broker:
        return {}
    found = {DEFAULT_BROKER: _own(settings, DEFAULT_BROKER)} if settings.url else {}
    for broker in settings.broker:
        if broker.name in found:
            raise _refused(broker.name, "name", "two brokers have this name; names must differ")
        found[broker.name] = _merged(settings, broker)
    _check_addresses(found)
    _check_routes(settings.route, found)
    return found


def table_of(name: str) -> str:
    """Return the table of a broker in error messages."""
    return "mqtt" if name == DEFAULT_BROKER else f"mqtt.broker[{name}]"


@contextmanager
def blamed_on(name: str) -> Iterator[None]:
    """Let errors of the table `mqtt` name the table of this broker."""
    try:
        yield
    except ConfigurationError as error:
        if error.table != "mqtt":
            raise
        raise ConfigurationError(error.problem, file=error.file, table=table_of(name), key=error.key) from None


def _merged(settings: MqttSettings, broker: MqttBroker) -> MqttSettings:
    given = {spec.name: getattr(broker, spec.name) for spec in dataclasses.fields(broker) if spec.name != "name"}
    changes = {key: value for key, value in given.items() if value is not None or key in OWN}
    with blamed_on(broker.name):
        return dataclasses.replace(_own(settings, broker.name), **changes)


def _own(settings: MqttSettings, name: str) -> MqttSettings:
    """Return the settings with the routes of one broker."""
    return dataclasses.replace(settings, broker=(), route=tuple(each for each in settings.route if each.broker == name))


def _check_addresses(found: dict[str, MqttSettings]) -> None:
    """Refuse two brokers at one address: both would have our client id, and end each other's connections."""
    names: dict[tuple[str, int], str] = {}
    for name, settings in found.items():
        with blamed_on(name):
            address = broker_of(settings.url)
        other = names.setdefault((address.host, address.port), name)
        if other != name:
            problem = f"{settings.url!r:.150} is the address of broker {other!r} too; let its routes name that one"
            raise _refused(name, "url", problem)


def _check_routes(routes: Collection[MqttRoute], names: Collection[str]) -> None:
    counts = Counter(route.name for route in routes)
    for route in routes:
        if counts[route.name] > 1:
            problem = f"two routes are called {route.name!r}; names must differ"
            raise ConfigurationError(problem, table=route.table, key="name")
        if route.broker not in names:
            raise ConfigurationError(_unknown(route.broker, names), table=route.table, key="broker")


def _unknown(name: str, names: Collection[str]) -> str:
    if name == DEFAULT_BROKER:
        return f"[mqtt] has no url; set it, or name another broker: {', '.join(names)}"
    return f"no broker is called {name!r:.80}; known are {', '.join(names)}; others need a [[mqtt.broker]]"


def _refused(name: str, key: str, problem: str) -> ConfigurationError:
    return ConfigurationError(problem, table=table_of(name), key=key)
