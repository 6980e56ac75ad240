"""Form in which a model takes frames, by what the gateway tells about its input. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.tensor import Datatype

RAW_FRAMES = {"nv12": "nv12", "i420": "yuv420p", "yuyv": "yuyv422"}
"""FFmpeg's names of the raw frames that a manifest may declare."""
COMPRESSED = ("jpeg", "png")
"""Encoded images, the cheaper one first."""
ANY = -1
"""Dimension of any size."""


@dataclass(frozen=True, slots=True)
class FrameForm:
    """Form of a frame. `pixels`: FFmpeg's pixel format. `size`: (width, height), None if any is taken.

    `image`: jpeg or png if the frame is compressed. `layout`: NCHW or NHWC if it is a tensor, with `rank` dimensions;
    else it is one element of a BYTES tensor. `matrix`, `color_range`: of raw frames, as in the manifest.
    """

    input: str
    pixels: str
    size: tuple[int, int] | None = None
    image: str = ""
    layout: str = ""
    rank: int = 0
    matrix: str = ""
    color_range: str = ""

    def __str__(self) -> str:
        size = f" of {self.size[0]} by {self.size[1]} pixels" if self.size else ""
        if self.layout:
            return f"{self.pixels} tensors{size}"
        names = {pixels: name for name, pixels in RAW_FRAMES.items()}
        return f"{(self.image or names[self.pixels]).upper()}{size}"

    @property
    def datatype(self) -> str:
        """Return the datatype of the tensor with frames."""
        return (Datatype.UINT8 if self.layout else Datatype.BYTES).label

    def shape(self, width: int, height: int) -> list[int]:
        """Return the shape of the tensor with one frame."""
        if not self.layout:
            return [1]
        channels = 1 if self.pixels == "gray" else 3
        sides = [channels, height, width] if self.layout == "NCHW" else [height, width, channels]
        return [1, *sides] if self.rank == 4 else sides


def choose_form(model: str, inputs: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> FrameForm:
    """Return the cheapest form that the model's only input takes; those with a default may be left out.

    `inputs` are those of the model's metadata (Open Inference Protocol), `config` is its configuration (Triton).
    Raises ConfigurationError with the remedy if it takes no frames.
    """
    described = {each["name"]: each for each in config["input"]}
    needed = [each for each in inputs if not described.get(each["name"], {}).get("optional")]
    if len(needed) != 1:
        names = ", ".join(str(each["name"]) for each in inputs)
        raise ConfigurationError(f"model '{model}' has the inputs {names}; a video feeds models with one input only")
    from gateway.serving.frontends.documents import PREPROCESS  # not in the process of a camera

    (spec,) = needed
    form = config["parameters"].get(PREPROCESS + str(spec["name"]))
    if form is not None:
        return _declared(str(spec["name"]), json.loads(form["string_value"]))
    return _tensor(model, spec, described.get(spec["name"], {}))


def _declared(name: str, preprocess: Mapping[str, Any]) -> FrameForm:
    """Return the form that [input.preprocess] of the manifest declares."""
    first = preprocess["decode"][0]
    if first in RAW_FRAMES:
        height, width = preprocess["frame"]
        matrix, color_range = preprocess["color_matrix"], preprocess["color_range"]
        return FrameForm(name, RAW_FRAMES[first], (width, height), matrix=matrix, color_range=color_range)
    return FrameForm(name, "rgb24", image=min(preprocess["decode"], key=COMPRESSED.index))


def _tensor(model: str, spec: Mapping[str, Any], config: Mapping[str, Any]) -> FrameForm:
    """Return the form of an input that takes pixels as they are. Raises ConfigurationError."""
    datatype, shape = spec["datatype"], [int(size) for size in spec["shape"]]
    remedy = "declare in its manifest how images become its input: [input.preprocess] with decode"
    if datatype != Datatype.UINT8.label or len(shape) not in {3, 4}:
        raise ConfigurationError(f"model '{model}' takes {datatype} {shape} and no images; {remedy}")
    layout = {"FORMAT_NCHW": "NCHW", "FORMAT_NHWC": "NHWC"}.get(config.get("format", ""), "")
    sides = shape[-3:]
    layout = layout or ("NHWC" if sides[0] not in {1, 3} else "NCHW")
    channels, height, width = sides if layout == "NCHW" else (sides[2], sides[0], sides[1])
    if channels not in {1, 3, ANY}:
        raise ConfigurationError(f"model '{model}' takes images of {channels} channels, not of 1 or 3; {remedy}")
    size = None if ANY in {height, width} else (width, height)
    return FrameForm(str(spec["name"]), "gray" if channels == 1 else "rgb24", size, layout=layout, rank=len(shape))
