"""The life of a servable: TensorFlow Serving's states, as one table of allowed moves.

AVAILABLE is announced after, UNLOADING before the fact: whoever believes the state never meets an absent model.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class State(enum.Enum):
    """START → LOADING → AVAILABLE → UNLOADING → END; a load that fails goes from LOADING to END."""

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
    """`to`, if the table allows the move. Raises ValueError otherwise: a defect of ours, never a caller's fault."""
    if to not in MOVES[state]:
        raise ValueError(f"a servable cannot go from {state.value} to {to.value}")
    return to
