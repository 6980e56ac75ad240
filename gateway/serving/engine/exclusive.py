"""Accelerators that only one process at a time can hold: turns of trials and openings, and this process's sessions."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, cast

from gateway.common.domain.errors import VariantError
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.domain.selection import Candidate
from gateway.serving.domain.ports import Session


class ExclusiveUse:
    """Use of exclusive accelerators (`RuntimeSpec.exclusive`) by one process and the trials that it starts.

    No trial, which is another process, starts while a session of this process is open. The runtime decides whether
    several sessions of this process may be.
    """

    def __init__(self) -> None:
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._holders: defaultdict[str, list[str]] = defaultdict(list)
        self._opening: set[str] = set()

    def turn(self, candidate: Candidate) -> AbstractAsyncContextManager[None]:
        """Return the lock under which a candidate is tried or opened."""
        kind = _exclusive(candidate)
        return self._turns[kind] if kind else nullcontext()

    def obstacle(self, candidate: Candidate) -> str:
        """Return why a trial of the candidate cannot start now, or ""."""
        kind = _exclusive(candidate)
        holders = ", ".join(self._holders[kind])
        rule = "and one process at a time can use it; tried once that is unloaded"
        return f"{kind} is held by {holders}, {rule}" if holders else ""

    def opened(self, candidate: Candidate, holder: str, opening: Callable[[], Session]) -> Session:
        """Open a session, which holds the accelerator until it is closed.

        It holds it from before it is open, because an opening goes on after its caller has given up and left its turn,
        and may hang. Raises VariantError while such a one has not ended.
        """
        if not (kind := _exclusive(candidate)):
            return opening()
        holders = self._holders[kind]
        if kind in self._opening:
            problem = f"{kind} is held by {', '.join(holders)}, whose opening has not ended"
            raise VariantError(problem, transient=True)
        self._opening.add(kind)
        holders.append(holder)
        try:
            return cast("Session", _HeldSession(opening(), holder, holders))
        except BaseException:
            holders.remove(holder)
            raise
        finally:
            self._opening.remove(kind)


class _HeldSession:
    """Session that leaves `holders` when it is closed."""

    def __init__(self, session: Session, holder: str, holders: list[str]) -> None:
        self._session, self._holder, self._holders = session, holder, holders
        self._is_open = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def close(self) -> None:
        self._session.close()
        if self._is_open:
            self._is_open = False
            self._holders.remove(self._holder)


def _exclusive(candidate: Candidate) -> str:
    spec = RUNTIMES.get(candidate.variant.runtime)
    return candidate.accelerator if spec and candidate.accelerator in spec.exclusive else ""
