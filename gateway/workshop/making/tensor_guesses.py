"""Meaning of a model's tensors, inferred from datatypes and shapes: rows, images, value ranges. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gateway.common.domain.manifest import ROWS, TensorSpec
from gateway.common.domain.tensor import Array, Datatype
from gateway.common.domain.verdict import Signature
from gateway.workshop.making.choices import LAYOUTS

IMAGE_CHANNELS = (1, 3)
LEAST_SIDE_PX = 8
"""Least height and width of an input that is taken for an image."""
LINE_WIDTH_PX = 320
"""Width of a line of text if the file leaves it open."""
SUM_TOLERANCE = 1e-2
"""Greatest difference of a sum of probabilities from 1: 8-bit outputs have steps of 1/256."""
_PIXELS = frozenset({Datatype.FP32, Datatype.FP16, Datatype.BF16, Datatype.UINT8, Datatype.INT8})


@dataclass(frozen=True, slots=True)
class RowsGuess:
    """Meaning of the first dimension. `counted`: it counts rows in every tensor; `open`: the file leaves it open."""

    counted: bool
    open: bool
    why: str


@dataclass(frozen=True, slots=True)
class ImageGuess:
    """An input that takes images: its layout, its channels, and its height and width (-1: open) in pixels."""

    layout: str
    channels: int
    height: int
    width: int
    why: str


def guess_rows(signature: Signature) -> RowsGuess:
    """Return whether the first dimension of every tensor counts rows."""
    firsts = {spec.shape[:1] for spec in (*signature.inputs, *signature.outputs)}
    if firsts == {(ROWS,)}:
        return RowsGuess(True, True, "every tensor leaves its first dimension open")
    if firsts == {(1,)} and all(len(spec.shape) > 1 for spec in signature.inputs):
        return RowsGuess(True, False, "every tensor has one row; the gateway runs several rows one after the other")
    sizes = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in (*signature.inputs, *signature.outputs)[:4])
    return RowsGuess(False, False, f"the first dimensions are not all open or 1: {sizes:.200}")


def with_rows_second(signature: Signature) -> Signature:
    """Return the tensors with the layout LNC of outputs [steps, rows, channels], as recurrent networks give them.

    The file must call that dimension as the first one of every input.
    """
    firsts = {spec.axes[0] if spec.axes and spec.shape[:1] == (ROWS,) else "" for spec in signature.inputs}
    rows = firsts.pop() if len(firsts) == 1 else ""
    outputs = (replace(spec, layout="LNC") if _has_rows_second(spec, rows) else spec for spec in signature.outputs)
    return Signature(signature.inputs, tuple(outputs))


def _has_rows_second(spec: TensorSpec, rows: str) -> bool:
    return bool(rows) and len(spec.shape) == 3 and spec.shape[1] == ROWS != spec.shape[0] and spec.axes[1] == rows


def rows_first(signature: Signature) -> Signature:
    """Return the tensors as clients see them: with the rows first."""
    return Signature(signature.inputs, tuple(map(_turned, signature.outputs)))


def _turned(spec: TensorSpec) -> TensorSpec:
    if spec.layout != "LNC":
        return spec
    steps, rows, channels = spec.shape
    return replace(spec, shape=(rows, steps, channels), layout="NLC", axes=())


def guess_image(spec: TensorSpec) -> ImageGuess | None:
    """Return what an input of rank 4 says about images, or None. No shape fits both layouts."""
    if len(spec.shape) != 4 or spec.datatype not in _PIXELS:
        return None
    layout = next((name for name in LAYOUTS if spec.layout in {"", name} and _is_image(spec.shape, name)), None)
    if layout is None:
        return None
    channels, height, width = _sides(spec.shape, layout)
    return ImageGuess(layout, channels, height, width, f"an input of {list(spec.shape)} is an image {layout}")


def guess_range(datatype: Datatype, *, known: str = "", why: str = "") -> tuple[str, str]:
    """Return the range of pixels that an image input takes, by name, and the reason; ("", "") if nothing tells it."""
    if datatype is Datatype.UINT8:
        return "pixels", "an input of UINT8 takes pixels as they are"
    if datatype is Datatype.INT8:
        return "signed-pixels", "an input of INT8 takes pixels less 128"
    return (known, why) if known else ("", "")


def guess_postprocess(scores: Array) -> tuple[str, str]:
    """Return the postprocess that makes scores [rows, classes] probabilities, and the reason."""
    scores = scores[np.isfinite(scores).all(axis=-1)]
    if not scores.size:
        return "", "runs on generated inputs gave NaN or infinity, which tell nothing; softmax if they are logits"
    if not (scores.min() >= 0.0 and scores.max() <= 1.0 + SUM_TOLERANCE):
        return "softmax", "some scores of a run are below 0 or above 1, so they are no probabilities"
    if np.abs(scores.sum(axis=-1) - 1.0).max() <= SUM_TOLERANCE:
        return "", "the scores of a run sum up to 1, so they are probabilities"
    return "", "the scores of a run are between 0 and 1 and do not sum up to 1: each class has its own probability"


def guess_threshold(scores: Array) -> tuple[float, str]:
    """Return from which score on a pixel belongs to the only class of a map, and the reason."""
    if scores.min() >= 0.0 and scores.max() <= 1.0:
        return 0.5, "the values of a run are between 0 and 1, so they are probabilities"
    return 0.0, "some values of a run are below 0 or above 1, so they are logits"


def merged_shape(shape: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return a shape that both accept, or None. A first dimension of 1 accepts rows, one after the other."""
    if len(shape) != len(other):
        return None
    if any(-1 not in {mine, own} and mine != own for mine, own in zip(shape, other, strict=True)):
        return None
    return tuple(own if mine == ROWS else mine for mine, own in zip(shape, other, strict=True))


def _is_image(shape: tuple[int, ...], layout: str) -> bool:
    channels, height, width = _sides(shape, layout)
    return channels in IMAGE_CHANNELS and all(side == ROWS or side >= LEAST_SIDE_PX for side in (height, width))


def _sides(shape: tuple[int, ...], layout: str) -> tuple[int, int, int]:
    return shape[layout.index("C")], shape[layout.index("H")], shape[layout.index("W")]
