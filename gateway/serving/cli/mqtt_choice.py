"""Choice of an MQTT broker and of a route of the configuration, for the verbs `routes` and `watch`."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gateway.common.domain.errors import ConfigurationError, suggest
from gateway.common.files.credentials import DIRECTORY, is_credential
from gateway.serving.config import Config, gateway_id, mqtt_brokers
from gateway.serving.frontends.mqtt.inbound.routing import Router
from gateway.serving.frontends.mqtt.session.identity import MqttIdentity, connect_options, tls_context
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings, blamed_on, broker_of, table_of
from gateway.serving.frontends.mqtt.settings.route import DEFAULT_BROKER, MqttRoute


@dataclass(frozen=True, slots=True)
class NamedBroker:
    """Broker with its name."""

    name: str
    settings: MqttSettings


def select_broker(config: Config, arguments: argparse.Namespace) -> NamedBroker:
    """Return the broker of `--broker`, else that of `--route`, else that of `[mqtt]`, else the only one.

    `--mqtt` replaces its address. Raises ConfigurationError.
    """
    brokers, name = mqtt_brokers(config), arguments.broker
    if arguments.route:
        having = (key for key, one in brokers.items() if any(route.name == arguments.route for route in one.route))
        found = next((key for key in having if name in {None, key}), None)
        name = found or select_route(config, arguments.route, "", name or "").broker
    if name is None:
        name = next(iter(brokers)) if len(brokers) == 1 else DEFAULT_BROKER
    if name not in brokers:
        raise _without(config, name, tuple(brokers))
    settings = brokers[name]
    return NamedBroker(name, replace(settings, url=arguments.mqtt) if arguments.mqtt else settings)


def select_route(config: Config, name: str, topic: str, broker: str = "") -> MqttRoute:
    """Return the route of that name, else that of the topic, else the only one. Raises ConfigurationError.

    `broker`: routes of this broker only. Routes of cameras take no messages.
    """
    routes = [route for route in config.mqtt.route if route.topics and broker in {"", route.broker}]
    found = routes
    if name:
        found = [route for route in routes if route.name == name]
    elif topic:
        found = _takers(routes, topic, gateway_id(config))
    if len(found) != 1:
        problem = _not_one(config, name, topic, found if topic and found else routes)
        raise config.error(problem, "mqtt.route")
    _check_topic(config, found[0], topic)
    return found[0]


def broker_faults(config: Config) -> Iterator[str]:
    """Yield what prevents connections to brokers and shows without one: files of secrets, names of hosts.

    Credentials of the service are not known to other commands. Raises ConfigurationError.
    """
    for name, settings in mqtt_brokers(config).items():
        files = (settings.username_file, settings.password_file, settings.ca, settings.cert, settings.key)
        if DIRECTORY not in os.environ and any(is_credential(file or "") for file in files):
            continue
        broker = broker_of(settings.url)
        try:
            with blamed_on(name):
                connect_options(settings, MqttIdentity("", None))
                tls_context(settings)
            socket.getaddrinfo(broker.host, broker.port)
        except (ConfigurationError, OSError, UnicodeError) as error:
            yield (
                str(error) if isinstance(error, ConfigurationError) else f"{table_of(name)}.url: {broker.host}: {error}"
            )


def _not_one(config: Config, name: str, topic: str, routes: Sequence[MqttRoute]) -> str:
    """Return why no single route was found; `routes` are those to choose among."""
    known = ", ".join(route.name for route in routes) or "none"
    if name and any(route.cameras and route.name == name for route in config.mqtt.route):
        return f"route {name!r:.80} takes frames of cameras, not messages; edge-gateway watch shows its results"
    if name:
        close = suggest(name, (route.name for route in routes))
        return f"no route is called {name!r:.80}{close}; known are {known}"
    if topic:
        return f"no route, or several, take topic {topic!r:.150}; name one with --route: {known} (EG-606)"
    return f"name the route with --route or --topic; known are {known}"


def _check_topic(config: Config, route: MqttRoute, topic: str) -> None:
    if topic and not _takers([route], topic, gateway_id(config)):
        topics = f"{', '.join(route.topics):.200}"
        problem = f"route {route.name!r} does not take topic {topic!r:.150}; its topics are {topics}"
        raise config.error(problem, "mqtt.route")


def _takers(routes: Sequence[MqttRoute], topic: str, identity: str) -> list[MqttRoute]:
    """Return the routes that take a topic."""
    names = dict.fromkeys(route.broker for route in routes)
    routers = [Router([route for route in routes if route.broker == name], identity) for name in names]
    return [found for router in routers for found in router.routes(topic)]


def _without(config: Config, name: str, names: Sequence[str]) -> ConfigurationError:
    if not names:
        problem = "no broker is configured; set it, or use --mqtt"
        return config.error(problem, "mqtt", "url")
    if name == DEFAULT_BROKER:
        problem = f"[mqtt] has no url; name another broker: {', '.join(names)}"
    else:
        problem = f"no broker is called {name!r:.80}{suggest(name, names)}; known are {', '.join(names)}"
    return ConfigurationError(problem, table="--broker")
