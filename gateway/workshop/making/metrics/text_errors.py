"""Error rates of recognised texts: by characters (CER) and by words (WER).

Formula: the fewest insertions, deletions and substitutions that make the expected texts of the found ones (Levenshtein
1966), over the number of expected characters, or words between white space. Both are counted over all texts: long
texts weigh more. A rate may exceed 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gateway.common.domain.tensor import Array


def character_error_rate(found: Sequence[str], expected: Sequence[str]) -> float:
    """Return errors by expected characters; NaN without expected characters."""
    return _error_rate(found, expected)


def word_error_rate(found: Sequence[str], expected: Sequence[str]) -> float:
    """Return errors by expected words; NaN without expected words."""
    return _error_rate([text.split() for text in found], [text.split() for text in expected])


def _error_rate(found: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> float:
    length = sum(map(len, expected))
    errors = sum(edit_distance(*pair) for pair in zip(found, expected, strict=True))
    return errors / length if length else math.nan


def edit_distance(found: Sequence[str], expected: Sequence[str]) -> int:
    """Return the fewest edits between two sequences of units.

    A row of distances is made at once: the least over all places before of distance + insertions up to here is a
    running minimum.
    """
    numbers: dict[str, int] = {}
    wanted = np.array([numbers.setdefault(unit, len(numbers)) for unit in expected], np.int64)
    places = np.arange(len(wanted) + 1)
    row: Array = places
    for count, unit in enumerate(found, 1):
        replaced = row[:-1] + (wanted != numbers.get(unit, -1))
        best = np.concatenate(([count], np.minimum(replaced, row[1:] + 1)))
        row = np.minimum.accumulate(best - places) + places
    return int(row[-1])
