"""Aims of the data plane, and whether they were reached: ratios within a pass, medians over the passes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.performance.load import Figures
from tests.performance.servers import CPP, OWN, PAHO, PLAIN
from tests.performance.steps import BARE, COSTLY, FRAME_CONNECTIONS, TINY, Row

Samples = Mapping[Row, Sequence[Figures]]


NOISE = 0.05
"""Share of the server's core that others may take before a figure says as much about them."""


class Value(NamedTuple):
    """Figure of one pass, and the share of the server's core that other processes took meanwhile.

    The share is 0 where it was not counted: for starts, whose own children would count as others.
    """

    figure: float
    others: float


Values = Callable[[Samples], list[Value]]


@dataclass(frozen=True, slots=True)
class Aim:
    """Aim. `values` returns one a pass, or none where its rows were not measured; `form` writes the figure."""

    what: str
    limit: float
    at_least: bool
    form: str
    values: Values


@dataclass(frozen=True, slots=True)
class Verdict:
    """An aim, its median and range, in how many passes it was reached, and the median of what others took."""

    aim: Aim
    median: float
    low: float
    high: float
    reached: int
    passes: int
    others: float

    @property
    def met(self) -> bool:
        """True if the median reaches the limit."""
        return self.median >= self.aim.limit if self.aim.at_least else self.median <= self.aim.limit

    @property
    def word(self) -> str:
        """Verdict of the median; none where others had too large a share."""
        return "too noisy to say" if self.others > NOISE else "met" if self.met else "missed"


def judged(samples: Samples) -> list[Verdict]:
    """Return a verdict on each aim whose rows were measured."""
    verdicts = []
    for aim in AIMS:
        if values := aim.values(samples):
            figures, sign = [value.figure for value in values], 1 if aim.at_least else -1
            reached = sum(sign * figure >= sign * aim.limit for figure in figures)
            spread = (statistics.median(figures), min(figures), max(figures))
            others = statistics.median(value.others for value in values)
            verdicts.append(Verdict(aim, *spread, reached, len(values), others))
    return verdicts


def _figure(table: str, what: str, key: str, server: str = OWN) -> Values:
    """Return a function for `key` of the first row of `table` by `server` whose name contains `what`."""

    def values(samples: Samples) -> list[Value]:
        rows = [row for row in samples if (row.table, row.server) == (table, server) and what in row.what]
        return [Value(figures[key], figures.get("others", 0.0)) for row in rows[:1] for figures in samples[row]]

    return values


def _ratio(of: Values, to: Values) -> Values:
    def values(samples: Samples) -> list[Value]:
        pairs = zip(of(samples), to(samples), strict=False)
        return [Value(one.figure / other.figure, max(one.others, other.others)) for one, other in pairs]

    return values


def _times_plain(what: str) -> Values:
    table = f"{TINY} model"
    return _ratio(_figure(table, what, "per_s"), _figure(table, what, "per_s", PLAIN))


def _over(table: str, what: str, key: str, server: str) -> Values:
    return _ratio(_figure(table, what, key), _figure(table, what, key, server))


STREAMS, FRAMES, SINGLES = (
    "streams, tiny model",
    f"frames of 2.7 MB, {FRAME_CONNECTIONS} connections, a model that reads one corner",
    "MQTT single messages, tiny model",
)


def _of_bare(what: str) -> Values:
    table = f"{COSTLY} model"
    return _ratio(_figure(table, what, "per_s"), _figure(table, "", "per_s", BARE))


AIMS = (
    Aim("tiny model, 8 connections: requests/s over grpcio.aio's", 12, True, "{:.1f} ×", _times_plain("8 connections")),
    Aim("tiny model, 32 connections: the same", 20, True, "{:.1f} ×", _times_plain("32 connections")),
    *(
        Aim(
            f"tiny model, {what}: requests/s over C++'s",
            ratio,
            True,
            "{:.2f} ×",
            _over(f"{TINY} model", what, "per_s", CPP),
        )
        for what, ratio in (("1 connection", 1.3), ("8 connections", 2.5), ("32 connections", 4))
    ),
    *(
        Aim(f"{what}: requests/s over grpcio.aio's", ratio, True, "{:.2f} ×", _over(STREAMS, what, "per_s", PLAIN))
        for what, ratio in (("1 stream, 1 in flight", 2), ("8 streams, 1 in flight", 3))
    ),
    Aim("frames of 2.7 MB over TCP: CPU over C++'s", 1, False, "{:.2f} ×", _over(FRAMES, "TCP", "cpu_us", CPP)),
    *(
        Aim(
            f"MQTT, single messages at {what}: CPU over paho's",
            limit,
            False,
            "{:.2f} ×",
            _over(SINGLES, what, "cpu_us", PAHO),
        )
        for what, limit in (
            ("QoS 0, 1 in flight", 0.82),
            ("QoS 0, 4 in flight", 0.85),
            ("QoS 0, 32 in flight", 1),
            ("QoS 1, 1 in flight", 0.86),
            ("QoS 1, 4 in flight", 0.67),
            ("QoS 1, 32 in flight", 1),
        )
    ),
    *(
        Aim(f"CPU per single MQTT message, {what}", most_us, False, "{:.1f} µs", _figure(SINGLES, what, "cpu_us"))
        for what, most_us in (("QoS 0, 32 in flight", 40), ("QoS 1, 32 in flight", 75))
    ),
    *(
        Aim(f"CPU per tiny request, {what}", 30, False, "{:.1f} µs", _figure(f"{TINY} model", what, "cpu_us"))
        for what in ("1 connection", "8 connections", "32 connections")
    ),
    *(
        Aim(f"costly model, {what}: requests/s of the bare loop's", 0.95, True, "{:.1%}", _of_bare(what))
        for what in ("1 connection", "2 connections")
    ),
    Aim(
        "mixed load: the tiny model's p99",
        5000,
        False,
        "{:,.0f} µs",
        _figure("mixed load, both at once", TINY, "p99_us"),
    ),
    Aim("ready with one ONNX model, HTTP off", 0.5, False, "{:.3f} s", _figure("start and memory", "off", "ready_s")),
    Aim("ready with one ONNX model and HTTP", 0.5, False, "{:.3f} s", _figure("start and memory", "and", "ready_s")),
)
