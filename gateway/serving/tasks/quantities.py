"""Physical quantities of a model's numbers: name, unit and scale. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.tensor import Array
from gateway.serving.tasks.row_outputs import RowOutput

UNIT_LIMIT = 32
"""Most characters of a unit."""
NAMES_LIMIT = 100_000
"""Most quantities of one output."""


@dataclass(frozen=True, slots=True)
class Quantities:
    """Names and units of n quantities; a quantity is number · scale + offset, each [n]."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    scale: Array
    offset: Array

    def described(self) -> Iterator[dict[str, str]]:
        """Yield name and unit of each quantity; no unit if it has none."""
        for name, unit in zip(self.names, self.units, strict=True):
            yield {"name": name, "unit": unit} if unit else {"name": name}


def read_quantities(options: Table, key: str, output: RowOutput, size: int, names: tuple[str, ...]) -> Quantities:
    """Take `key` (the names), `units`, `scale` and `offset` of `size` numbers of an output (-1: as many as names).

    `names` are used without the option; one number is then called as its output. Raises ConfigurationError if the
    counts differ.
    """
    found = options.texts(key, names or ((output.name,) if size == 1 else ()))
    if len(found) != size and (size >= 0 or not found):
        count = size if size >= 0 else "an open number of"
        options.refuse(key, f"must name the {count} values of output '{output.name}'; {len(found)} are named")
    if len(set(found)) < len(found) or not all(found) or len(found) > NAMES_LIMIT:
        options.refuse(key, f"must be at most {NAMES_LIMIT} different names")
    units = options.texts("units", ("",))
    if len(units) not in {1, len(found)} or any(len(unit) > UNIT_LIMIT for unit in units):
        options.refuse("units", f"must be 1 or {len(found)} texts of at most {UNIT_LIMIT} characters")
    return Quantities(
        found,
        units if len(units) == len(found) else units * len(found),
        _factors(options, "scale", 1.0, len(found)),
        _factors(options, "offset", 0.0, len(found)),
    )


def _factors(options: Table, key: str, default: float, count: int) -> Array:
    numbers = options.numbers(key, (default,))
    if len(numbers) not in {1, count}:
        options.refuse(key, f"must hold 1 or {count} numbers, not {len(numbers)}")
    return np.full(count, numbers)
