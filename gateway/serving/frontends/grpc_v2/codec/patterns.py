"""Patterns of ModelInferRequests: all but the bytes of their tensors and their id.

A request that fits a remembered pattern is not parsed. Its tensors are arrays over its own bytes, or over its places in
shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gateway.common.domain.tensor import CONVERTED, RANK_LIMIT, Array, Datatype, Raw, Tensor, datatype_named, decode_raw
from gateway.serving.domain.infer import InferRequest, RequestedOutput
from gateway.serving.domain.parameters import deadline_ns, read_parameters
from gateway.serving.domain.ports import RawBatch
from gateway.serving.frontends.grpc_v2.calls import CallInfo
from gateway.serving.frontends.grpc_v2.codec.decode import read_values, sooner
from gateway.serving.frontends.grpc_v2.codec.protobuf import RequestLayout, cutter
from gateway.serving.frontends.placement import OutputPlace, RegionSpan, read_place
from gateway.serving.frontends.regions import Regions

WHOLE_BYTES = 16 * 1024
"""Largest message that is parsed unchanged, with contents converted on the event loop.

For messages of this size, protobuf took at most 0.41 ms (8,192 empty inputs), and BYTES tensors at most 1.3 ms.
"""
COPIED_BYTES = 1024 * 1024
"""Largest message that is parsed unchanged if all but 4 KiB of it is raw contents: two copies, of 0.1 ms each."""
CONVERTED_ELEMENTS = {"BYTES": 4096, "BF16": 131_072, "BOOL": 131_072}
"""Most elements that are converted on the event loop: 1.3 ms of BYTES, 0.7 ms of the others."""
NONE_SHARED: dict[str, Raw] = {}
"""Inputs in shared memory of a request that has none."""


@dataclass(slots=True)
class InlineInput:
    """A tensor in the message, from byte `start` to `end`. `plain`: its bytes are those of the array in memory."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    start: int
    end: int
    plain: bool

    def tensor(self, raw: Raw, lent: bool) -> Tensor:
        """Return the tensor of a message. `lent`: the message's memory is reused afterwards."""
        if not self.plain:
            content = bytes(raw[self.start : self.end])
            return Tensor(self.datatype, decode_raw(self.datatype, self.shape, content, self.name))
        array: Array = np.ndarray(self.shape, self.datatype.dtype, raw, self.start)
        return Tensor(self.datatype, array.copy() if lent or not array.flags.aligned else array)


@dataclass(slots=True)
class SharedInput:
    """A tensor in shared memory."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    place: RegionSpan
    regions: Regions

    def source(self, caller: str) -> Callable[[], Raw]:
        """Return the function that reads its bytes. Raises as `Regions.source` does."""
        return self.regions.source(caller, self.place, self.datatype)

    def tensor(self, raw: Raw, _lent: bool) -> Tensor:
        """Return the tensor that its bytes hold."""
        return Tensor(self.datatype, decode_raw(self.datatype, self.shape, raw, self.name))


@dataclass(slots=True)
class SharedOutput:
    """An output that is written to the caller's shared memory."""

    name: str
    place: RegionSpan
    regions: Regions

    def destined(self, caller: str) -> RequestedOutput:
        """Return the output with its destination as it is now. Raises as `Regions.destination` does."""
        return RequestedOutput(self.name, destination=self.regions.destination(caller, self.place, self.name))


