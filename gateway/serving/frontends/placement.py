"""Positions of tensors in shared memory: from a request's parameters, and as destinations of outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.common.domain.errors import RequestError
from gateway.common.domain.tensor import Raw
from gateway.serving.domain.infer import Parameter
from gateway.serving.frontends.segment import Segment, invalid

PARAMETERS = _REGION, _SIZE, _OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"
"""Parameters of an input or requested output that place it."""


@dataclass(frozen=True, slots=True)
class RegionSpan:
    """Position of a tensor in a region, as a request states it."""

    region: str
    byte_size: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """Position of an output: implements `serving.domain.infer.Destination`. Holds the segment if the region is gone."""

    output: str
    place: RegionSpan
    segment: Segment = field(repr=False)

    def put(self, raw: Raw) -> Mapping[str, Parameter]:
        """Write the output.

        Raises RequestError INVALID with both sizes if it is too large, TOO_LARGE if there is no memory.
        """
        place = self.place
        if len(raw) > place.byte_size:
            raise invalid(
                f"shared memory size specified with the request for output '{self.output:.200}' ({place.byte_size} "
                f"bytes) should be at least {len(raw)} bytes to hold the results"
            )
        self.segment.write(place.offset, raw)
        parameters: dict[str, Parameter] = {_REGION: place.region, _SIZE: len(raw)}
        return {**parameters, _OFFSET: place.offset} if place.offset else parameters


def read_place(parameters: Mapping[str, Parameter], tensor: str) -> RegionSpan | None:
    """Return the position in the parameters of an input or output; None: in the message.

    Raises RequestError INVALID, with Triton's message, if they are inconsistent.
    """
    region, byte_size, offset = (parameters.get(key) for key in (_REGION, _SIZE, _OFFSET))
    if region is None:
        for key, value in ((_SIZE, byte_size), (_OFFSET, offset)):
            if value is not None:
                raise invalid(f"'{key}' can not be specified without '{_REGION}' parameter for tensor '{tensor:.200}'")
        return None
    if not isinstance(region, str):
        raise _wrong_type(_REGION, tensor, "string_param")
    if byte_size is None:
        raise invalid(f"'{_SIZE}' must be specified along with '{_REGION}' parameter for tensor '{tensor:.200}'")
    if type(byte_size) is not int:
        raise _wrong_type(_SIZE, tensor, "int64_param")
    if type(offset) not in {int, type(None)}:
        raise _wrong_type(_OFFSET, tensor, "int64_param")
    if byte_size <= 0:
        raise invalid(f"'{_SIZE}' of tensor '{tensor:.200}' must be more than 0, not {byte_size}")
    return RegionSpan(region, byte_size, int(offset or 0))


def _wrong_type(key: str, tensor: str, wanted: str) -> RequestError:
    return invalid(f"invalid value type for '{key}' parameter for tensor '{tensor:.200}', expected {wanted}.")
