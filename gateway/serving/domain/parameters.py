"""Request parameters of the Open Inference Protocol and Triton's extensions: known ones typed, unknown ones counted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.common.domain.errors import Fault, RequestError
from gateway.serving.domain.infer import END, START, Parameter

PRIORITY_LIMIT = 2**32 - 1
SEQUENCE_LIMIT_CHARS = 256
"""Longest name of a sequence: steps with state and queues keep it."""
TIMEOUT_LIMIT_US = 24 * 3600 * 1_000_000
CLASSES_LIMIT = 2**31 - 1

KNOWN: Mapping[str, tuple[type, ...]] = {
    "sequence_id": (int, str),
    "sequence_start": (bool,),
    "sequence_end": (bool,),
    "priority": (int,),
    "timeout": (int,),
    "binary_data_output": (bool,),
    "triton_enable_empty_final_response": (bool,),
}
RESERVED = "triton_"
"""Beginning of the names of request parameters that Triton reserves: an unknown one is refused, as Triton does."""
_KNOWN_OUTPUT: Mapping[str, tuple[type, ...]] = {"classification": (int,), "binary_data": (bool,)}


@dataclass(frozen=True, slots=True)
class RequestParameters:
    """Known parameters of a request.

    `timeout_us` 0: none. `priority` 0: the model's default. `stream`: the `sequence_id`, or "". `place`: its
    START and END. `ignored`: the number of unknown parameters.
    """

    timeout_us: int = 0
    priority: int = 0
    stream: str = ""
    place: int = 0
    binary_data_output: bool | None = None
    ignored: int = 0


@dataclass(frozen=True, slots=True)
class OutputParameters:
    """Known parameters of an output. `classification` 0: the tensor itself. `binary_data` None: not stated."""

    classification: int = 0
    binary_data: bool | None = None
    ignored: int = 0


def read_parameters(parameters: Mapping[str, Parameter]) -> RequestParameters:
    """Check and read a request's parameters.

    Raises RequestError INVALID for a wrong type or range of a known one, and for a reserved name.
    """
    ignored = _check(parameters, KNOWN, "request")
    if ignored and (reserved := [name for name in parameters if name.startswith(RESERVED) and name not in KNOWN]):
        what = f"parameter keys starting with '{RESERVED}' are reserved for Triton usage"
        allowed = "only triton_enable_empty_final_response is allowed"
        raise RequestError(Fault.INVALID, f"{what}; {allowed}, not '{reserved[0]:.200}'")
    binary = parameters.get("binary_data_output")
    return RequestParameters(
        timeout_us=_bounded(parameters, "timeout", TIMEOUT_LIMIT_US),
        priority=_bounded(parameters, "priority", PRIORITY_LIMIT),
        stream=_stream(parameters.get("sequence_id", "")),
        place=(START if parameters.get("sequence_start") else 0) | (END if parameters.get("sequence_end") else 0),
        binary_data_output=None if binary is None else bool(binary),
        ignored=ignored,
    )


def read_output_parameters(parameters: Mapping[str, Parameter], output: str) -> OutputParameters:
    """Check and read one requested output's parameters. Raises as `read_parameters` does."""
    ignored = _check(parameters, _KNOWN_OUTPUT, f"output '{output}'")
    binary = parameters.get("binary_data")
    return OutputParameters(
        classification=_bounded(parameters, "classification", CLASSES_LIMIT),
        binary_data=None if binary is None else bool(binary),
        ignored=ignored,
    )


def deadline_ns(now_ns: int, *, timeout_us: int = 0, remaining_s: float | None = None) -> int | None:
    """Return the earlier of the `timeout` parameter and the transport's own deadline, on the clock of `now_ns`."""
    ends = []
    if timeout_us:
        ends.append(now_ns + timeout_us * 1000)
    if remaining_s is not None and math.isfinite(remaining_s):
        ends.append(now_ns + int(remaining_s * 1e9))
    return min(ends, default=None)


def _check(parameters: Mapping[str, Parameter], known: Mapping[str, tuple[type, ...]], where: str) -> int:
    ignored = 0
    for name, value in parameters.items():
        if name not in known:
            ignored += 1
        elif type(value) not in known[name]:
            wanted = " or ".join(kind.__name__ for kind in known[name])
            raise RequestError(
                Fault.INVALID, f"parameter '{name}' of the {where} must be {wanted}, not {type(value).__name__}"
            )
    return ignored


def _stream(sequence: Parameter) -> str:
    """Return the name of a sequence. In Triton, 0 and "" mean that a request belongs to none. Raises RequestError."""
    name = str(sequence or "")
    if len(name) > SEQUENCE_LIMIT_CHARS:
        problem = f"has {len(name)} characters, at most {SEQUENCE_LIMIT_CHARS} are read"
        raise RequestError(Fault.INVALID, f"parameter 'sequence_id' {problem}")
    return name


def _bounded(parameters: Mapping[str, Parameter], name: str, limit: int) -> int:
    value = int(parameters.get(name, 0))
    if not 0 <= value <= limit:
        raise RequestError(Fault.INVALID, f"parameter '{name}' must be between 0 and {limit}, not {value}")
    return value
