"""`/problems`: meaning of the `type` of problem documents.

It needs no authentication, because a refused caller may have no token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from litestar import get
from litestar.params import PathParameter

from fleet.problem_types import TYPES, ProblemType
from gateway.common.domain.errors import Fault, RequestError

NAME_CHARACTERS = max(len(kind.name) for kind in TYPES)
KindInPath = Annotated[str, PathParameter(min_length=1, max_length=NAME_CHARACTERS, pattern="^[a-z-]+$")]


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """Type of problems. `meaning`: what happened. `remedy`: what the caller does next."""

    type: str
    title: str
    status: int
    meaning: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ProblemKinds:
    """All types, by status."""

    types: list[ProblemKind]


@get("/problems", sync_to_thread=False, security=[], summary="List the types of problems")
def list_kinds() -> ProblemKinds:
    """Return the types of problems (RFC 9457); PROBLEMS.md has the same list."""
    return ProblemKinds([_problem_kind(kind) for kind in TYPES])


@get("/problems/{kind:str}", sync_to_thread=False, security=[], summary="Explain a type of problem")
def show_kind(kind: KindInPath) -> ProblemKind:
    """Explain a type of problem. The address is the `type` of problem documents."""
    for one in TYPES:
        if one.name == kind:
            return _problem_kind(one)
    raise RequestError(Fault.NOT_FOUND, f"no problem is of the type {kind!r:.80}; GET /problems lists all types")


def _problem_kind(kind: ProblemType) -> ProblemKind:
    return ProblemKind(kind.uri, kind.title, kind.status, kind.meaning, kind.remedy)


HANDLERS = (list_kinds, show_kind)
