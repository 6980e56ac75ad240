"""Delivery of alerts to a webhook: each change at least once, in order, with an id for deduplication.

A slow or failing receiver delays nothing else.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from fleet import events
from fleet.controller.database import alerts
from fleet.controller.database.alerts import Untold
from fleet.controller.database.engine import Database
from fleet.controller.monitoring.message import body, headers, message_id
from fleet.controller.monitoring.post import RETRYABLE, Post, PostResult
from fleet.controller.monitoring.settings import AlertSettings
from gateway.common.domain.retry import pause_s

SENT, FAILED, DROPPED = "webhook_sent", "webhook_failed", "webhook_dropped"
GONE = 410
CLIENT_ERRORS = range(400, 500)
ANY_MESSAGE = frozenset({401, 403, 404, 405, 407, 408, GONE, *RETRYABLE})
"""Statuses that a receiver would return for any message. No message is dropped because of them."""
_log = logging.getLogger(__name__)


class Webhook:
    """Sender of alerts, one per process, used by one thread.

    `secret`: see `message.read_secret`; None: messages are not signed.
    """

    def __init__(
        self,
        database: Database,
        settings: AlertSettings,
        post: Post,
        counts: Counter[str],
        *,
        secret: bytes | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._database, self._settings, self._post, self._counts = database, settings, post, counts
        self._secret, self._chance = secret, chance
        self._not_before: datetime | None = None
        self._failures = 0
        self._refusals: Counter[str] = Counter()
        self._gone = False

    def tick(self, now: Callable[[], datetime]) -> None:
        """Send the waiting messages unless a back-off is in progress. Raise AwayError."""
        if not self._settings.url or self._gone or self._pausing(now()):
            return
        while True:
            with self._database.read() as connection:
                batch = alerts.untold(connection, self._settings.batch_rows)
            done: list[Untold] = []
            try:
                whole = all(self._sent(untold, now(), done) for untold in batch)
            finally:
                self._keep(done)
            if not (batch and whole):
                break

    def close(self) -> None:
        """Close the connection. May be called twice."""
        self._post.close()

    def _keep(self, done: Iterable[Untold]) -> None:
        rows = [(untold.alert.key, untold.change) for untold in done]
        if rows:
            with self._database.write() as connection:
                for key, change in rows:
                    alerts.mark_notified(connection, key, change)

    def _pausing(self, now: datetime) -> bool:
        """Return whether a back-off is in progress. A clock that was set back ends it."""
        limit = timedelta(seconds=self._settings.retry_limit_s)
        return self._not_before is not None and now < self._not_before <= now + limit

    def _sent(self, untold: Untold, now: datetime, done: list[Untold]) -> bool:
        """Send one message. Return whether to continue with the next one."""
        changed = untold.alert.closed or untold.alert.opened or untold.alert.since
        if now - changed > timedelta(seconds=self._settings.give_up_s):
            self._drop(untold, done, f"it was not accepted within {self._settings.give_up_s / 86_400:g} days")
            return True
        content = body(untold)
        answer = self._post.send(self._settings.url, content, headers(untold, content, self._secret, now), now)
        if answer.delivered:
            self._counts[SENT] += 1
            self._failures, self._not_before = 0, None
            self._refusals.clear()
            done.append(untold)
            return True
        return self._failed(untold, answer, now, done)

    def _failed(self, untold: Untold, answer: PostResult, now: datetime, done: list[Untold]) -> bool:
        self._counts[FAILED] += 1
        self._failures += 1
        if answer.status == GONE:
            self._gone = True
            _log.error(events.WEBHOOK_DISABLED)
            return False
        if answer.status in CLIENT_ERRORS and answer.status not in ANY_MESSAGE:
            named = message_id(untold)
            self._refusals[named] += 1
            if self._refusals[named] >= self._settings.refusals_limit:
                self._drop(untold, done, answer.problem)
                return True
        settings = self._settings
        wait_s = pause_s(self._failures, settings.retry_s, settings.retry_limit_s, self._chance())
        wait_s = max(wait_s, min(answer.retry_after_s, settings.retry_limit_s))
        self._not_before = now + timedelta(seconds=wait_s)
        _log.warning(events.ALERT_DELIVERY_FAILED, answer.problem, wait_s)
        return False

    def _drop(self, untold: Untold, done: list[Untold], because: str) -> None:
        self._counts[DROPPED] += 1
        done.append(untold)
        _log.error(events.ALERT_DROPPED, because, untold.alert.summary)
