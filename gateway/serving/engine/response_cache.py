"""Answers of one model that are kept, by the content of their requests."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gateway.common.domain.tensor import Array, Tensor
from gateway.serving.domain.infer import InferRequest, InferResponse
from gateway.serving.domain.ports import Sink
from gateway.serving.engine.admission import Form
from gateway.serving.engine.quotas import QuotaUse
from gateway.serving.engine.settings import MIB, CacheSettings
from gateway.serving.engine.split import is_shared
from gateway.serving.engine.target import ModelTarget
from gateway.serving.engine.ticket import Ticket
from gateway.serving.tasks.frame import Frame

ENTRY_BYTES = 2048
"""Bytes of an entry besides its contents: objects, key, form."""
Key = tuple[tuple[str, ...], bytes]
"""Key of an answer: the contents that gave it, and the digest of its request."""


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """Answer, the form of its request, its size, and when it was given (monotonic)."""

    response: InferResponse
    form: Form
    nbytes: int
    at_ns: int


class ResponseCache:
    """Answers of one model: bounded in bytes and age, the least recently used go first."""

    def __init__(self, settings: CacheSettings) -> None:
        self._most_bytes, self._age_ns = settings.mib * MIB, int(settings.age_s * 1e9)
        self._kept = OrderedDict[Key, KeptAnswer]()
        self.nbytes = 0

    def get(self, key: Key, now_ns: int) -> KeptAnswer | None:
        """Return an answer that is not too old, or None."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        if now_ns - kept.at_ns > self._age_ns:
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return kept

    def put(self, key: Key, kept: KeptAnswer) -> None:
        """Keep an answer, unless it alone is too large."""
        if kept.nbytes > self._most_bytes:
            return
        self._drop(key)
        self._kept[key] = kept
        self.nbytes += kept.nbytes
        while self.nbytes > self._most_bytes:
            self._drop(next(iter(self._kept)))

    def keep(self, contents: AbstractSet[tuple[str, ...]]) -> None:
        """Drop the answers of all other contents."""
        for key in [key for key in self._kept if key[0] not in contents]:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        if (kept := self._kept.pop(key, None)) is not None:
            self.nbytes -= kept.nbytes


class CachedTarget:
    """Target of a version whose answers are kept; in everything else it is that version.

    Requests of equal inputs and outputs get the answer that the first one got. Those that come before that answer run.
    """

    def __init__(self, target: ModelTarget, cache: ResponseCache) -> None:
        self._target, self._cache = target, cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def raw_batch(self, _request: InferRequest) -> None:
        """Return None: each request is looked up."""

    def submit(
        self,
        request: InferRequest,
        sink: Sink,
        token: Any,
        account: QuotaUse | None = None,
        frames: Sequence[Frame] = (),
    ) -> Ticket:
        """Implement `Submission.submit`. Raises RequestError."""
        target, now_ns = self._target, time.monotonic_ns()
        late = request.deadline_ns is not None and request.deadline_ns <= now_ns
        if frames or late or request.in_parts or is_shared(request.inputs):  # what is shared may change meanwhile
            return target.submit(request, sink, token, account, frames)
        variant = target.placement.variant
        key = target.contents, _digest(request, variant)
        if (kept := self._cache.get(key, now_ns)) is not None:
            ticket = Ticket(request, kept.form, request.inputs, sink, token, self, now_ns, account)
            asyncio.get_running_loop().call_soon(self._answer, ticket, kept.response)
            return ticket
        keeping = _Keeping(self, sink, key, variant)
        keeping.ticket = ticket = target.submit(request, keeping, token, account)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Implement `TicketOwner.leave`."""
        self._target.statistics.abandoned(time.monotonic_ns() - ticket.queued_ns)

    def store(self, key: Key, variant: str, ticket: Ticket, response: InferResponse) -> None:
        """Keep an answer: a copy, for its caller may keep the arrays.

        Another release or variant than that of its key may have answered, if the request waited: that is not kept.
        """
        now_ns, statistics = time.monotonic_ns(), self._target.statistics
        statistics.cache_miss.add(now_ns - ticket.queued_ns)
        answered: Any = ticket.home
        if (answered.contents, answered.placement.variant) != (key[0], variant):
            return
        outputs = {name: Tensor(each.datatype, _copied(each.array)) for name, each in response.outputs.items()}
        nbytes = ENTRY_BYTES + sum(_nbytes(each.array) for each in outputs.values())
        self._cache.put(key, KeptAnswer(replace(response, outputs=outputs), ticket.form, nbytes, now_ns))

    def _answer(self, ticket: Ticket, response: InferResponse) -> None:
        if ticket.done:
            return
        ticket.end()
        now_ns, statistics = time.monotonic_ns(), self._target.statistics
        statistics.answered((ticket.queued_ns,), now_ns)
        statistics.cache_hit.add(now_ns - ticket.queued_ns)
        ticket.sink.answer(ticket.token, replace(response, id=ticket.request.id, outputs=dict(response.outputs)))
        ticket.sink.flush()


class _Keeping:
    """Sink that keeps the answer before its caller gets it. It equals the caller's, so that a run flushes once."""

    __slots__ = ("_home", "_key", "_sink", "_variant", "ticket")

    def __init__(self, home: CachedTarget, sink: Sink, key: Key, variant: str) -> None:
        self._home, self._sink, self._key, self._variant = home, sink, key, variant
        self.ticket: Ticket | None = None

    def __eq__(self, other: object) -> bool:
        return self._sink == (other._sink if isinstance(other, _Keeping) else other)

    def __hash__(self) -> int:
        return hash(self._sink)

    def part(self, token: Any, response: InferResponse) -> None:
        """Implement `Sink.part`."""
        self._sink.part(token, response)

    def answer(self, token: Any, response: InferResponse) -> None:
        """Implement `Sink.answer`."""
        if (ticket := self.ticket) is not None:
            self.ticket = None  # it holds this sink
            self._home.store(self._key, self._variant, ticket, response)
        self._sink.answer(token, response)

    def refuse(self, token: Any, error: Any) -> None:
        """Implement `Sink.refuse`."""
        self.ticket = None
        self._sink.refuse(token, error)

    def flush(self) -> None:
        """Implement `Sink.flush`."""
        self._sink.flush()


def _digest(request: InferRequest, variant: str) -> bytes:
    """Return the digest of everything on which an answer depends, besides the release."""
    outputs = [(each.name, each.classification) for each in request.outputs]
    digest = hashlib.blake2b(repr((variant, outputs)).encode(), digest_size=16)
    for name, tensor in sorted(request.inputs.items()):
        array = tensor.array
        digest.update(repr((name, tensor.datatype.label, array.shape)).encode())
        if array.dtype.hasobject:
            for item in array.ravel():
                digest.update(len(item).to_bytes(8, "little"))
                digest.update(item if isinstance(item, bytes) else item.encode())
        else:
            digest.update(np.ascontiguousarray(array).data)
    return digest.digest()


def _copied(array: Array) -> Array:
    copy: Array = array.copy()
    copy.flags.writeable = False  # requests share it
    return copy


def _nbytes(array: Array) -> int:
    """Return the bytes of an array, with those of its texts."""
    return array.nbytes + (sum([50 + len(item) for item in array.ravel()]) if array.dtype.hasobject else 0)
