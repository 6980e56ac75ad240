"""Export of telemetry to an OTLP/HTTP endpoint: bounded, compressed, each item at most once. Drops are counted.

If the endpoint took nothing (429, 502, 503, 504, no connection), the request is retried. If it is unknown whether the
endpoint took it, OTLP would retry; here it is dropped, since log records have no identifier for deduplication.
"""

from __future__ import annotations

import gzip
import json
import logging
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet import events
from fleet.controller.database.tail import ReceivedRow
from fleet.controller.monitoring.documents import count, mapping
from fleet.controller.monitoring.otlp_devices import LOGS, METRICS, Names, Piece, pieces
from fleet.controller.monitoring.otlp_points import request
from fleet.controller.monitoring.post import Post, PostResult
from fleet.controller.monitoring.settings import OtlpSettings
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.retry import pause_s

PATHS = {METRICS: "/v1/metrics", LOGS: "/v1/logs"}
REJECTED = {METRICS: "rejectedDataPoints", LOGS: "rejectedLogRecords"}
ITEMS = "otlp_items"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Export:
    """One waiting request with `count` items."""

    signal: str
    content: bytes
    count: int


class Exporter:
    """Queue and sender of exports. `offer` may be called from any thread; `turn` is called periodically from one."""

    def __init__(
        self,
        settings: OtlpSettings,
        post: Post,
        counts: Counter[str],
        headers: Mapping[str, str] | None = None,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._settings, self._post, self._counts, self._chance = settings, post, counts, chance
        named = {"content-type": "application/json", "content-encoding": "gzip"}
        self._headers = {**(headers or {}), **named}
        self._names = Names(settings.names_limit)
        self._lock = threading.Lock()
        self._queue: deque[Export] = deque()
        self._waiting_bytes = 0
        self._attempts = 0
        self._not_before: datetime | None = None

    def offer_rows(self, rows: Sequence[ReceivedRow]) -> None:
        """Queue devices' telemetry. Called by one thread at a time."""
        before = self._names.left
        self.offer(pieces(rows, self._names))
        self._count("too_many_names", self._names.left - before)

    def offer(self, pieces: Iterable[Piece]) -> None:
        """Combine pieces into requests, and queue those."""
        by_signal: dict[str, list[Piece]] = {METRICS: [], LOGS: []}
        for piece in pieces:
            by_signal[piece.signal].append(piece)
        for signal, found in by_signal.items():
            for batch in batches(found, self._settings.request_limit_bytes):
                self._put(
                    Export(signal, request(signal, (piece.content for piece in batch)), sum(p.count for p in batch))
                )

    def waiting(self) -> tuple[int, int]:
        """Return the number of queued requests, and their bytes."""
        with self._lock:
            return len(self._queue), self._waiting_bytes

    def tick(self, now: Callable[[], datetime]) -> None:
        """Send the queued requests unless a back-off is in progress."""
        while not self._pausing(now()):
            with self._lock:
                export = self._queue[0] if self._queue else None
            if export is None:
                return
            url = self._settings.url.rstrip("/") + PATHS[export.signal]
            answer = self._post.send(url, gzip.compress(export.content, 6), self._headers, now())
            if not self._settle(export, answer, now()):
                return

    def close(self) -> None:
        """Drop and count the queued requests, and close the connection."""
        with self._lock:
            left = sum(export.count for export in self._queue)
            self._queue.clear()
            self._waiting_bytes = 0
        self._count("stopped", left)
        self._post.close()

    def _put(self, export: Export) -> None:
        size_bytes = len(export.content)
        with self._lock:
            fits = self._waiting_bytes + size_bytes <= self._settings.queue_limit_bytes
            if fits and size_bytes <= self._settings.request_limit_bytes:
                self._queue.append(export)
                self._waiting_bytes += size_bytes
                return
        self._count("too_large" if fits else "queue_full", export.count)

    def _done(self, export: Export, outcome: str) -> None:
        with self._lock:
            if self._queue and self._queue[0] is export:
                self._queue.popleft()
                self._waiting_bytes -= len(export.content)
        self._attempts, self._not_before = 0, None
        self._count(outcome, export.count)

    def _settle(self, export: Export, answer: PostResult, now: datetime) -> bool:
        """Record the outcome of a request. Return whether to continue with the next one."""
        if answer.delivered:
            rejected = min(_rejected(export.signal, answer.content), export.count)
            self._done(export, "sent")
            self._counts[f"{ITEMS}_sent"] -= rejected
            self._count("rejected", rejected)
            return True
        self._attempts += 1
        if answer.taken or self._attempts >= self._settings.attempts:
            _log.warning(events.OTLP_ITEMS_DROPPED, export.count, answer.problem)
            outcome = "refused" if answer.status else "unknown" if answer.taken else "unreachable"
            self._done(export, outcome)
            return bool(answer.status)
        settings = self._settings
        wait_s = pause_s(self._attempts, settings.retry_s, settings.retry_limit_s, self._chance())
        wait_s = max(wait_s, min(answer.retry_after_s, settings.retry_limit_s))
        self._not_before = now + timedelta(seconds=wait_s)
        return False

    def _pausing(self, now: datetime) -> bool:
        """Return whether a back-off is in progress. A clock that was set back ends it."""
        limit = timedelta(seconds=self._settings.retry_limit_s)
        return self._not_before is not None and now < self._not_before <= now + limit

    def _count(self, outcome: str, number: int) -> None:
        if number:
            self._counts[f"{ITEMS}_{outcome}"] += number


def batches(found: Iterable[Piece], limit_bytes: int) -> Iterable[list[Piece]]:
    """Group pieces into requests, in order. A piece above the limit is a request of its own."""
    batch: list[Piece] = []
    size_bytes = 32
    for piece in found:
        if batch and size_bytes + len(piece.content) + 1 > limit_bytes:
            yield batch
            batch, size_bytes = [], 32
        batch.append(piece)
        size_bytes += len(piece.content) + 1
    if batch:
        yield batch


def read_headers(text: str, file: str) -> dict[str, str]:
    """Read headers, one `Name: value` per line. Raise ConfigurationError that does not contain them."""
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        name, colon, value = line.partition(":")
        fits = colon and name.strip().replace("-", "").isalnum() and line.isascii() and value.strip().isprintable()
        if line.strip() and not fits:
            raise ConfigurationError("is no header; write Name: value", file=file, line=number)
        if line.strip():
            found[name.strip().lower()] = value.strip()
    return found


def _rejected(signal: str, content: bytes) -> int:
    """Return how many items the endpoint rejected (OTLP, "Partial Success"). They are not sent again."""
    try:
        rejected = mapping(mapping(json.loads(content or b"{}")).get("partialSuccess")).get(REJECTED[signal])
        return count(int(rejected) if isinstance(rejected, str) else rejected) or 0
    except (ValueError, RecursionError):
        return 0
