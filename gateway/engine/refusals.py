"""Refusals of requests that a servable admitted or could not admit. Values."""

from __future__ import annotations

from gateway.domain.errors import Fault, RequestError
from gateway.engine.ticket import Ticket


class ModelRefusals:
    """Refusals of one model; callers are asked to wait `retry_after_s`."""

    def __init__(self, model: str, retry_after_s: float) -> None:
        self._model, self._retry_after_s = model, retry_after_s

    def full(self, waiting: int) -> RequestError:
        """Return the refusal of a newcomer at a full queue."""
        return self._overloaded(
            f"model '{self._model}' has {waiting} requests waiting, the most it may; come back later"
        )

    def displaced(self, displaced: Ticket, newcomer: Ticket, policy: str) -> tuple[RequestError, str]:
        """Return the refusal of a request that lost its place to `newcomer`, and the reason for the statistics."""
        if displaced.request.caller != newcomer.request.caller and policy != "oldest":
            words = f"the queue of model '{self._model}' is full, and fewer requests of another caller were served"
            return self._overloaded(f"{words}; try again later"), "share"
        if policy == "latest":
            return self._overloaded("a newer request of the same stream took this one's place"), "superseded"
        words = f"model '{self._model}' has more requests than it may keep waiting; the oldest was dropped"
        return self._overloaded(words), "oldest"

    def threadless(self, error: RuntimeError) -> RequestError:
        """Return the refusal of requests whose run gets no thread."""
        return self._overloaded(f"model '{self._model}' gets no thread for its runs ({error}); come back later")

    def unloaded(self) -> RequestError:
        """Return the refusal of requests to a model that is unloaded."""
        words = f"model '{self._model}' was unloaded"
        return RequestError(Fault.UNAVAILABLE, words, retry_after_s=self._retry_after_s)

    def _overloaded(self, words: str) -> RequestError:
        return RequestError(Fault.OVERLOADED, words, retry_after_s=self._retry_after_s)