@dataclass(slots=True)
class Pattern:
    """Pattern of a request. `like` is the request without tensors, id and caller.

    `inputs` are in its order; `outputs` is empty if all outputs are sent in the reply. `total`: bytes of the message.
    `spans`: contents in the message (empty for those in shared memory); `cut` returns those of a short one. `batches`:
    such requests may be collected as bytes, in the engine's `batch` if there is one. A pattern holds no caller's
    memory. Shared memory comes before contents, as in `decode_request`.
    """

    like: InferRequest
    inputs: tuple[InlineInput | SharedInput, ...]
    outputs: tuple[RequestedOutput | SharedOutput, ...]
    timeout_us: int
    total: int
    placed: tuple[SharedInput, ...] = field(init=False)
    spans: tuple[slice, ...] = field(init=False)
    cut: Callable[[bytes], Sequence[Raw]] = field(init=False)
    batches: bool = field(init=False)
    batch: RawBatch | None = None

    def __post_init__(self) -> None:
        """Divide the inputs into those in shared memory and those in the message."""
        self.placed = tuple(each for each in self.inputs if isinstance(each, SharedInput))
        self.spans = tuple(
            slice(each.start, each.end) if isinstance(each, InlineInput) else slice(0) for each in self.inputs
        )
        inline = [each for each in self.inputs if isinstance(each, InlineInput)]
        self.cut = cutter(self.total, [(each.start, each.end) for each in inline]).unpack
        plain = all(each.plain for each in inline) and not any(each.datatype in CONVERTED for each in self.placed)
        self.batches = plain and not (self.outputs or self.timeout_us or self.like.ignored_parameters)

    def contents(self, raw: Raw, caller: str) -> Sequence[Raw]:
        """Return the inputs' contents in a message that fits, for `batch`. Raises as `Regions.source` does."""
        if self.placed:
            shared = [each.source(caller) if isinstance(each, SharedInput) else None for each in self.inputs]
            return _Contents(raw, self.spans, shared)
        return self.cut(raw) if type(raw) is bytes else [raw[span] for span in self.spans]

    def request(self, raw: Raw, ident: str, call: CallInfo, now_ns: int, *, lent: bool) -> InferRequest:
        """Return the request of a message that fits. Raises as `decode_request` does."""
        caller, like, sources = call.caller, self.like, self.inputs
        shared = {each.name: each.source(caller)() for each in self.placed} if self.placed else NONE_SHARED
        outputs = like.outputs
        if self.outputs:
            outputs = tuple(each.destined(caller) if isinstance(each, SharedOutput) else each for each in self.outputs)
        if len(sources) == 1:
            only = sources[0]
            inputs = {only.name: only.tensor(shared.get(only.name, raw), lent)}
        else:
            inputs = {each.name: each.tensor(shared.get(each.name, raw), lent) for each in sources}
        ends_ns = call.deadline_ns
        if self.timeout_us:
            ends_ns = sooner(ends_ns, deadline_ns(now_ns, timeout_us=self.timeout_us))
        return InferRequest(
            like.model,
            inputs,
            like.version,
            ident,
            outputs,
            ends_ns,
            like.priority,
            caller,
            like.stream,
            like.ignored_parameters,
            0,
            like.place,
        )


class _Contents(Sequence[Raw]):
    """Contents of a request that has inputs in shared memory: these are read when they are asked for."""

    __slots__ = ("_raw", "_shared", "_spans")

    def __init__(self, raw: Raw, spans: Sequence[slice], shared: Sequence[Callable[[], Raw] | None]) -> None:
        self._raw, self._spans, self._shared = raw, spans, shared

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, index: Any) -> Any:
        read = self._shared[index]
        return self._raw[self._spans[index]] if read is None else read()


def pattern_of(sent: Any, request: InferRequest, layout: RequestLayout, regions: Regions | None) -> Pattern | None:
    """Return the pattern of the message `sent`, parsed as `request`; None if its tensors are not raw, or empty."""
    inputs: list[InlineInput | SharedInput] = []
    spans = iter(layout.raws)
    for index, each in enumerate(sent.inputs):
        datatype, shape = datatype_named(each.datatype, each.name), tuple(each.shape)
        place = read_place(read_values(each.parameters, each.name), each.name)
        if place is not None and regions is not None:
            if datatype in CONVERTED and (place.byte_size > COPIED_BYTES or largely_converted(each)):
                return None
            inputs.append(SharedInput(each.name, datatype, shape, place, regions))
            continue
        plain = datatype not in CONVERTED
        start, end = layout.typed.get(index) or next(spans, (0, 0))
        if start == end or (not plain and (end - start > COPIED_BYTES or largely_converted(each))):
            return None
        inputs.append(InlineInput(each.name, datatype, shape, start, end, plain))
    parameters = read_parameters(read_values(sent.parameters, "request"))
    outputs = tuple(_output(each, regions) for each in request.outputs)
    travel = tuple(each for each in outputs if isinstance(each, RequestedOutput))
    like = replace(request, inputs={}, id="", caller="", deadline_ns=None, outputs=travel)
    travels = () if len(travel) == len(outputs) else outputs
    return Pattern(like, tuple(inputs), travels, parameters.timeout_us, layout.total)


def largely_converted(sent: Any) -> bool:
    """Return True if an input's content takes long to convert."""
    limit, shape = CONVERTED_ELEMENTS.get(sent.datatype), sent.shape
    return limit is not None and len(shape) <= RANK_LIMIT and math.prod(shape) > limit


def _output(asked: RequestedOutput, regions: Regions | None) -> RequestedOutput | SharedOutput:
    if isinstance(asked.destination, OutputPlace) and regions is not None:
        return SharedOutput(asked.name, asked.destination.place, regions)
    return asked
