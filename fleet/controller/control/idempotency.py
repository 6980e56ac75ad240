"""Requests that are carried out once, however often they arrive (draft-ietf-httpapi-idempotency-key-header).

What a request does and the answer to it are one transaction. A controller that is killed has done both or neither, on
any replica. A refused request does nothing and leaves no answer: it may be sent again with the same key. Stored answers
are encrypted by the caller's secret: AES-256-GCM with a key of HKDF-SHA256 (RFC 5869).
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fleet.controller.control.settings import RequestSettings
from fleet.controller.database import idempotency
from fleet.controller.database.engine import Connection, Database
from fleet.controller.database.idempotency import Key, StoredAnswer
from fleet.controller.problems import ProblemError
from fleet.problem_types import IN_PROGRESS, KEY_REUSED
from gateway.common.domain.errors import Fault, RequestError

SALT_BYTES, NONCE_BYTES, KEY_BYTES = 32, 12, 32
PURPOSE = b"edge-fleet: answer to an Idempotency-Key"


def seal(plain: bytes, secret: str, about: str) -> bytes:
    """Encrypt `plain`. `secret` has at least 128 random bits; `about` is bound to the result and not stored in it."""
    salt, nonce = secrets.token_bytes(SALT_BYTES), secrets.token_bytes(NONCE_BYTES)
    return salt + nonce + _cipher(secret, salt).encrypt(nonce, plain, about.encode())


def unseal(sealed: bytes, secret: str, about: str) -> bytes:
    """Decrypt what `seal` returned. Raise RequestError INTERNAL if a byte or `about` differs."""
    salt, nonce, rest = sealed[:SALT_BYTES], sealed[SALT_BYTES:][:NONCE_BYTES], sealed[SALT_BYTES + NONCE_BYTES :]
    try:
        return _cipher(secret, salt).decrypt(nonce, rest, about.encode())
    except (InvalidTag, ValueError):
        problem = "the stored answer to this Idempotency-Key cannot be read; use a new key after checking what was done"
        raise RequestError(Fault.INTERNAL, problem) from None


def _cipher(secret: str, salt: bytes) -> AESGCM:
    return AESGCM(HKDF(hashes.SHA256(), KEY_BYTES, salt, PURPOSE).derive(secret.encode()))


AGAIN_S = 1.0
"""Retry-After in seconds for a caller whose first request has not ended."""


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request with a key. `request`: SHA-256 (hex) of method, path and body; `secret`: the caller's API token."""

    key: Key
    request: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeyedAnswer:
    """Status and body of an answer. `repeated`: it was given before."""

    status: int
    body: bytes = field(repr=False)
    repeated: bool = False


class _AnsweredError(Exception):
    """Raised if another replica answered in the meantime."""

    def __init__(self, kept: StoredAnswer) -> None:
        super().__init__()
        self.kept = kept


class KeyedAnswers:
    """Answers to idempotency keys. One per process; any thread may call it."""

    def __init__(self, database: Database, settings: RequestSettings) -> None:
        self._database, self._settings = database, settings
        self._lock = threading.Lock()
        self._inside: set[Key] = set()

    def once(self, asked: KeyedRequest, work: Callable[[], KeyedAnswer], now: datetime) -> KeyedAnswer:
        """Return what `work` answers, or what it answered the first time.

        All that `work` writes is written together with its answer. Raise ProblemError 422 for another request with this
        key, 409 while the first is in progress, AwayError, and what `work` raises.
        """
        with self._alone(asked.key):
            with self._database.glance() as connection:
                kept = idempotency.find(connection, asked.key)
            if kept is not None:
                return _again(asked, kept)
            try:
                return self._first(asked, work, now)
            except _AnsweredError as error:
                return _again(asked, error.kept)

    def _first(self, asked: KeyedRequest, work: Callable[[], KeyedAnswer], now: datetime) -> KeyedAnswer:
        def claim(connection: Connection) -> None:
            if not idempotency.claim(connection, asked.key):
                raise _in_progress()
            if kept := idempotency.find(connection, asked.key):
                raise _AnsweredError(kept)

        with self._database.unit(claim) as unit:
            answer = work()
            if unit.connection is not None:  # what wrote nothing may be asked again
                kept = StoredAnswer(
                    asked.request,
                    seal(json.dumps(answer.status).encode() + b"\n" + answer.body, asked.secret, asked.request),
                )
                limit_rows = self._settings.idempotency_keys_per_caller
                idempotency.add(unit.connection, asked.key, kept, now, limit_rows)
        return answer

    @contextmanager
    def _alone(self, key: Key) -> Iterator[None]:
        """Hold the key in this process; SQLite would let a second request wait, and answer it then."""
        with self._lock:
            if key in self._inside:
                raise _in_progress()
            self._inside.add(key)
        try:
            yield
        finally:
            with self._lock:
                self._inside.discard(key)


def _again(asked: KeyedRequest, kept: StoredAnswer) -> KeyedAnswer:
    if kept.request != asked.request:
        problem = "this Idempotency-Key was used with another method, path or body; send a new request with a new key"
        raise ProblemError(KEY_REUSED.status, problem)
    status, _, body = unseal(kept.answer, asked.secret, asked.request).partition(b"\n")
    return KeyedAnswer(int(status), body, repeated=True)


def _in_progress() -> ProblemError:
    problem = "the first request with this Idempotency-Key has not ended; send it again later"
    return ProblemError(IN_PROGRESS.status, problem, retry_after_s=AGAIN_S, kind=IN_PROGRESS)
