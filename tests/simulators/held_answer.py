"""Inference with large BYTES results whose encoding waits until a test permits it."""

from __future__ import annotations

import threading

import numpy as np

from gateway.common.domain.tensor import Array, Datatype, Tensor
from gateway.serving.domain.infer import InferRequest, InferResponse
from gateway.serving.engine.decode_pool import DecodePool
from gateway.serving.engine.settings import EngineSettings
from tests.simulators.constants import settings_with
from tests.simulators.inference import SimulatedInference

COUNT = 20_000
"""Elements of a large result: more than one encoding step handles."""


class _Held(bytes):
    """Element whose encoding waits for `ready`."""

    ready: threading.Event
    begun: threading.Event

    def __bytes__(self) -> bytes:
        self.begun.set()
        assert self.ready.wait(50)
        return self[:]

    def decode(self, *given: str) -> str:
        return bytes(self).decode(*given)


class HeldAnswers(SimulatedInference):
    """Inference that answers requests with an id "large…" with COUNT elements. Encoding the last one waits for `ready`.

    `begun` is set when it waits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.decoding = DecodePool(settings_with(EngineSettings(), decode_inline_us=0))
        self.ready, self.begun = threading.Event(), threading.Event()
        self.elements: Array = np.full(COUNT, b"ab", object)
        held = self.elements[-1] = _Held(b"end")
        held.ready, held.begun = self.ready, self.begun

    async def infer(self, request: InferRequest) -> InferResponse:
        response = await super().infer(request)
        if request.id.startswith("large"):
            response.outputs = {"y": Tensor(Datatype.BYTES, self.elements)}
        return response


RAW = b"\2\0\0\0ab" * (COUNT - 1) + b"\3\0\0\0end"
"""Content of a large result."""
