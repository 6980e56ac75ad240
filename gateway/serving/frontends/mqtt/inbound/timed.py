"""Time of the samples of one route: values of its channels become samples of its sensors. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest
from gateway.serving.frontends.mqtt.inbound.payloads.channels import Values
from gateway.serving.frontends.mqtt.inbound.payloads.content import invalid
from gateway.serving.frontends.mqtt.journal.journal import message_key
from gateway.serving.frontends.mqtt.journal.records import SampleRecord
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from gateway.serving.frontends.mqtt.settings.samples import TABLE, MqttTime
from gateway.serving.frontends.mqtt.windows.samples import (
    ChannelRules,
    GapPolicy,
    JoinRules,
    Rows,
    Sample,
    SampleTiming,
    SessionRules,
)

SECOND_NS = 1_000_000_000


def join_rules(route: MqttRoute, order: Sequence[int] | None, interval_ns: int) -> JoinRules | None:
    """Return the rules for rows whose channels are the route's in `order`; None if rows are not joined by time."""
    time = route.time
    if not time.joins:
        return None
    places, channels = range(len(route.channel)) if order is None else order, route.channel
    held = [int(each.max_age_s * SECOND_NS) if each.missing == "last" else 0 for each in channels]
    leads = [place for place, each in enumerate(channels) if time.join_lead in {each.path, each.name}]
    return JoinRules(
        tuple(ChannelRules(held[place], zero=channels[place].missing == "zero") for place in places),
        places.index(leads[0] if time.join_lead and leads else 0),
        int(time.join_tolerance_s * SECOND_NS),
        linear=time.join == "linear",
        interval_ns=interval_ns if time.resample else 0,
    )


def read_channels(route: MqttRoute) -> tuple[MqttChannel, ...]:
    """Return the channels as messages are read: a message need not have the channels that are joined later."""
    if not route.time.joins:
        return route.channel
    return tuple(dataclasses.replace(channel, missing="last") for channel in route.channel)


TIME_LIMIT_NS = 9_000_000_000_000_000_000
"""Distance of timestamps from 1970 that is taken: the years 1685 to 2255, which 64 bits can hold."""
SEQUENCE_LIMIT = 2**53
"""Greatest sequence number, up to which floats hold every integer."""
EXACT_NS = 1_000
"""Resolution of timestamps: floats hold today's nanoseconds to 256 only."""
IDLE_INTERVALS, IDLE_LEAST_S, IDLE_UNKNOWN_S = 20, 5.0, 60.0
GAP_INTERVALS, GAP_LEAST_S = 3, 1.0
NEVER_NS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class StampedRows:
    """Rows [n, channels] of one message, with the times and sequence numbers of their own, if they have any."""

    rows: Rows
    times_ns: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)

    def samples(self, message: Message) -> list[Sample]:
        """Return the samples."""
        times: Iterable[int] = self.times_ns or repeat(message.wall_ns)
        numbers: Iterable[int | None] = self.sequences or repeat(None)
        stamped = zip(self.rows, times, numbers, strict=False)
        return [Sample(row, time_ns, message.arrived_ns, number) for row, time_ns, number in stamped]

    def record(self, route: str, sensor: str, message: Message, lost: int) -> SampleRecord:
        """Return the record for the journal. `lost`: samples that were refused before these."""
        content, channels = np.ascontiguousarray(self.rows, np.float32).tobytes(), self.rows.shape[1]
        times, sequences = tuple(self.times_ns), tuple(self.sequences)
        key, arrived_ns = message_key(message), message.arrived_ns
        return SampleRecord(route, sensor, key, message.wall_ns, arrived_ns, channels, content, times, sequences, lost)


def interval_s(route: MqttRoute, manifest: ModelManifest) -> float:
    """Return the time between two samples; 0.0 if neither route nor model says it."""
    if route.time.interval_s:
        return route.time.interval_s
    return 1 / manifest.window.rate_hz if manifest.window else 0.0


def idle_expiry_ns(route: MqttRoute, manifest: ModelManifest) -> int:
    """Return the time without samples after which a window starts again; a session ends instead."""
    if route.window.has_sessions:
        return NEVER_NS
    interval = interval_s(route, manifest)
    known_s = max(IDLE_LEAST_S, IDLE_INTERVALS * interval) if interval else IDLE_UNKNOWN_S
    return int((route.idle_expiry_s or known_s) * SECOND_NS)


def waiting_ns(route: MqttRoute) -> int:
    """Return the longest time for which samples wait: for earlier ones, and for the end of their session."""
    return int((route.time.lateness_s + route.window.session_gap_s) * SECOND_NS)


def gap_limit_ns(route: MqttRoute, manifest: ModelManifest) -> int:
    """Return the time between two samples above which a result tells it: less may come from the network."""
    return int(max(GAP_LEAST_S, GAP_INTERVALS * interval_s(route, manifest)) * SECOND_NS)


def sample_timing(route: MqttRoute, manifest: ModelManifest, order: Sequence[int] | None = None) -> SampleTiming | None:
    """Return the rules for order, gaps, sessions and joins; `order` as `channel_order` returns it.

    Return None if samples have neither times nor numbers of their own, and windows a fixed number of rows. Raises
    RequestError UNAVAILABLE if the rate that samples are to have is not known.
    """
    time, window = route.time, route.window
    if not time.is_set and not window.has_sessions:
        return None
    interval_ns = int(interval_s(route, manifest) * SECOND_NS) if time.path else 0
    if time.resample and not interval_ns:
        problem = f"model '{route.model}' has no rate_hz to resample to; set interval_s in {TABLE}"
        raise RequestError(Fault.UNAVAILABLE, f"route '{route.name}': {problem}")
    return SampleTiming(
        interval_ns=interval_ns,
        lateness_ns=int(time.lateness_s * SECOND_NS),
        gap=GapPolicy(time.gap),
        fill_limit_rows=time.fill_limit_rows,
        resample=time.resample and not time.joins,
        modulus=time.sequence_modulus,
        pending_limit_rows=time.max_pending_rows,
        event_time=bool(time.path),
        restart_ns=int(time.restart_s * SECOND_NS),
        session=SessionRules(int(window.session_gap_s * SECOND_NS), window.least_rows) if window.has_sessions else None,
        join=join_rules(route, order, interval_ns),
    )


def times_of(time: MqttTime, stamps: Values, message: Message) -> list[int]:
    """Return the time of each row, since the epoch. Raises RequestError INVALID for one in the future or far past."""
    if not time.path:
        return [message.wall_ns] * len(stamps)
    if not (np.abs(stamps[:, 0]) <= TIME_LIMIT_NS).all():
        raise invalid(
            f"path '{time.path}' finds a time outside the years 1685 to 2255; correct unit in [mqtt.route.time]"
        )
    times = [round(float(value) / EXACT_NS) * EXACT_NS for value in stamps[:, 0]]
    ahead_s = (max(times, default=0) - message.wall_ns) / SECOND_NS
    if ahead_s > time.future_limit_s:
        problem = f"path '{time.path}' finds a time {ahead_s:.0f} s in the future; correct the sensor's clock or unit"
        raise invalid(problem)
    return times


def sequences_of(time: MqttTime, stamps: Values) -> list[int]:
    """Return the sequence number of each row; empty if there is none. Raises RequestError INVALID for other numbers."""
    if not time.sequence:
        return []
    values = stamps[:, -1]
    if not ((np.abs(values) <= SEQUENCE_LIMIT) & (values == np.floor(values))).all():
        raise invalid(f"path '{time.sequence}' finds a number that is no integer up to 2^53; correct sequence")
    return [int(value) for value in values]
