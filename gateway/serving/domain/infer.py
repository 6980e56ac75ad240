"""Inference request and its answer, in the form that all frontends use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.common.domain.tensor import Datatype, Tensor, Tensors

Parameter = bool | int | float | str


class Destination(Protocol):
    """Destination of an output that is not sent in the answer: a place in the caller's shared memory."""

    def put(self, raw: bytes | memoryview) -> Mapping[str, Parameter]:
        """Write the bytes, and return the parameters that state their place. Raises RequestError if they do not fit."""


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """Output that the caller requests; `classification` > 0 requests its k best as BYTES "%f:idx[:label]" (Triton)."""

    name: str
    classification: int = 0
    destination: Destination | None = None


START, END, OPENS = 1, 2, 4
"""Flags of a request's place in its sequence. OPENS: it begins one if there is none (messages of sensors)."""


@dataclass(frozen=True, slots=True)
class SequenceState:
    """State of a sequence, by input. `owner`: what may go on with it; for another model, or version, it is none."""

    owner: tuple[str, ...] = ()
    tensors: Tensors = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the arrays, with about 200 for each array object."""
        return sum(200 + array.nbytes for array in self.tensors.values())


@dataclass(slots=True)
class InferRequest:
    """Inference request. `inputs` have the manifest's names; `version` "" means the policy's default.

    `deadline_ns` is on the monotonic clock (None: none). `priority` 1 is highest, 0 the model's default. Empty
    `outputs` mean all of them. `caller`: the first available of token's name, certificate, peer uid and address.
    `stream` names the sequence that a request belongs to ("": the caller's only one), for queues that keep the latest
    and for steps with state. `arrived_ns`: its arrival, on the monotonic clock, for these (0: when it is submitted).
    `place`: START, END, OPENS, for a model with sequences. `state`: that of its sequence, if a pipeline keeps it.
    `in_parts`: the caller wants outputs as soon as they are there, if the model's session gives them in parts.
    `whole_last`: its last answer repeats the parts, for a caller that may miss some.
    """

    model: str
    inputs: dict[str, Tensor]
    version: str = ""
    id: str = ""
    outputs: tuple[RequestedOutput, ...] = ()
    deadline_ns: int | None = None
    priority: int = 0
    caller: str = ""
    stream: str = ""
    ignored_parameters: int = 0
    arrived_ns: int = 0
    place: int = 0
    state: SequenceState | None = None
    in_parts: bool = False
    whole_last: bool = False


@dataclass(slots=True)
class InferResponse:
    """Inference response. `outputs` are in the requested order (or the manifest's); the caller may keep the arrays.

    `state`: the next one of a sequence, for a request that had one.
    """

    model: str
    version: str
    id: str
    outputs: dict[str, Tensor]
    variant: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    state: SequenceState | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ResponseForm:
    """Properties of responses that differ in their id and the contents of their outputs only. Compared by identity.

    `outputs`: name, datatype and shape of each, in the order in which they are sent.
    """

    model: str
    version: str
    outputs: tuple[tuple[str, Datatype, tuple[int, ...]], ...]
    variant: str = ""
