"""Rights of callers: scopes, model patterns, and the decision whether a caller may do something."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase, translate

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.python310 import StrEnum

PATTERNS_LIMIT = 64
"""Patterns of one caller; they are matched for each request."""
PATTERN_LIMIT_CHARS = 200
_IDENTITY = re.compile(r"cert:.+|[ug]id:(?:[0-9]{1,10}|\*)|loopback|anonymous")


class Scope(StrEnum):
    """Group of operations. `ADMIN` stands for all of them."""

    INFER = "infer"
    MODELS = "models"
    MEMORY = "memory"
    METRICS = "metrics"
    CAMERAS = "cameras"
    ADMIN = "admin"


Needs = tuple[Scope, ...]
"""Scopes of which a caller needs one; () is open to every identified caller."""
ANY_CALLER: Needs = ()
READ: Needs = (Scope.INFER, Scope.MODELS)
"""Needs of metadata, configuration, readiness and statistics of models, and of the repository index."""
INFER: Needs = (Scope.INFER,)
CONTROL: Needs = (Scope.MODELS,)
MEMORY: Needs = (Scope.MEMORY,)
METRICS: Needs = (Scope.METRICS,)
CAMERAS: Needs = (Scope.CAMERAS,)
"""Needs of the states of cameras and of the pictures of events."""


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights of a caller: `scopes`, and `models` as patterns of names; (): every model.

    Patterns are those of POSIX shells (POSIX.1-2017, XCU 2.13) as Python's `fnmatchcase` reads them: `*`, `?`, `[abc]`,
    `[!abc]`. They are case-sensitive.
    """

    scopes: frozenset[Scope]
    models: tuple[str, ...] = ()
    _matches: Callable[[str], object] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the patterns into one, so that each request needs one match."""
        together = "|".join(translate(pattern) for pattern in self.models)
        object.__setattr__(self, "_matches", re.compile(together).match)

    def allows(self, needs: Needs) -> bool:
        """Return True if one of `needs` is among the scopes, or nothing is needed."""
        return not needs or not self.scopes.isdisjoint(needs)

    def sees(self, model: str) -> bool:
        """Return True if the name of a model matches a pattern, or there is none."""
        return not self.models or self._matches(model) is not None


NOTHING = Rights(frozenset())
EVERYTHING = Rights(frozenset(Scope))


@dataclass(frozen=True, slots=True)
class Caller:
    """An identified caller, `by_token` or by its peer. Quotas, logs and shared memory use `name`."""

    name: str
    rights: Rights
    by_token: bool = False


def check_scope(caller: str, rights: Rights, needs: Needs) -> None:
    """Refuse an operation if the caller lacks all scopes for it. Raises RequestError DENIED."""
    if not rights.allows(needs):
        wanted = " or ".join(needs)
        raise RequestError(
            Fault.DENIED,
            f"caller '{caller:.200}' lacks the scope {wanted}; ask the operator to add it: scopes= of its token in "
            "[auth] tokens_file, or [[auth.grant]] for other callers (EG-503)",
        )


def check_model(caller: str, rights: Rights, model: str) -> None:
    """Refuse a model that no pattern of the caller matches, known or not. Raises RequestError DENIED."""
    if not rights.sees(model):
        raise RequestError(
            Fault.DENIED,
            f"caller '{caller:.200}' may not use model '{model:.200}'; ask the operator to add a pattern that matches: "
            "models= of its token in [auth] tokens_file, or [[auth.grant]] models for other callers",
        )


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights of the callers that `caller` names: "cert:NAME", "uid:N", "gid:N", "loopback" or "anonymous".

    A certificate's name may be a pattern; the id may be `*`.
    """

    caller: str
    rights: Rights

    def covers(self, identities: Iterable[str]) -> bool:
        """Return True if the grant is for one of a peer's identities."""
        return any(fnmatchcase(identity, self.caller) for identity in identities)


DEFAULT_GRANTS = (
    Grant("cert:*", EVERYTHING),
    Grant("uid:*", EVERYTHING),
    Grant("loopback", EVERYTHING),
    Grant("anonymous", Rights(frozenset({Scope.INFER, Scope.METRICS}))),
)
"""Rights if no grant names the caller and no token is required (decisions/0025).

Whatever the rights, models are controlled only with `[models] control`, and memory is registered only with
`[shared_memory] allowed`.
"""


def granted(grants: Sequence[Grant], identities: Sequence[str]) -> Rights | None:
    """Return the rights of the first grant that covers a peer, or None."""
    return next((grant.rights for grant in grants if grant.covers(identities)), None)


def read_rights(scopes: Iterable[str], models: Iterable[str]) -> Rights:
    """Build rights from words; `admin` stands for every scope. Raises ConfigurationError (key scopes or models)."""
    words, patterns = set(scopes), tuple(models)
    known = {scope.value for scope in Scope}
    if not words or words - known:
        raise ConfigurationError(f"must name some of {', '.join(known_scopes())}, {_not(words - known)}", key="scopes")
    if len(patterns) > PATTERNS_LIMIT or not all(0 < len(pattern) <= PATTERN_LIMIT_CHARS for pattern in patterns):
        limits = f"{PATTERNS_LIMIT} patterns of 1 to {PATTERN_LIMIT_CHARS} characters"
        raise ConfigurationError(f"must be at most {limits}, such as cam-*", key="models")
    if Scope.ADMIN in words:
        return Rights(EVERYTHING.scopes, patterns)
    return Rights(frozenset(Scope(word) for word in words), patterns)


def known_scopes() -> tuple[str, ...]:
    """Return the names of all scopes."""
    return tuple(scope.value for scope in Scope)


def check_identity(text: str) -> None:
    """Refuse text that is no identity of a grant. Raises ConfigurationError (key caller)."""
    if not _IDENTITY.fullmatch(text):
        raise ConfigurationError(
            f"{text!r:.120} names no caller; write cert:NAME, uid:NUMBER, gid:NUMBER, loopback or anonymous",
            key="caller",
        )


def _not(unknown: set[str]) -> str:
    return f"not {', '.join(sorted(repr(word)[:40] for word in unknown))}" if unknown else "not nothing"
