"""Range of pixels that a graph takes, by the scaling of its first operators. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

from gateway.common.domain.tensor import Array
from gateway.serving.domain.rows.graph import Constant, Graph, Node

PASSING = frozenset({"Cast", "Identity", "Transpose"})
"""Operators that keep the values."""
STEPS_LIMIT = 16
"""Most operators that are followed."""
PIXELS, UNIT = (0.5, 32.0), (1.5, 32.0)
"""Widths that a graph gives to the values 0 to 255 if it takes pixels, and to 0 to 1 if it takes these."""
PIXEL_MEANS = (64.0, 192.0)
"""Means that are subtracted from pixels alone: OpenVINO moves the division into the first weights."""
SPREAD = (0.05, 64.0)
"""Widths of what the first operators give that samples of a fitting range have."""


def scaled_range(graph: Graph, name: str) -> tuple[str, str]:
    """Return the range of pixels that the input `name` takes, and the reason; ("", "") if the graph scales nothing."""
    scale, offset = _scaling(graph, name)
    why = f"the file's first operators compute {scale:.4g} · x {offset:+.4g}"
    if PIXELS[0] <= 255 * scale <= PIXELS[1] or (scale == 1.0 and PIXEL_MEANS[0] <= -offset <= PIXEL_MEANS[1]):
        return "pixels", why
    return ("unit", why) if UNIT[0] <= scale <= UNIT[1] and offset < 0 < scale + offset else ("", "")


def scaling_remarks(graph: Graph, samples: Mapping[str, Array]) -> list[str]:
    """Return that samples of an image input fit the first operators of a graph badly; none if they fit."""
    names, images = image_inputs(graph), [array for array in samples.values() if array.ndim >= 4]
    scale, offset = _scaling(graph, names[0]) if len(names) == len(images) == 1 else (1.0, 0.0)
    low, high = (float(images[0].min()), float(images[0].max())) if scale != 1.0 else (0.0, 1.0)
    if SPREAD[0] <= abs(scale) * (high - low) <= SPREAD[1]:
        return []
    seen = f"its first operators make {scale * low + offset:.4g} to {scale * high + offset:.4g} of them"
    remedy = "give samples as the model was trained on, or correct scale, mean and std in the manifest"
    return [f"the samples of images are {low:.4g} to {high:.4g}, and the file scales them itself: {seen}; {remedy}"]


def image_inputs(graph: Graph) -> list[str]:
    """Return the names of the inputs of rank 4."""
    return [name for name, shape in graph.inputs.items() if shape is not None and len(shape) == 4]


def _scaling(graph: Graph, name: str) -> tuple[float, float]:
    """Return the factor and the summand of the first operators after the input `name`, the means of its channels."""
    constants = _constants(graph.nodes, graph.constants)
    scale, offset = 1.0, 0.0
    for _ in range(STEPS_LIMIT):
        readers = [node for node in graph.nodes if name in node.inputs]
        step = _step(readers[0], name, constants) if len(readers) == 1 and readers[0].outputs else None
        if step is None:
            break
        scale, offset, name = scale * step[0], offset * step[0] + step[1], readers[0].outputs[0]
    return scale, offset


def _step(node: Node, name: str, constants: dict[str, Constant]) -> tuple[float, float] | None:
    """Return the factor and the summand of an operator, the means of its channels; None for other operators."""
    if node.kind in PASSING:
        return 1.0, 0.0
    values = [_mean(constants.get(each)) for each in node.inputs if each != name]
    known = [value for value in values if value is not None]
    if not known or len(known) != len(values):
        return None
    if node.kind == "BatchNormalization" and len(known) == 4:
        gain, shift, mean, variance = known
        epsilon = node.attributes.get("epsilon", 1e-5)
        spread = variance + (epsilon if isinstance(epsilon, float) else 0.0)
        return (gain / sqrt(spread), shift - mean * gain / sqrt(spread)) if spread > 0 else None
    if node.kind not in {"Add", "Sub", "Mul", "Div"} or len(known) != 1:
        return None
    value, is_first = known[0], node.inputs[0] == name
    if node.kind == "Sub":
        return (1.0, -value) if is_first else (-1.0, value)
    if node.kind == "Div":
        return (1.0 / value, 0.0) if is_first and value else None
    return (1.0, value) if node.kind == "Add" else (value, 0.0)


def _mean(constant: Constant | None) -> float | None:
    return sum(constant.numbers) / len(constant.numbers) if constant and constant.numbers else None


def _constants(nodes: tuple[Node, ...], given: Mapping[str, Constant]) -> dict[str, Constant]:
    """Return the constants `given`, those of operators, and copies in another type, as files in FP16 have them."""
    found = dict(given)
    for node in nodes:
        if node.kind in {"Cast", "Identity"} and node.outputs and node.inputs[0] in found:
            found[node.outputs[0]] = found[node.inputs[0]]
        value = node.attributes.get("value", node.attributes.get("value_float"))
        if node.kind == "Constant" and isinstance(value, float):
            value = Constant((), (value,), floats=True)
        if node.kind == "Constant" and isinstance(value, Constant) and node.outputs:
            found[node.outputs[0]] = value
    return found
