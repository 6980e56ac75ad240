"""What of a ModelInferRequest repeats: all but its tensors' bytes and its id. Remembered, the next such request is not
parsed: its tensors are arrays over its own bytes, or where they were in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gateway.domain.infer import InferRequest, RequestedOutput
from gateway.domain.parameters import read_parameters
from gateway.domain.tensor import CONVERTED, Array, Datatype, Tensor, datatype_named, decode_raw
from gateway.frontends.grpc_v2.calls import CallInfo
from gateway.frontends.grpc_v2.decode import read_values
from gateway.frontends.grpc_v2.wire import Layout
from gateway.frontends.placement import OutputPlace, Place, read_place
from gateway.frontends.regions import Regions

Raw = bytes | memoryview


@dataclass(slots=True)
class Inline:
    """A tensor in the message, from byte `start` to `end`. `plain`: its bytes are what lies in memory."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int
    end: int
    plain: bool

    def tensor(self, raw: Raw, lent: bool) -> Tensor:
        """The tensor of a message. `lent`: the message's memory is somebody else's afterwards."""
        if not self.plain:
            content = bytes(raw[self.start : self.end])
            return Tensor(self.datatype, decode_raw(self.datatype, self.shape, content, self.name))
        array: Array = np.ndarray(self.shape, self.dtype, raw, self.start)
        return Tensor(self.datatype, array.copy() if lent or not array.flags.aligned else array)


@dataclass(slots=True)
class Placed:
    """A tensor in shared memory."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    place: Place

    def tensor(self, caller: str, regions: Regions) -> Tensor:
        """The tensor as it is now. Raises as `Regions.raw` does."""
        raw = regions.raw(caller, self.place, self.datatype)
        return Tensor(self.datatype, decode_raw(self.datatype, self.shape, raw, self.name))


@dataclass(slots=True)
class Pattern:
    """`like` is a request without tensors, id and caller; `destinations` are where its outputs go, empty where all
    travel. Nothing here holds a caller's memory."""

    like: InferRequest
    inline: tuple[Inline, ...]
    placed: tuple[Placed, ...]
    destinations: tuple[Place | None, ...]
    timeout_us: int

    def request(self, raw: Raw, ident: str, call: CallInfo, now_ns: int, *, lent: bool) -> InferRequest:
        """The request of a message that fits, but for what is in shared memory."""
        inline = self.inline
        if len(inline) == 1:
            only = inline[0]
            inputs = {only.name: only.tensor(raw, lent)}
        else:
            inputs = {each.name: each.tensor(raw, lent) for each in inline}
        ends_ns = call.deadline_ns
        if self.timeout_us:
            own_ns = now_ns + self.timeout_us * 1000
            ends_ns = own_ns if ends_ns is None else min(own_ns, ends_ns)
        like = self.like
        return InferRequest(
            like.model,
            inputs,
            like.version,
            ident,
            like.outputs,
            ends_ns,
            like.priority,
            call.caller,
            like.stream,
            like.ignored_parameters,
        )

    def add_shared(self, request: InferRequest, regions: Regions) -> None:
        """Complete a request by what its caller has in shared memory. Raises as `Regions.raw` and `destination` do."""
        caller = request.caller
        for each in self.placed:
            request.inputs[each.name] = each.tensor(caller, regions)
        if self.destinations:
            pairs = zip(request.outputs, self.destinations, strict=True)
            request.outputs = tuple(_destined(output, place, caller, regions) for output, place in pairs)


def pattern_of(sent: Any, request: InferRequest, layout: Layout) -> Pattern | None:
    """What to remember of the message `sent` that meant `request`; None where its tensors are not raw, or empty."""
    inline: list[Inline] = []
    placed: list[Placed] = []
    spans = iter(layout.raws)
    for each in sent.inputs:
        datatype, shape = datatype_named(each.datatype, each.name), tuple(each.shape)
        place = read_place(read_values(each.parameters, each.name), each.name)
        if place is not None:
            placed.append(Placed(each.name, datatype, shape, place))
            continue
        start, end = next(spans, (0, 0))
        if start == end:
            return None
        plain = datatype not in CONVERTED
        inline.append(Inline(each.name, datatype, shape, datatype.dtype, start, end, plain))
    said = read_parameters(read_values(sent.parameters, "request"))
    places = tuple(_places(request))
    outputs = tuple(replace(each, destination=None) for each in request.outputs)
    like = replace(request, inputs={}, id="", caller="", deadline_ns=None, outputs=outputs)
    return Pattern(like, tuple(inline), tuple(placed), places if any(places) else (), said.timeout_us)


def _places(request: InferRequest) -> Iterator[Place | None]:
    for output in request.outputs:
        yield output.destination.place if isinstance(output.destination, OutputPlace) else None


def _destined(output: RequestedOutput, place: Place | None, caller: str, regions: Regions) -> RequestedOutput:
    if place is None:
        return output
    return replace(output, destination=regions.destination(caller, place, output.name))
