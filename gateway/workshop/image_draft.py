"""Draft of the conversion of encoded images to an input: colour, size, range of values. Pure functions."""

from __future__ import annotations

from dataclasses import replace

from gateway.domain.manifest import ROWS, Preprocess, TensorSpec
from gateway.workshop.choices import DEFAULT_RANGE, VALUE_RANGES
from gateway.workshop.model_file import ModelFile
from gateway.workshop.tensor_guesses import (
    LINE_WIDTH_PX,
    ImageGuess,
    guess_image,
    guess_range,
)
from gateway.workshop.wishes import Remarks, Wishes

_LETTERBOXED = frozenset({"object-detection", "instance-segmentation", "keypoints", "oriented-boxes"})
"""Tasks whose models see the whole image in its own proportions."""


def with_layout(spec: TensorSpec, remarks: Remarks) -> TensorSpec:
    """Return an input with its layout if it is an image."""
    image = guess_image(spec)
    if image is None:
        return spec
    remarks.infer(f"input.{spec.name}.layout", image.why)
    return replace(spec, layout=image.layout)


def with_preprocess(spec: TensorSpec, file: ModelFile, kind: str, wishes: Wishes, remarks: Remarks) -> TensorSpec:
    """Return an input with the conversion of encoded images if it is an image."""
    image = guess_image(spec)
    if image is None:
        return spec
    place = f"input.{spec.name}.preprocess."
    scale, mean, std = VALUE_RANGES[_range(spec, file, wishes, remarks)]
    told = "3 channels; bgr is the other order" if image.channels == 3 else "1 channel"
    remarks.infer(f"{place}color", told)
    preprocess = Preprocess(
        decode=("jpeg", "png"),
        color="gray" if image.channels == 1 else "rgb",
        resize=_size(image, file, kind, remarks, place),
        fit="letterbox" if kind in _LETTERBOXED else "stretch",
        scale=scale,
        mean=mean if len(mean) in {1, image.channels} else mean[:1],
        std=std if len(std) in {1, image.channels} else std[:1],
    )
    return replace(spec, preprocess=preprocess)


def _range(spec: TensorSpec, file: ModelFile, wishes: Wishes, remarks: Remarks) -> str:
    """Return the name of the range of values, and note where it comes from."""
    place = f"input.{spec.name}.preprocess.scale"
    if wishes.value_range:
        remarks.say(place, f"as --range says ({wishes.value_range})")
        return wishes.value_range
    found, why = guess_range(spec.datatype, known=file.value_range)
    if found:
        remarks.infer(place, f"{why} ({found})")
        return found
    remarks.ask("value_range", "values of black and white pixels", DEFAULT_RANGE, tuple(VALUE_RANGES))
    remarks.assume(place, f"pixels are {DEFAULT_RANGE}; --range names another range ({', '.join(VALUE_RANGES)})")
    return DEFAULT_RANGE


def _size(image: ImageGuess, file: ModelFile, kind: str, remarks: Remarks, place: str) -> tuple[int, int] | None:
    """Return the height and width to which images are resized; None: the file takes any size."""
    if ROWS not in (image.height, image.width):
        return image.height, image.width
    if file.size_px:
        remarks.infer(f"{place}resize", "the exporter's metadata; the file takes other sizes, too")
        return file.size_px
    if kind == "text-recognition" and image.height > 0:
        remarks.assume(f"{place}resize", "the width is open; a longer line needs a greater one")
        return image.height, LINE_WIDTH_PX
    remarks.assume(f"{place}fit", "the file takes images of any size; resize = [height, width] sets one")
    return None
