"""Authentication and authorisation at one frontend: failures are counted, and those of one address are throttled."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator

from gateway.common.domain.access import AuthenticationError, Security
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.rights import ANY_CALLER, Caller, Needs, Rights, check_scope
from gateway.common.domain.statistics import MetricSample
from gateway.serving.domain.failures import Failures
from gateway.serving.frontends.peer import Peer

LOG_PERIOD_NS = 10_000_000_000
"""Time between two log lines about failures of one frontend: attackers must not fill the disk."""

log = logging.getLogger(__name__)


class Authentication:
    """Identification of the callers of one frontend, by the `security` in force."""

    def __init__(self, frontend: str, security: Security, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.security = security
        self._frontend, self._clock_ns = frontend, clock_ns
        self._failures = Failures(security.failures)
        self._refused: Counter[str] = Counter()
        self._logged_ns = clock_ns() - LOG_PERIOD_NS
        self._unlogged = 0

    def replace(self, security: Security) -> None:
        """Identify callers by `security` from now on."""
        if security.failures != self.security.failures:
            self._failures = Failures(security.failures)
        self.security = security

    def admit(self, peer: Peer, authorization: str | None, needs: Needs = ANY_CALLER) -> Caller:
        """Identify a caller and check its scope.

        Raises RequestError: UNAUTHENTICATED, THROTTLED if the address failed too often, DENIED without the scope. A
        caller with a valid token passes even if its address failed: other callers may share the address.
        """
        try:
            caller = self.security.caller(peer.name, peer.identities, authorization)
        except AuthenticationError as error:
            raise self._slowed(peer.name, error) from None
        self.check(caller.name, caller.rights, needs)
        return caller

    def check(self, caller: str, rights: Rights, needs: Needs) -> None:
        """Check the scope of an identified caller, and count a refusal. Raises RequestError DENIED."""
        try:
            check_scope(caller, rights, needs)
        except RequestError:
            self.count("scope")
            raise

    def count(self, reason: str) -> None:
        """Count a caller that was refused."""
        self._refused[reason] += 1

    def samples(self) -> Iterator[MetricSample]:
        """Yield the refusals as metrics (METRICS.md)."""
        for reason, count in sorted(self._refused.items()):
            labels = {"frontend": self._frontend, "reason": reason}
            yield MetricSample(
                "edge_gateway_refused_callers_total", "Requests refused for their caller.", count, labels
            )

    def _slowed(self, address: str, error: AuthenticationError) -> RequestError:
        self.count(error.reason)
        now_ns = self._clock_ns()
        self._unlogged += 1
        if now_ns - self._logged_ns >= LOG_PERIOD_NS:
            count, line = self._unlogged, "%d authentications failed over %s; the last from %s: token %s"
            log.warning(line, count, self._frontend, address, error.reason)
            self._logged_ns, self._unlogged = now_ns, 0
        wait_s = self._failures.count(address, now_ns)
        if not wait_s:
            return error
        self.count("throttled")
        message = f"too many failed authentications from {address:.100}; use a valid token, or wait"
        return RequestError(Fault.THROTTLED, message, retry_after_s=wait_s)
