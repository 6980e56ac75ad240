"""Lifecycle of a servable: TensorFlow Serving's states, with one table of allowed transitions.

AVAILABLE is announced after the fact, UNLOADING before it: the announced state never names a model that is absent.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class State(enum.Enum):
    """State of a servable: START → LOADING → AVAILABLE → UNLOADING → END; a failed load goes from LOADING to END."""

    START = "START"
    LOADING = "LOADING"
    AVAILABLE = "AVAILABLE"
    UNLOADING = "UNLOADING"
    END = "END"


MOVES: Mapping[State, frozenset[State]] = {
    State.START: frozenset({State.LOADING}),
    State.LOADING: frozenset({State.AVAILABLE, State.END}),
    State.AVAILABLE: frozenset({State.UNLOADING}),
    State.UNLOADING: frozenset({State.END}),
    State.END: frozenset(),
}


def advance(state: State, to: State) -> State:
    """Return `to` if the table allows the transition. Raises ValueError otherwise, which is a defect of the gateway."""
    if to not in MOVES[state]:
        raise ValueError(f"a servable cannot go from {state.value} to {to.value}")
    return to
