"""Tokens and certificates in force at the listeners, and their replacement by a reload."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol, TypeVar

from gateway.common.domain.access import Security, changes, check_replaceable
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.statistics import MetricSample
from gateway.common.logs import get_logger
from gateway.serving.config import Config, check_listeners, exposed_secrets, open_listeners, read_security
from gateway.serving.frontends.authentication import Authentication

EXPIRY_PERIOD_S = 60.0
"""Longest time between two checks of tokens that expire: the wall clock may be set while a timer waits."""
LEAST_WAIT_S = 0.1
"""Shortest time until such a check: a timer of the loop may be a little early by the wall clock."""


class Guarded(Protocol):
    """A front end that checks tokens and uses certificates."""

    @property
    def authentication(self) -> Authentication: ...

    def secure(self, security: Security) -> Callable[[], None]:
        """Return a callable that puts `security` in force as a whole and cannot fail. Raises ConfigurationError."""


Frontend = TypeVar("Frontend", bound=Guarded)


class Credentials:
    """Tokens and certificates of the last valid `[auth]` and `[tls]`, and the front ends that use them."""

    def __init__(self, config: Config) -> None:
        """Read the files that `config` names. Raises as `read_security` and `check_listeners` do."""
        self._config, self.security = config, read_security(config).at(time.time())
        check_listeners(config, self.security)
        self._guarded: list[Guarded] = []
        self._log = get_logger("credentials")
        self._warn()
        self._watch: asyncio.TimerHandle | None = None
        self._watch_expiry()

    def guard(self, frontend: Frontend) -> Frontend:
        """Register `frontend` for each later replacement; return it."""
        self._guarded.append(frontend)
        return frontend

    def samples(self) -> Iterator[MetricSample]:
        """Yield the refusals of the front ends as metrics."""
        for frontend in self._guarded:
            yield from frontend.authentication.samples()

    async def renew(self, wanted: Config | None) -> None:
        """Read the files that `wanted` (None: the configuration in force) names, and put them in force everywhere.

        Unusable files are logged. What was in force then stays, as a whole and at every front end.
        """
        try:
            config, security = await asyncio.to_thread(self._read, wanted)
            differs = changes(self.security, security)
            self._enforce(security)
        except ConfigurationError as error:
            self._log.error("credentials refused; those read before stay in force", problem=str(error))
            return
        self._config = config
        self._warn()
        self._watch_expiry()
        self._log.info("credentials reloaded", changed=", ".join(differs) or "nothing")

    def _read(self, wanted: Config | None) -> tuple[Config, Security]:
        """Read the files. Raises ConfigurationError if they are unusable, or unusable by the open listeners."""
        config = replace(self._config, auth=wanted.auth, tls=wanted.tls) if wanted else self._config
        security = read_security(config).at(time.time())
        check_replaceable(self.security, security)
        check_listeners(config, security)
        return config, security

    def _enforce(self, security: Security) -> None:
        """Put the differences in force at every front end, or at none. Raises ConfigurationError."""
        if security != self.security:
            prepared = [frontend.secure(security) for frontend in self._guarded]
            for put_in_force in prepared:
                put_in_force()
        self.security = security

    def _watch_expiry(self) -> None:
        """Schedule the next expiry check; open connections and streams lose expired tokens then."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        expires_s = self.security.tokens.next_expiry_s if self.security.tokens else None
        if expires_s is not None:
            wait_s = min(max(expires_s - time.time(), LEAST_WAIT_S), EXPIRY_PERIOD_S)
            self._watch = asyncio.get_running_loop().call_later(wait_s, self._expire)

    def _expire(self) -> None:
        security = self.security.at(time.time())
        if security != self.security:
            self._log.info("tokens expired", names=", ".join(sorted(_expired(security) - _expired(self.security))))
            self._enforce(security)
        self._watch_expiry()

    def _warn(self) -> None:
        for address in open_listeners(self._config, self.security):
            self._log.warning("anonymous callers served", address=str(address), setting="[auth] anonymous = true")
        for setting, problem in exposed_secrets(self._config).items():
            self._log.warning("secret exposed", setting=setting, problem="; ".join(problem))


def _expired(security: Security) -> set[str]:
    tokens = security.tokens.by_digest.values() if security.tokens else ()
    return {token.holder.name for token in tokens if token.expired}
