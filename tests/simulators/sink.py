"""Sinks of submitted requests for tests, and tickets without a frontend."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gateway.common.domain.errors import RequestError
from gateway.common.domain.tensor import Datatype, Raw, Tensor
from gateway.serving.domain.infer import InferRequest, InferResponse, ResponseForm
from gateway.serving.domain.ports import RawBatch, Submission
from gateway.serving.engine.admission import Form
from gateway.serving.engine.ticket import Ticket


class Recorder:
    """Sink that records calls in order: ("answer", token), ("refuse", token) or ("flush", None).

    Each method raises `defect` if it is set, which violates the interface.
    """

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.answers: dict[Any, InferResponse] = {}
        self.errors: dict[Any, RequestError] = {}
        self.defect: Exception | None = None
        self._changed = asyncio.Event()

    def answer(self, token: Any, response: InferResponse) -> None:
        self._tell("answer", token)
        assert token not in self.answers, "answered twice"
        assert token not in self.errors, "answered after it was refused"
        self.answers[token] = response

    def refuse(self, token: Any, error: RequestError) -> None:
        self._tell("refuse", token)
        assert token not in self.answers, "refused after it was answered"
        assert token not in self.errors, "refused twice"
        self.errors[token] = error

    def flush(self) -> None:
        self._tell("flush", None)

    @property
    def ended(self) -> set[Any]:
        """Completed tokens."""
        return self.answers.keys() | self.errors.keys()

    async def until(self, count: int) -> None:
        """Wait until this many tokens are completed."""
        while len(self.ended) < count:
            self._changed.clear()
            await self._changed.wait()

    def _tell(self, what: str, token: Any) -> None:
        self.told.append((what, token))
        self._changed.set()
        if self.defect is not None:
            raise self.defect


class RawRecorder(Recorder):
    """Sink of raw requests. It records results as arrays, and in `again` the tokens to submit again."""

    def __init__(self, engine: Submission) -> None:
        super().__init__()
        self.again: list[Any] = []
        self.requests: dict[Any, InferRequest] = {}
        self._engine = engine

    def offer(self, batch: RawBatch | None, request: InferRequest, token: Any) -> bool:
        """Add a request that arrived before its deadline to a batch. Return whether it was accepted."""
        self.requests[token] = request
        contents = [tensor.array.tobytes() for tensor in request.inputs.values()]
        came_ns, ends_ns = time.monotonic_ns(), request.deadline_ns
        came_ns = came_ns if ends_ns is None else min(came_ns, ends_ns - 1)
        return batch is not None and batch.add(self, token, contents, came_ns, ends_ns)

    def ask(self, request: InferRequest, token: Any) -> bool:
        """Add a request to the batch of its form, or submit it. Return whether it was accepted as bytes."""
        if self.offer(self._engine.raw_batch(request), request, token):
            return True
        self._submit(request, token)
        return False

    def answer_raw(self, token: Any, form: ResponseForm, contents: Sequence[Raw]) -> None:
        outputs = {
            name: Tensor(datatype, np.frombuffer(content, datatype.dtype).reshape(shape))
            for (name, datatype, shape), content in zip(form.outputs, contents, strict=True)
        }
        self.answer(token, InferResponse(form.model, form.version, "", outputs))

    def submit_again(self, token: Any) -> None:
        self.again.append(token)
        self._tell("again", token)
        self._submit(self.requests[token], token)

    def _submit(self, request: InferRequest, token: Any) -> None:
        try:
            self._engine.submit(request, self, token)
        except RequestError as error:
            self.refuse(token, error)


class Nowhere:
    """Ticket owner that records the tickets that leave it."""

    def __init__(self) -> None:
        self.left: list[Ticket] = []

    def leave(self, ticket: Ticket) -> None:
        self.left.append(ticket)


def ticket(rows: int = 1, width: int = 1, queued_ns: int = 0, **changes: Any) -> Ticket:
    """Return an admitted ticket with `rows` rows of `width` columns; `changes` are fields of the request."""
    tensor = Tensor(Datatype.FP32, np.zeros((rows, width), np.float32))
    request = InferRequest("m", {"x": tensor}, **changes)
    form = Form(rows, (("x", Datatype.FP32, (width,)),), (), plain=True, finite=(), encoded=())
    return Ticket(request, form, request.inputs, Recorder(), None, Nowhere(), queued_ns)
