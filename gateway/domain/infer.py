"""One inference request and its answer, as every frontend builds and reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.domain.tensor import Datatype, Tensor

Parameter = bool | int | float | str


class Destination(Protocol):
    """Takes the bytes of an output that does not travel in the answer: a place in the caller's shared memory."""

    def put(self, raw: bytes) -> Mapping[str, Parameter]:
        """Write them; the parameters that tell the caller where they are. RequestError where they do not fit."""


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output the caller wants; `classification` > 0 asks for its k best as BYTES "%f:idx[:label]" (Triton)."""

    name: str
    classification: int = 0
    destination: Destination | None = None


@dataclass(slots=True)
class InferRequest:
    """`inputs` in the manifest's names; `version` "" means the policy's default.

    `deadline_ns` is on the monotonic clock (None: none); `priority` 1 is highest, 0 the model's default;
    `outputs` empty means all of them. `caller`: token's name, certificate, peer uid or address, the first there is.
    `stream` names the sequence that a request belongs to ("": the caller's only one), for queues that keep the latest.
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


@dataclass(slots=True)
class InferResponse:
    """`outputs` in the order asked for (or the manifest's); arrays are the caller's to keep."""

    model: str
    version: str
    id: str
    outputs: dict[str, Tensor]
    variant: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class ResponseForm:
    """Properties of responses that differ in their id and the contents of their outputs only. Compared by identity.

    `outputs`: name, datatype and shape of each, in the order in which they are sent.
    """

    model: str
    version: str
    outputs: tuple[tuple[str, Datatype, tuple[int, ...]], ...]
