"""Columns as the tensors that a model takes, and its answers as columns. Pure, except for images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.domain.infer import InferResponse
from gateway.serving.engine.images import open_image, views_as_input
from gateway.serving.engine.settings import EngineSettings
from gateway.serving.pipelines.columns import StepError, Values, spread
from gateway.serving.pipelines.runs import Column, Feed, elements
from gateway.serving.pipelines.slices import Slices
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.interpreter import ABSENT
from gateway.serving.tasks.views import whole


def row_bytes(feed: Feed, column: Array) -> int:
    """Return the bytes of a row of a model's input; of one with images those of the tensor that they become."""
    if not feed.shows:
        return column.nbytes // len(column)
    inner, preprocess = feed.spec.shape[1:], feed.spec.preprocess
    values = elements(inner)
    if not values:
        sizes = [(view.size[1], view.size[0]) for view in column]
        resized = preprocess.resize if preprocess and preprocess.resize else None
        channels = preprocess.channels if preprocess else 3
        values = channels * max(int(height * width) for height, width in ([resized] if resized else sizes))
    return values * feed.spec.datatype.dtype.itemsize


def fed_all(feeds: Sequence[Feed], values: Values, count: int, chosen: Array | None) -> Slices[list[Array]]:
    """Return the values of a model's inputs: of the `chosen` rows, or of all `count`. Raises StepError."""
    columns = list[Array]()
    for feed in feeds:
        columns.append(_fed(feed, values, count, chosen))
        yield
    return columns


def _fed(feed: Feed, values: Values, count: int, chosen: Array | None) -> Array:
    column: Array = spread(feed.value, values, count)
    if chosen is not None:
        column = column[chosen]
    return column if feed.shows else cast(column, feed.spec.datatype)


def cast(column: Array, datatype: Datatype) -> Array:
    """Return a column in a datatype: of a number that it does not hold the nearest one that it holds."""
    dtype = datatype.dtype
    if column.dtype == dtype:
        return column
    if dtype.kind in "iu" and column.dtype.kind == "f":
        if not np.isfinite(column).all():
            raise StepError("gets a value that is no number")
        column = np.rint(np.asarray(column, np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        held = column.astype(dtype)
    if column.dtype.kind in "iuf" and not np.can_cast(column.dtype, dtype):
        is_float = dtype.kind == "f"
        bounds = np.finfo(dtype) if is_float else np.iinfo(dtype)
        is_number = np.isfinite(column) if is_float else True
        held[(column >= bounds.max) & is_number] = bounds.max
        held[(column <= bounds.min) & is_number] = bounds.min
    return held


def shaped(column: Array, feed: Feed, *, batched: bool) -> Array:
    """Return rows in the shape that the model takes: of a model without rows the only one."""
    if feed.shows:
        return column
    inner = feed.spec.shape[1:] if batched else feed.spec.shape
    if not batched:
        return column.reshape(inner) if -1 not in inner else column[0] if column.ndim > len(inner) else column
    return column if column.ndim == len(inner) + 1 else column.reshape(len(column), *inner)


def joined_rows(parts: Sequence[InferResponse], column: Column, source: str) -> Array:
    """Return the rows of all parts of `source`. Raises StepError for rows of several shapes, each a part of its own."""
    arrays = [part.outputs[column.output].array for part in parts]
    if not arrays:
        return filled(0, column, None)
    if not column.has_rows:
        if len(shapes := {array.shape: list(array.shape) for array in arrays}) > 1:
            found = " and ".join(map(str, [*shapes.values()][:2]))
            words = f"{source}: rows have values of several shapes in output {column.output} ({found})"
            raise StepError(f"{words}; fill them up to one shape, or ask for one row at a time")
        return column.make(np.stack(arrays))
    return column.make(arrays[0] if len(arrays) == 1 else _concatenated(arrays))


def _concatenated(arrays: Sequence[Array]) -> Array:
    """Return the rows of arrays, of which the largest decides how many values a row has; others are filled up."""
    if len({array.shape[1:] for array in arrays}) == 1:
        return np.concatenate(arrays)
    sizes = [max(array.shape[axis] for array in arrays) for axis in range(1, arrays[0].ndim)]
    pads = [[(0, 0), *((0, size - has) for size, has in zip(sizes, each.shape[1:], strict=True))] for each in arrays]
    fill = b"" if arrays[0].dtype == object else ABSENT if arrays[0].dtype.kind == "i" else 0
    return np.concatenate([np.pad(each, pad, constant_values=fill) for each, pad in zip(arrays, pads, strict=True)])


def filled(count: int, column: Column, value: Any) -> Array:
    """Return a column with one value in all rows; None: the value of rows that have none."""
    shape = tuple(max(size, 0) for size in column.type.shape)
    datatype = column.type.datatype
    nothing = b"" if datatype is Datatype.BYTES else 0
    return np.full((count, *shape), nothing if value is None else value, datatype.dtype)


def decoded_views(contents: Array, name: str, settings: EngineSettings, pixels: list[int]) -> Slices[Array]:
    """Return whole views of images. `pixels`: how many more the request may decode, of all its inputs together."""
    views = np.empty(len(contents), object)
    for row, content in enumerate(contents):
        views[row] = view = whole(open_image(bytes(content), f"image {row} of input '{name}'", settings, pixels[0]))
        pixels[0] -= view.image.width * view.image.height
        yield
    return views


def prepared(feeds: Sequence[Feed], columns: Sequence[Array]) -> Slices[tuple[list[Array], tuple[Frame, ...]]]:
    """Return the columns with images as tensors, and the places of the first input's images in it."""
    arrays, frames = list[Array](), tuple[Frame, ...]()
    for feed, column in zip(feeds, columns, strict=True):
        if feed.shows:
            array, placed = yield from _tensor_of(column, feed.spec)
            arrays.append(array)
            frames = frames or placed
        else:
            arrays.append(column)
    return arrays, frames


def _tensor_of(views: Array, spec: TensorSpec) -> Slices[tuple[Array, tuple[Frame, ...]]]:
    """Return what `views_as_input` does, one view after the other."""
    first, frames = views_as_input(views[:1], spec)
    if len(views) == 1:
        return first, frames
    together, placed = np.empty((len(views), *first.shape[1:]), first.dtype), list(frames)
    together[0] = first[0]
    for row in range(1, len(views)):
        yield
        array, frames = views_as_input(views[row : row + 1], spec)
        if array.shape[1:] != together.shape[1:]:
            raise RequestError(Fault.INVALID, f"the images for input '{spec.name}' differ in size")
        together[row] = array[0]
        placed += frames
    return together, tuple(placed)
