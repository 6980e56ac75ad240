"""Conditions of rules: the value of a result, its aggregate, and thresholds with hysteresis. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gateway.frontends.mqtt.outbound.rows import ResultRow
from gateway.frontends.mqtt.settings.rules import RuleSettings

State = bool | str | float
"""State of a rule: on or off of a condition, else a label or a number."""


def value_of(name: str, row: ResultRow) -> str | float | None:
    """Return the value that a rule names; None if the result does not have it."""
    kind, _, part = name.partition(".")
    if kind in {"label", "anomalous"}:
        return row.label if kind == "label" else row.anomalous
    if kind == "score":
        return row.score_of(part) if part else row.score
    return row.output(part) if part else row.value


def aggregated(kind: str, values: Sequence[str | float]) -> str | float:
    """Return the aggregate of values, which are numbers unless it is a majority.

    Of equally frequent values the one that came last counts.
    """
    if kind == "majority":
        counts = Counter(values)
        most = max(counts.values())
        return next(value for value in reversed(values) if counts[value] == most)
    numbers = [float(value) for value in values]
    return max(numbers) if kind == "max" else sum(numbers) / len(numbers)


def state_of(rule: RuleSettings, value: str | float, row: ResultRow, was: State | None) -> State:
    """Return the state that `value`, a number if the rule needs one, makes of `was`."""
    if rule.labels:
        named = {value} if rule.top_k == 1 else set(row.best_labels(rule.top_k))
        return not named.isdisjoint(rule.labels)
    if not (rule.above or rule.below):
        return value
    return _is_beyond(rule.above or rule.below, float(value), sign=1 if rule.above else -1, was=was is True)


def _is_beyond(bounds: Sequence[float], value: float, *, sign: int, was: bool) -> bool:
    """Return True if `value` passes the first bound, or, where it did before, not yet the last one."""
    begin, end = bounds[0], bounds[-1]
    return sign * value > sign * begin or (was and sign * value >= sign * end)
