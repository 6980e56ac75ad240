"""Number of examples of property tests: fewer by default, all of them with HYPOTHESIS_PROFILE=thorough."""

from __future__ import annotations

from hypothesis import settings

THOROUGH = 100
"""Examples of a property without a number of its own, in the thorough profile."""
IS_THOROUGH = settings.default.max_examples >= THOROUGH
"""Whether the profile is the thorough one, that of `make test-long`."""


def examples(thorough: int) -> int:
    """Return how many examples to try of a property that is tried `thorough` times in the thorough profile."""
    return max(1, thorough * settings.default.max_examples // THOROUGH)
