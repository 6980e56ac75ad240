"""Sharing of requests that name no version among versions, and comparison of the answers of two versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from zlib import crc32

import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.routing import version_order
from gateway.common.domain.tensor import Tensors
from gateway.serving.domain.golden import agreeing, mean_difference

WHOLE = 100
"""Sum of all weights: they are percent."""


def check_weights(model: str, weights: Mapping[str, int]) -> None:
    """Check that every version has 0 to 100 percent, and all together 100. Raises RequestError INVALID."""
    for version, weight in weights.items():
        if type(weight) is not int or not 0 <= weight <= WHOLE:
            raise _invalid(
                model, f"version {version:.200} has the weight {weight!r:.40}; write a whole number of percent"
            )
    if sum(weights.values()) != WHOLE:
        raise _invalid(model, f"the weights add up to {sum(weights.values())}; make them {WHOLE}")


def main_version(weights: Mapping[str, int]) -> str:
    """Return the version with most weight, the newest of equal ones. It represents all where only one can."""
    return max(weights, key=lambda version: (weights[version], version_order(version)))


def percentages(weights: Mapping[str, int]) -> dict[str, int]:
    """Convert weights that may no longer add up to 100 to whole percent."""
    total = sum(weights.values())
    return {version: round(WHOLE * weight / total) for version, weight in weights.items()}


class WeightedRoundRobin:
    """Sequence of versions by smooth weighted round-robin, as in nginx.

    It is deterministic, evenly spread and exact: any `sum(weights)` consecutive requests are shared by the weights.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        """Set up the sequence; at least one weight must be above 0."""
        self.weights = MappingProxyType({version: weight for version, weight in weights.items() if weight})
        self._order, self._place = _order(self.weights), -1

    def next(self) -> str:
        """Return the next version."""
        place = self._place = (self._place + 1) % len(self._order)
        return self._order[place]

    def of(self, key: str) -> str:
        """Return the version of a key: always the same, and of many keys each version has its share."""
        return self._order[crc32(key.encode(errors="replace")) % len(self._order)]


def _order(weights: Mapping[str, int]) -> tuple[str, ...]:
    total, credit = sum(weights.values()), dict.fromkeys(weights, 0)
    order = []
    for _ in range(total):
        for version, weight in weights.items():
            credit[version] += weight
        chosen = max(credit, key=credit.__getitem__)
        credit[chosen] -= total
        order.append(chosen)
    return tuple(order)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of the answers of two versions to one request: `rows`, and how many of them `disagreed`.

    `mean_abs` is the largest mean absolute difference of any output. It is infinite if only one of them has NaN or
    infinity.
    """

    rows: int
    disagreed: int
    mean_abs: float


def compare(answers: Tensors, others: Tensors, rows: int) -> Comparison:
    """Compare `others` with `answers`, which have a row for each of `rows` (1: they are one row).

    A row disagrees if the best class of any output differs or, without classes, any value differs beyond the tolerance
    of golden sets.
    """
    disagree, mean_abs = np.zeros(rows, bool), 0.0
    for name, answer in answers.items():
        other = others[name]
        if answer.shape != other.shape:
            return Comparison(rows, rows, float("inf"))
        agree = agreeing(answer, other)
        disagree |= ~agree.reshape(rows, -1).all(axis=1) if agree.size else False
        mean_abs = max(mean_abs, mean_difference(answer, other))
    return Comparison(rows, int(disagree.sum()), mean_abs)


def _invalid(model: str, problem: str) -> RequestError:
    return RequestError(Fault.INVALID, f"model '{model:.200}': {problem}")
