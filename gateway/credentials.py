"""Tokens and certificates in force at the listeners, and their replacement by a reload."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from gateway.config import Config, check_listeners, read_security
from gateway.domain.access import Security, changes, check_replaceable
from gateway.domain.errors import ConfigurationError
from gateway.observe.logs import get_logger


class Guarded(Protocol):
    """A front end that asks for tokens and uses certificates."""

    def secure(self, security: Security) -> Callable[[], None]:
        """Return what puts these in force and cannot fail; its call changes all. Raises ConfigurationError."""


Frontend = TypeVar("Frontend", bound=Guarded)


class Credentials:
    """Tokens and certificates of the last `[auth]` and `[tls]` without an error, and the front ends that use them."""

    def __init__(self, config: Config) -> None:
        """Read the files that `config` names. Raises as `read_security` and `check_listeners` do."""
        self._config, self.security = config, read_security(config)
        check_listeners(config, self.security)
        self._guarded: list[Guarded] = []
        self._log = get_logger("credentials")

    def guard(self, frontend: Frontend) -> Frontend:
        """Tell `frontend` of each later replacement. Returns it."""
        self._guarded.append(frontend)
        return frontend

    async def renew(self, wanted: Config | None) -> None:
        """Read the files that `wanted` (None: the configuration in force) names, and put them in force everywhere.

        What cannot be used is said in the log, and what was in force stays, as a whole and at every front end.
        """
        try:
            config, security = await asyncio.to_thread(self._read, wanted)
            differs = changes(self.security, security)
            if differs:
                prepared = [frontend.secure(security) for frontend in self._guarded]
                for put_in_force in prepared:
                    put_in_force()
        except ConfigurationError as error:
            self._log.error("credentials refused; those read before stay in force", problem=str(error))
            return
        self._config, self.security = config, security
        self._log.info("credentials reloaded", changed=", ".join(differs) or "nothing")

    def _read(self, wanted: Config | None) -> tuple[Config, Security]:
        """Raises ConfigurationError where the files cannot be used, or not by the listeners that are open."""
        config = replace(self._config, auth=wanted.auth, tls=wanted.tls) if wanted else self._config
        security = read_security(config)
        check_replaceable(self.security, security)
        check_listeners(config, security)
        return config, security
