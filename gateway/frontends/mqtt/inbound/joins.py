"""Join of a route's channels by time: what its settings mean for the windows and for the reader. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gateway.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from gateway.frontends.mqtt.windows.timing import ChannelRules, JoinRules

SECOND_NS = 1_000_000_000


def join_rules(route: MqttRoute, order: Sequence[int] | None, interval_ns: int) -> JoinRules | None:
    """Return the rules for rows whose channels are the route's in `order`; None if rows are not joined by time."""
    time = route.time
    if not time.joins:
        return None
    places = range(len(route.channel)) if order is None else order
    return JoinRules(
        tuple(_channel_rules(route.channel[place]) for place in places),
        places.index(_lead(route)),
        int(time.join_tolerance_s * SECOND_NS),
        linear=time.join == "linear",
        interval_ns=interval_ns if time.resample else 0,
    )


def read_channels(route: MqttRoute) -> tuple[MqttChannel, ...]:
    """Return the channels as messages are read: a message need not have the channels that are joined later."""
    if not route.time.joins:
        return route.channel
    return tuple(dataclasses.replace(channel, missing="last") for channel in route.channel)


def _channel_rules(channel: MqttChannel) -> ChannelRules:
    held_ns = int(channel.max_age_s * SECOND_NS) if channel.missing == "last" else 0
    return ChannelRules(held_ns, zero=channel.missing == "zero")


def _lead(route: MqttRoute) -> int:
    """Return the place of the leading channel."""
    named = (place for place, each in enumerate(route.channel) if route.time.join_lead in {each.path, each.name})
    return next(named, 0) if route.time.join_lead else 0
