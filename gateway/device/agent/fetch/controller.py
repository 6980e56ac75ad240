"""Client of the fleet's controller: one bounded request at a time, without retries and redirects.

Only the form of an answer is checked here. Callers decide what an answer may change.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from urllib3 import Timeout
from urllib3.exceptions import HTTPError

from gateway.common.domain.retry import retry_after_s
from gateway.common.transfer.connection import ConnectionPool, HungUpError, RequestState
from gateway.common.transfer.pace import TransferPace
from gateway.common.transfer.source import FetchError
from gateway.device.agent.answers import plain

ANSWER_LIMIT_BYTES = 1_048_576
"""Limit of one answer. An enrolment's answer holds a signed root."""
UNBELIEVED = "; say who signed its certificate: edge-agent enrol … --ca FILE"
UNWELCOME = frozenset({401, 403})
"""Status codes of refused authentication or authorization."""


class ControllerClient:
    """The controller at `base_url`. `connections` may be shared; `now_ns` is the monotonic clock."""

    def __init__(
        self,
        base_url: str,
        connections: ConnectionPool,
        deadline_s: float,
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._base = base_url.rstrip("/")
        self._connections, self._settings = connections, connections.settings
        self._deadline_s, self._now_ns = deadline_s, now_ns
        self._line = RequestState(self._settings, now_ns)

    def send(self, method: str, path: str, body: bytes, content_type: str, encoding: str = "") -> dict[str, Any]:
        """Return the answer's JSON object; an empty one if the answer has no body.

        Raise FetchError, with the controller's reason if it refuses; ConfigurationError if certificates cannot be read.
        """
        headers = {"Content-Type": content_type, "Accept": "application/json", "User-Agent": self._settings.user_agent}
        headers |= {"Content-Encoding": encoding} if encoding else {}
        where = f"{self._base}{path}"
        try:
            status, retry_after_s, content = self._exchange(method, where, body, headers)
        except (HTTPError, HungUpError, OSError) as error:
            remedy = UNBELIEVED if "CERTIFICATE_VERIFY_FAILED" in str(error) else ""
            raise FetchError(
                f"{where} does not answer: {type(error).__name__}: {error!s:.300}{remedy} (EG-804)"
            ) from error
        document = _document(content)
        if 200 <= status < 300 and document is not None:
            return document
        detail = plain((document or {}).get("detail") or f"HTTP status {status}")
        raise FetchError(
            f"{where} answered {status}: {detail}",
            status=status,
            final=status < 500,
            retry_after_s=retry_after_s,
            kind=str((document or {}).get("type", "")),
        )

    def _exchange(self, method: str, url: str, body: bytes, headers: dict[str, str]) -> tuple[int, float, bytes]:
        self._line.patience = TransferPace(self._settings, self._deadline_s, self._now_ns())
        connect_s = min(self._settings.connect_timeout_s, self._deadline_s)
        timeout = Timeout(connect=connect_s, read=None)  # the first bounds sending, `Patience` bounds reading
        answer = self._connections.ask(self._line, self._base, method, url, body=body, headers=headers, timeout=timeout)
        try:
            content = bytearray()
            while piece := answer.read1(self._settings.piece_bytes, decode_content=False):
                content += piece
                if len(content) > ANSWER_LIMIT_BYTES:
                    raise HungUpError(f"its answer has more than {ANSWER_LIMIT_BYTES} bytes")
            after_s = retry_after_s(answer.headers.get("Retry-After", ""), datetime.now(timezone.utc))
            return answer.status, after_s, bytes(content)
        finally:
            answer.close() if answer.length_remaining else answer.release_conn()


def _document(content: bytes) -> dict[str, Any] | None:
    """Return the JSON object, or None if `content` is not one."""
    try:
        found = json.loads(content) if content else {}
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
