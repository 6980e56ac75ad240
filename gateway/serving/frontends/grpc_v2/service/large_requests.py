"""Reader of large ModelInferRequests: checked against the model that they name before their contents are decoded."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.common.domain.errors import RequestError
from gateway.common.domain.tensor import CONVERTED, Raw, Steps, Tensor, datatype_named, decoded_bytes, element_count
from gateway.serving.domain.infer import InferRequest
from gateway.serving.domain.ports import Inference
from gateway.serving.frontends.grpc_v2.calls import CallInfo, parse_message
from gateway.serving.frontends.grpc_v2.codec.decode import Parts, request_steps
from gateway.serving.frontends.grpc_v2.codec.outline import HEADER_BYTES, model_named, outline_steps
from gateway.serving.frontends.grpc_v2.codec.patterns import WHOLE_BYTES
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.service.message_memory import MemoryShare, too_large
from gateway.serving.frontends.regions import Regions

STEP_INPUTS = 64


@dataclass(frozen=True, slots=True)
class OpenedRequest:
    """A message that was parsed without its contents, which are in `parts`.

    `declared`: its tensors' names, datatypes and shapes, each with the memory of one element. None for a small message,
    which costs less than the check. `raw`: the message. `decoded_bytes`: memory that decoding allocates. `refusal`:
    what is wrong with its tensors.
    """

    sent: Any
    parts: Parts
    raw: Raw
    declared: InferRequest | None = None
    decoded_bytes: int = 0
    refusal: RequestError | None = None


class LargeRequestReader:
    """Reader of one service. The parameter `most_bytes` is the largest size of any message."""

    def __init__(self, inference: Inference, regions: Regions | None, most_bytes: int) -> None:
        self._inference, self._regions, self._most_bytes = inference, regions, most_bytes

    def most_bytes(self, beginning: Raw) -> int:
        """Return the size that a message with this beginning may have. Raises the model's NOT_FOUND, UNAVAILABLE."""
        model = model_named(beginning)
        if model is None:
            return self._most_bytes
        return min(self._inference.sizes(model).binary_bytes or self._most_bytes, self._most_bytes)

    async def open(self, raw: Raw, caller: str) -> OpenedRequest:
        """Parse a message without its contents. Raises RequestError INVALID, TOO_LARGE, if it has no readable id."""
        if len(raw) <= WHOLE_BYTES:
            small = bytes(raw)
            sent = parse_message(message("inference.ModelInferRequest"), small)
            return OpenedRequest(sent, Parts(sent.raw_input_contents, {}), small)
        return await self._inference.decoding.run(caller, _opening(memoryview(raw)))

    async def read(self, opened: OpenedRequest, call: CallInfo, now_ns: int, share: MemoryShare) -> InferRequest:
        """Decode the contents of a message, if its model can accept them. `share` counts the memory.

        Raises its refusal, and as `decode_request`, `Inference.check` and `MemoryShare.grow` do.
        """
        if opened.refusal is not None:
            raise opened.refusal
        if opened.declared is not None:
            most = self._inference.sizes(opened.declared.model).binary_bytes
            if most is not None and len(opened.raw) > most:
                raise too_large(len(opened.raw), most, of_model=True)
            self._inference.check(opened.declared)
            share.grow(opened.decoded_bytes)
        with closing(request_steps(opened.sent, opened.parts, call, now_ns, self._regions)) as steps:
            return await self._inference.decoding.run(call.caller, steps)


def _opening(raw: memoryview) -> Steps[OpenedRequest]:
    outline = yield from outline_steps(raw, HEADER_BYTES)
    yield
    sent = parse_message(message("inference.ModelInferRequest"), outline.header)
    raws = [raw[start:end] for start, end in outline.raws]
    parts = Parts(raws, {index: raw[start:end] for index, (start, end) in outline.contents.items()})
    inputs: dict[str, Tensor] = {}
    size = 0
    for index, each in enumerate(sent.inputs):
        if index % STEP_INPUTS == 0:
            yield
        try:
            tensor = inputs[each.name] = _declared(each)
        except RequestError as error:
            return OpenedRequest(sent, parts, raw, refusal=error.with_traceback(None))
        if tensor.datatype in CONVERTED or not raws:
            size += decoded_bytes(tensor.datatype, tensor.array.size)
    declared = InferRequest(sent.model_name, inputs, sent.model_version)
    return OpenedRequest(sent, parts, raw, declared, size)


def _declared(sent: Any) -> Tensor:
    """Return a tensor of the declared datatype and shape with memory of one element. Raises RequestError INVALID."""
    datatype = datatype_named(sent.datatype, sent.name)
    element_count(sent.shape, sent.name)
    return Tensor(datatype, np.broadcast_to(np.zeros((), datatype.dtype), tuple(sent.shape)))
