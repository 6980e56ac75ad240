"""A frontend's end of submitted requests, and tickets without a frontend."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from gateway.domain.errors import RequestError
from gateway.domain.infer import InferRequest, InferResponse
from gateway.domain.tensor import Datatype, Tensor
from gateway.engine.admission import Form
from gateway.engine.ticket import Ticket


class Recorder:
    """A sink that keeps what it is told, in order: ("answer", token), ("refuse", token) or ("flush", None).

    `defect`, where set, is raised by each of its methods, against the rules.
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
        """Tokens that came back."""
        return self.answers.keys() | self.errors.keys()

    async def until(self, count: int) -> None:
        """Wait until so many tokens came back."""
        while len(self.ended) < count:
            self._changed.clear()
            await self._changed.wait()

    def _tell(self, what: str, token: Any) -> None:
        self.told.append((what, token))
        self._changed.set()
        if self.defect is not None:
            raise self.defect


class Nowhere:
    """A home that keeps those who leave it."""

    def __init__(self) -> None:
        self.left: list[Ticket] = []

    def leave(self, ticket: Ticket) -> None:
        self.left.append(ticket)


def ticket(rows: int = 1, width: int = 1, queued_ns: int = 0, **changes: Any) -> Ticket:
    """`rows` rows of `width` columns, admitted; `changes` are fields of the request."""
    tensor = Tensor(Datatype.FP32, np.zeros((rows, width), np.float32))
    request = InferRequest("m", {"x": tensor}, **changes)
    form = Form(rows, (("x", Datatype.FP32, (width,)),), (), plain=True, finite=(), encoded=())
    return Ticket(request, form, request.inputs, Recorder(), None, Nowhere(), queued_ns)
