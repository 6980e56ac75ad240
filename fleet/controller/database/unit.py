"""All writes of one request as one transaction."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field

from sqlalchemy import Connection

Effect = Callable[[], object]


@dataclass(slots=True)
class UnitOfWork:
    """Transaction that the first write of a request begins; later writes are savepoints in it. `begun` runs first.

    `effects` wait for the commit: what others see in memory must not be ahead of the database.
    """

    begin: Callable[[], AbstractContextManager[Connection]]
    begun: Callable[[Connection], None]
    opened: ExitStack
    connection: Connection | None = None
    effects: list[Effect] = field(default_factory=list)

    def join(self) -> Connection:
        """Return its connection; begin the transaction if this is the first write."""
        if self.connection is None:
            self.connection = self.opened.enter_context(self.begin())
            self.begun(self.connection)
        return self.connection


current: ContextVar[UnitOfWork | None] = ContextVar("unit", default=None)
"""Unit of this thread."""
