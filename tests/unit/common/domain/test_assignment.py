"""Parts of an assignment other than its targets: read where they are well-formed, ignored where they are not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.assignment import ATTEMPT_LIMIT, Assignment

NOW = datetime(2027, 1, 1, tzinfo=UTC)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["meter", "other", ""]), inner),
    max_leaves=8,
)


def assignment(**extra: Any) -> Assignment:
    return Assignment("door-1", 1, NOW, NOW + timedelta(days=1), {}, extra=extra)


def test_an_attempt_is_that_of_its_slot() -> None:
    made = assignment(attempts={"meter": 1, "other": ATTEMPT_LIMIT, "odd": "2"})
    assert [made.attempt(slot) for slot in ("meter", "other", "odd", "unnamed")] == [1, ATTEMPT_LIMIT, 0, 0]
    assert assignment().attempt("meter") == 0


@given(attempts=anything, diagnostics=anything)
def test_odd_values_are_as_none(attempts: Any, diagnostics: Any) -> None:
    made = assignment(attempts=attempts, diagnostics=diagnostics)
    number = attempts.get("meter") if isinstance(attempts, dict) else None
    fine = type(number) is int and 1 <= number <= ATTEMPT_LIMIT
    assert made.attempt("meter") == (number if fine else 0)
    assert made.diagnostics is (diagnostics is True)
