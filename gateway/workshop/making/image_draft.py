"""Draft of the conversion of encoded images to an input: colour, size, range of values. Pure functions."""

from __future__ import annotations

from dataclasses import replace

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ROWS, Preprocess, TensorSpec, fits
from gateway.workshop.making.choices import DEFAULT_RANGE, VALUE_RANGES
from gateway.workshop.making.model_file import ModelFile
from gateway.workshop.making.task_proposal import TaskProposal
from gateway.workshop.making.tensor_guesses import LINE_WIDTH_PX, ImageGuess, guess_image, guess_range
from gateway.workshop.making.wishes import Remarks, Wishes

IMAGENET_SHARE = 0.875
"""Share of the shorter side in the evaluation of models of ImageNet: 224 of 256 (torchvision, timm)."""
_LETTERBOXED = frozenset({"object-detection", "instance-segmentation", "keypoints", "oriented-boxes"})
"""Tasks whose models see the whole image in its own proportions."""
_STRETCHED = frozenset({"ssd"})
"""Heads of models that stretch images (`fixed_shape_resizer` of TensorFlow's object detection)."""


def with_layout(spec: TensorSpec, remarks: Remarks) -> TensorSpec:
    """Return an input with its layout if it is an image."""
    image = guess_image(spec)
    if image is None:
        return spec
    remarks.infer(f"input.{spec.name}.layout", image.why)
    return replace(spec, layout=image.layout)


def with_preprocess(
    spec: TensorSpec, file: ModelFile, kind: str, wishes: Wishes, remarks: Remarks, *, proposal: TaskProposal
) -> TensorSpec:
    """Return an input with the conversion of encoded images if it is an image."""
    image = guess_image(spec)
    if image is None:
        return spec
    place = f"input.{spec.name}.preprocess."
    family, head = proposal.image, str(proposal.options.get("format", ""))
    value_range = _range(spec, file, wishes, remarks, str(family.get("range", "")))
    (scale, mean, std), fit = VALUE_RANGES[value_range], _fit(kind, head, value_range)
    if fit == "crop":
        remarks.assume(f"{place}fit", "models of ImageNet are evaluated on a resize to 256 and a crop of 224")
    other = "most models of this head take bgr" if "color" in family else "bgr is the other order"
    remarks.infer(f"{place}color", f"3 channels; {other}" if image.channels == 3 else "1 channel")
    preprocess = Preprocess(
        decode=("jpeg", "png"),
        color="gray" if image.channels == 1 else str(family.get("color", "rgb")),
        resize=_size(image, file, kind, wishes=wishes, remarks=remarks, place=place) or family.get("resize"),
        fit=fit,
        crop_share=IMAGENET_SHARE if fit == "crop" else 1.0,
        scale=scale,
        mean=mean if len(mean) in {1, image.channels} else mean[:1],
        std=std if len(std) in {1, image.channels} else std[:1],
        pad_value=family.get("pad_value", 0),
        align=family.get("align", "center"),
    )
    return replace(spec, preprocess=preprocess)


def _range(spec: TensorSpec, file: ModelFile, wishes: Wishes, remarks: Remarks, usual: str) -> str:
    """Return the name of the range of values, and note where it comes from."""
    place = f"input.{spec.name}.preprocess.scale"
    found, why = guess_range(spec.datatype, known=file.value_range, why=file.range_why)
    if wishes.value_range:
        note = f"as --range says ({wishes.value_range})"
        if found and found != wishes.value_range:
            remarks.assume(place, f"{note}, though {why}, which takes {found}")
        else:
            remarks.say(place, note)
        return wishes.value_range
    if found:
        remarks.infer(place, f"{why} ({found})")
        return found
    if usual:
        remarks.assume(place, f"models of this head mostly take {usual}; --range names another")
        return usual
    others = [name for name in VALUE_RANGES if name != DEFAULT_RANGE]
    remarks.ask("value_range", "values of black and white pixels", DEFAULT_RANGE, tuple(VALUE_RANGES))
    remarks.assume(place, f"pixels are {DEFAULT_RANGE}; --range names one that was not tried ({', '.join(others)})")
    return DEFAULT_RANGE


def _fit(kind: str, head: str, value_range: str) -> str:
    if kind in _LETTERBOXED and head not in _STRETCHED:
        return "letterbox"
    return "crop" if kind == "image-classification" and value_range == "imagenet" else "stretch"


def _size(
    image: ImageGuess, file: ModelFile, kind: str, *, wishes: Wishes, remarks: Remarks, place: str
) -> tuple[int, int] | None:
    """Return the height and width to which images are resized; None: the file takes any size.

    Raises ConfigurationError if the author names another size than the file takes.
    """
    sides = (image.height, image.width)
    if wishes.size_px and not fits(wishes.size_px, sides):
        known = " by ".join("any" if side == ROWS else str(side) for side in sides)
        raise ConfigurationError(
            f"takes images of {known} pixels (height by width); correct --size", file=str(file.path)
        )
    if ROWS not in sides:
        return sides
    if wishes.size_px:
        remarks.say(f"{place}resize", "as --size says")
        return wishes.size_px
    if file.size_px:
        remarks.infer(f"{place}resize", "the exporter's metadata; the file takes other sizes, too")
        return file.size_px
    if kind == "text-recognition" and image.height > 0:
        remarks.assume(f"{place}resize", "the width is open; a longer line needs a greater one")
        return image.height, LINE_WIDTH_PX
    remarks.assume(f"{place}fit", "the file takes images of any size; --size HEIGHTxWIDTH sets one")
    return None
