"""What the data plane is meant to reach, and whether it did: ratios within a pass, medians over the passes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.performance.load import Figures
from tests.performance.servers import OWN, PLAIN
from tests.performance.steps import BARE, COSTLY, TINY, Row

Samples = Mapping[Row, Sequence[Figures]]


@dataclass(frozen=True, slots=True)
class Aim:
    """`values` answers one figure a pass, or none where its rows were not measured; `form` writes it."""

    what: str
    limit: float
    at_least: bool
    form: str
    values: Callable[[Samples], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """An aim, its median and range, and in how many passes it was reached."""

    aim: Aim
    median: float
    low: float
    high: float
    reached: int
    passes: int

    @property
    def met(self) -> bool:
        """By the median."""
        return self.median >= self.aim.limit if self.aim.at_least else self.median <= self.aim.limit


def judged(samples: Samples) -> list[Verdict]:
    """A verdict on each aim whose rows were measured."""
    verdicts = []
    for aim in AIMS:
        if values := aim.values(samples):
            sign = 1 if aim.at_least else -1
            reached = sum(sign * value >= sign * aim.limit for value in values)
            spread = (statistics.median(values), min(values), max(values))
            verdicts.append(Verdict(aim, *spread, reached, len(values)))
    return verdicts


def _figure(table: str, what: str, key: str, server: str = OWN) -> Callable[[Samples], list[float]]:
    """`key` of the one row of `table` by `server` whose name contains `what`."""

    def values(samples: Samples) -> list[float]:
        rows = [row for row in samples if (row.table, row.server) == (table, server) and what in row.what]
        return [figures[key] for row in rows[:1] for figures in samples[row]]

    return values


def _ratio(
    of: Callable[[Samples], list[float]], to: Callable[[Samples], list[float]]
) -> Callable[[Samples], list[float]]:
    def values(samples: Samples) -> list[float]:
        return [one / other for one, other in zip(of(samples), to(samples), strict=False)]

    return values


def _times_plain(what: str) -> Callable[[Samples], list[float]]:
    table = f"{TINY} model"
    return _ratio(_figure(table, what, "per_s"), _figure(table, what, "per_s", PLAIN))


def _of_bare(what: str) -> Callable[[Samples], list[float]]:
    table = f"{COSTLY} model"
    return _ratio(_figure(table, what, "per_s"), _figure(table, "", "per_s", BARE))


AIMS = (
    Aim("tiny model, 8 connections: requests/s over grpcio.aio's", 12, True, "{:.1f} ×", _times_plain("8 connections")),
    Aim("tiny model, 32 connections: the same", 20, True, "{:.1f} ×", _times_plain("32 connections")),
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
