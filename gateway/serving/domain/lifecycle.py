"""Lifecycle of a servable: TensorFlow Serving's states, with one table of allowed transitions. Readiness of the server.

AVAILABLE is announced after the fact, UNLOADING before it: the announced state never names a model that is absent.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class ServableState(enum.Enum):
    """State of a servable: START → LOADING → AVAILABLE → UNLOADING → END; a failed load goes from LOADING to END."""

    START = "START"
    LOADING = "LOADING"
    AVAILABLE = "AVAILABLE"
    UNLOADING = "UNLOADING"
    END = "END"


MOVES: Mapping[ServableState, frozenset[ServableState]] = {
    ServableState.START: frozenset({ServableState.LOADING}),
    ServableState.LOADING: frozenset({ServableState.AVAILABLE, ServableState.END}),
    ServableState.AVAILABLE: frozenset({ServableState.UNLOADING}),
    ServableState.UNLOADING: frozenset({ServableState.END}),
    ServableState.END: frozenset(),
}


READY = ("all", "first")
"""When a start becomes ready: all models have been tried, or the first one serves."""


def server_ready(when: str, *, settled: bool, listed: bool, serving: bool) -> bool:
    """Return True if the server is ready. `when`: one of READY.

    `settled`: each model of the first synchronisation serves, is refused, or was tried without a result. `listed`:
    there is a model; without any the server is ready, and with models only if one is `serving`.
    """
    return (settled and not listed) or (serving and (settled or when == "first"))


def advance(state: ServableState, to: ServableState) -> ServableState:
    """Return `to` if the table allows the transition. Raises ValueError otherwise, which is a defect of the gateway."""
    if to not in MOVES[state]:
        raise ValueError(f"a servable cannot go from {state.value} to {to.value}")
    return to
