"""Sizes that a request for one model can have, from the shapes that its manifest declares."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype

VARINT_BYTES = 10
"""Longest varint (protobuf, "Encoding"): the size of a negative number in typed contents."""
JSON_BYTES = 64
"""Bytes of one element in JSON: 25 for the longest FP64, and as many again for line breaks and indentation."""
ANSWER_BYTES = 2**31 - 1
"""Largest answer: protobuf serializes no larger message ("Proto Limits"). HTTP has a smaller bound in addition."""
_TYPED_BYTES = {Datatype.BOOL: 1, Datatype.FP32: 4, Datatype.FP64: 8}


@dataclass(frozen=True, slots=True)
class RequestSizes:
    """Largest request in bytes: in protobuf or raw (`binary_bytes`) and in JSON (`json_bytes`).

    None: not bounded by the model (a dimension is open, or an input is BYTES). Both include names, parameters and id.
    """

    binary_bytes: int | None
    json_bytes: int | None


def request_sizes(manifest: ModelManifest, max_batch_rows: int, slack_bytes: int) -> RequestSizes:
    """Return the sizes for at most `max_batch_rows` rows; `slack_bytes` are for names, parameters and the id.

    A bare model has no bound of rows: the author did not say what its first dimension counts (`engine.admission`).
    """
    if any(spec.takes_encoded for spec in manifest.inputs):
        return RequestSizes(None, None)
    rows = max_batch_rows if manifest.batched and not manifest.inspected else None
    counts = [_elements(spec, rows) for spec in manifest.inputs]
    if any(count is None for count in counts):
        return RequestSizes(None, None)
    pairs = [(spec.datatype, count or 0) for spec, count in zip(manifest.inputs, counts, strict=True)]
    binary = sum(
        count * max(datatype.wire_bytes, _TYPED_BYTES.get(datatype, VARINT_BYTES)) for datatype, count in pairs
    )
    text = sum(count * JSON_BYTES for _, count in pairs)
    return RequestSizes(binary + slack_bytes, text + slack_bytes)


def check_answer(size: int) -> None:
    """Refuse an answer of `size` bytes or more. Raises RequestError TOO_LARGE above ANSWER_BYTES."""
    if size > ANSWER_BYTES:
        what = f"the answer has {size} bytes or more; at most {ANSWER_BYTES} are sent"
        raise RequestError(Fault.TOO_LARGE, f"{what}; request fewer rows or outputs")


def least_answer_bytes(outputs: Iterable[TensorSpec], rows: int | None) -> int:
    """Return the bytes of `outputs` whose shape is declared, for `rows` rows (None: the first dimension is open)."""
    return sum((_elements(spec, rows) or 0) * spec.datatype.wire_bytes for spec in outputs)


def widest(sizes: Iterable[RequestSizes]) -> RequestSizes:
    """Return the largest of several versions' sizes. Raises ValueError for none."""
    each = list(sizes)
    return RequestSizes(_widest([size.binary_bytes for size in each]), _widest([size.json_bytes for size in each]))


def _widest(sizes: list[int | None]) -> int | None:
    bounded = [size for size in sizes if size is not None]
    return max(bounded) if len(bounded) == len(sizes) else None


def _elements(spec: TensorSpec, rows: int | None) -> int | None:
    """Return the most elements that a tensor can have; None if that is open."""
    shape = spec.shape if rows is None or spec.shape[:1] != (ROWS,) else (rows, *spec.shape[1:])
    if spec.datatype is Datatype.BYTES or ROWS in shape:
        return None
    return math.prod(shape)
