"""Requests with encoded images: decoded by a thread pool before they enter the queue, within the queue's bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Tensor
from gateway.serving.engine.queue import Queue
from gateway.serving.engine.settings import EngineSettings
from gateway.serving.engine.threads import Threads
from gateway.serving.engine.ticket import Ticket
from gateway.serving.tasks.frame import Frame

Decoded = tuple[dict[str, Tensor], tuple[Frame, ...], int]
"""Decoded inputs, the places of the images in them, one for each row, and how many images were turned upright."""


class ImageDecoding:
    """Tickets of one servable whose images are not decoded yet. They hold places in its queue."""

    def __init__(
        self,
        decoders: Threads,
        settings: EngineSettings,
        queue: Queue,
        done: Callable[[Ticket, Future[Decoded]], None],
    ) -> None:
        self._decoders, self._settings, self._queue, self._done = decoders, settings, queue, done
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[Ticket, Future[Decoded]] = {}
        self.none = asyncio.Event()
        self.none.set()

    def begin(self, ticket: Ticket) -> Ticket | None:
        """Decode a ticket's images. Return the evicted ticket as `Queue.offer` does.

        `done` is called on the event loop. With the policy "latest", older frames of the same stream that are not
        decoded yet are evicted, too. Raises RequestError OVERLOADED if no thread can start.
        """
        displaced, sent = None, ticket.request
        if self._queue.policy == "latest":
            waiting = (each for each in self._under_way if each.request.caller == sent.caller)
            displaced = next((each for each in waiting if each.request.stream == sent.stream), None)
        if displaced is None and self._queue.full:
            displaced = next(iter(self._under_way), None) if self._queue.policy == "oldest" else ticket
        if displaced is ticket or (displaced is None and self._queue.full):
            return ticket
        self._submit(ticket)
        if displaced is not None:
            self.forget(displaced)
        return displaced

    def forget(self, ticket: Ticket) -> bool:
        """Free a ticket's place and do not start its decoding. Return False if it has no place here."""
        future = self._under_way.get(ticket)
        if future is None:
            return False
        self._end(ticket)
        future.cancel()
        return True

    def abandon(self) -> list[Ticket]:
        """Forget all tickets. Return them."""
        left = list(self._under_way)
        for ticket in left:
            self.forget(ticket)
        return left

    def _submit(self, ticket: Ticket) -> None:
        try:
            future = self._decoders.submit_for(
                ticket.request.caller, _decoded, ticket.inputs, ticket.form.encoded, self._settings
            )
        except RuntimeError as error:
            words = f"no thread decodes images now ({error}); come back later"
            raise RequestError(Fault.OVERLOADED, words, retry_after_s=self._settings.retry_after_s) from error
        self._under_way[ticket] = future
        self._queue.reserved += 1
        self.none.clear()
        future.add_done_callback(lambda decoded: self._loop.call_soon_threadsafe(self._finished, ticket, decoded))

    def _finished(self, ticket: Ticket, decoded: Future[Decoded]) -> None:
        if ticket in self._under_way:
            self._done(ticket, decoded)
            self._end(ticket)

    def _end(self, ticket: Ticket) -> None:
        del self._under_way[ticket]
        self._queue.reserved -= 1
        if not self._under_way:
            self.none.set()


def _decoded(inputs: Mapping[str, Tensor], encoded: Sequence[TensorSpec], settings: EngineSettings) -> Decoded:
    """Decode on a thread, which imports what that takes."""
    from gateway.serving.engine.images import decode_inputs

    return decode_inputs(inputs, encoded, settings)
