"""Rules of convolutions, pools and other operators on images, whose rows are on the first axis."""

from __future__ import annotations

from gateway.serving.domain.rows.sizes import ONE, DependentRowsError, Size, Symbols, size
from gateway.serving.domain.rows.values import Operation, Shape, Value, apart, rowed, rows_first


def convolution(op: Operation) -> list[Value]:
    """Return the rule of the convolutions; QLinearConv has its weights in input 3."""
    at = 3 if op.node.kind == "QLinearConv" else 1
    value, weights = op[0], op.shared(at, "weights")
    for index in range(1, len(op.inputs)):
        op.shared(index, "weights")
    if weights is None:
        raise DependentRowsError("its weights are missing")
    rows_first(value)
    if value.shape is None or weights.shape is None:
        return [Value()] if value.axis is None else [_unsized(op, value)]
    kernel = weights.sizes[2:]
    if op.node.kind == "ConvTranspose":
        channels = weights.sizes[1] * op.integer("group", 1)
        spatial = _transposed_sizes(op, value.sizes[2:], kernel)
    else:
        channels, spatial = weights.sizes[0], _window_sizes(op, value.sizes[2:], kernel)
    return [rowed((value.sizes[0], channels, *spatial), value.axis, value.entries)]


def _unsized(op: Operation, value: Value) -> Value:
    """Return a tensor of the same rank with rows on the first axis, whose other sizes are not known."""
    sizes = (op.symbols.dimension("size", op, place) for place in range(1, value.rank))
    return rowed((value.sizes[0], *sizes), value.axis, value.entries)


def pool(op: Operation) -> list[Value]:
    """Return the rule of the pools. The indices of MaxPool count through the whole tensor."""
    for index in range(1, len(op.inputs)):
        op.shared(index, "parameter")
    value = op[0]
    rows_first(value)
    if op.integer("channels_last", 0):
        raise DependentRowsError("its channels are last")
    if len([name for name in op.node.outputs if name]) > 1:
        raise DependentRowsError("its indices count through all rows")
    kernel = op.integers(len(op.inputs), "kernel_shape", role="kernel") or []
    spatial = _window_sizes(op, value.sizes[2:], tuple(map(size, kernel)))
    return [rowed((*value.sizes[:2], *spatial), value.axis, value.entries)]


def global_pool(op: Operation) -> list[Value]:
    """Return the rule of the global pools."""
    for index in range(1, len(op.inputs)):
        op.shared(index, "parameter")
    value = op[0]
    if op.integer("channels_last", 0):
        raise DependentRowsError("its channels are last")
    apart(value, range(2, value.rank))
    return [rowed((*value.sizes[:2], *(ONE for _ in value.sizes[2:])), value.axis, value.entries)]


def _window_sizes(op: Operation, sizes: Shape, kernel: Shape) -> Shape:
    """Return the sizes after windows moved over each axis (operators Conv and MaxPool of ONNX)."""
    count, automatic = len(sizes), op.text("auto_pad", "NOTSET")
    strides = _listed(op, "strides", count, 1)
    dilations = _listed(op, "dilations", count, 1)
    pads = _listed(op, "pads", 2 * count, 0)
    found = []
    for place, (whole, window) in enumerate(zip(sizes, kernel, strict=True)):
        step, wide = strides[place], (window - ONE) * dilations[place] + ONE
        if automatic.startswith("SAME"):
            found.append(_ratio(op.symbols, whole + (step - 1), step))
            continue
        before, behind = (0, 0) if automatic == "VALID" else (pads[place], pads[place + count])
        up = before + 1 if op.integer("ceil_mode", 0) else 0
        windows = _ratio(op.symbols, whole + (before + behind) - wide, step, up=up) + ONE
        starts_behind = (windows.constant or 0) * step - step >= (whole.constant or 0) + before
        found.append(windows - ONE if up and whole.constant is not None and starts_behind else windows)
    return tuple(found)


def _ratio(symbols: Symbols, whole: Size, step: int, *, up: int = 0) -> Size:
    """Return the quotient, rounded up if `up` is not 0: then it is 1 more than the padding before, which matters."""
    if step == 1:
        return whole
    if whole.constant is not None:
        return size(-(-whole.constant // step) if up else whole.constant // step)
    return symbols.dimension("ratio", whole, step, up)


def _transposed_sizes(op: Operation, sizes: Shape, kernel: Shape) -> Shape:
    count = len(sizes)
    given = op.attributes.get("output_shape")
    if isinstance(given, tuple):
        return tuple(size(int(each)) for each in given[-count:])
    strides, dilations = _listed(op, "strides", count, 1), _listed(op, "dilations", count, 1)
    pads, added = _listed(op, "pads", 2 * count, 0), _listed(op, "output_padding", count, 0)
    found = []
    for place, (whole, window) in enumerate(zip(sizes, kernel, strict=True)):
        if op.text("auto_pad", "NOTSET").startswith("SAME"):
            found.append(whole * strides[place])
            continue
        wide = (window - ONE) * dilations[place] + ONE
        found.append((whole - ONE) * strides[place] + wide + (added[place] - pads[place] - pads[place + count]))
    return tuple(found)


def _listed(op: Operation, name: str, count: int, default: int) -> list[int]:
    found = op.attributes.get(name)
    numbers = [int(each) for each in found] if isinstance(found, tuple) else []
    return numbers if len(numbers) == count else [default] * count


def grid_sample(op: Operation) -> list[Value]:
    """Return the rule of GridSample: each row has an image and a grid of its own."""
    image, grid = op[0], op[1]
    if image.axis != 0 or grid.axis != 0 or image.entries != grid.entries:
        raise DependentRowsError("image and grid do not both have rows on the first axis")
    return [rowed((*image.sizes[:2], *grid.sizes[1:-1]), 0, image.entries)]


def blocks(op: Operation) -> list[Value]:
    """Return the rule of DepthToSpace and SpaceToDepth."""
    value, side = op[0], op.integer("blocksize", 1)
    rows_first(value)
    rows, channels, *spatial = value.sizes
    if op.node.kind == "DepthToSpace":
        channels, spatial = _ratio(op.symbols, channels, side * side), [each * side for each in spatial]
    else:
        channels, spatial = channels * (side * side), [_ratio(op.symbols, each, side) for each in spatial]
    return [rowed((rows, channels, *spatial), value.axis, value.entries)]
