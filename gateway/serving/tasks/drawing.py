"""Drawing of a task's result into its image: boxes, masks, keypoints, corners, labels and text."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gateway.common.domain.tensor import Array

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000", "#000075", "#f032e6")
"""Colours of classes: each has a contrast of at least 3 with white text on it."""
MASK_SHARE = 0.45
"""Share of the class's colour where a mask covers the image."""
LINE_SHARE, LEAST_LINE_PX = 0.003, 2
"""Width of lines as a share of the image's longer side."""
TEXT_SHARE, LEAST_TEXT_PX = 0.02, 12
POINT_SCORE = 0.3
"""Score from which a keypoint is drawn."""


def draw(document: Mapping[str, Any], image: Image.Image) -> Image.Image:
    """Return an RGB image with a result drawn into it."""
    from PIL import Image, ImageDraw

    pixels = np.asarray(image, np.float32)
    for entry in _masked(document):
        pixels = _covered(pixels, entry)
    drawn = Image.fromarray(pixels.astype(np.uint8))
    pen = _Pen(ImageDraw.Draw(drawn), max(image.size))
    for entry in reversed(list(_objects(document))):  # the best one last, above the others
        pen.detection(entry)
    pen.caption(_captions(document))
    return drawn


def mask_of(mask: Mapping[str, Any]) -> Array:
    """Return a mask [height, width] of booleans from COCO's run lengths, which go down the columns."""
    height, width = mask["size"]
    runs = np.asarray(mask["counts"], np.int64)
    values = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return values.reshape(width, height).T


class _Pen:
    """Drawing into one image, with lines and texts of a size that fits it."""

    def __init__(self, canvas: ImageDraw.ImageDraw, side_px: int) -> None:
        from PIL import ImageFont

        self._canvas = canvas
        self._line_px = max(LEAST_LINE_PX, round(side_px * LINE_SHARE))
        self._font = ImageFont.load_default(max(LEAST_TEXT_PX, round(side_px * TEXT_SHARE)))

    def detection(self, entry: Mapping[str, Any]) -> None:
        """Draw box or corners, keypoints, and the label."""
        colour = _colour(entry)
        corners = [tuple(corner) for corner in entry.get("corners", ())]
        if corners:
            self._canvas.line([*corners, corners[0]], colour, self._line_px)
        else:
            self._canvas.rectangle(entry["box"], outline=colour, width=self._line_px)
        for point in entry.get("keypoints", ()):
            if point.get("score", 1.0) >= POINT_SCORE:
                self._canvas.circle((point["x"], point["y"]), 2 * self._line_px, fill=colour)
        left, top = min(corners, key=lambda corner: corner[1]) if corners else entry["box"][:2]
        self._text(_label(entry), left, top, colour, above=True)

    def caption(self, lines: Sequence[str]) -> None:
        """Write lines into the upper left corner."""
        top = 0.0
        for line in lines:
            top = self._text(line, 0, top, "#000000", above=False)

    def _text(self, text: str, left: float, top: float, colour: str, *, above: bool) -> float:
        """Write white text on a coloured ground, above a place if there is room. Return its lower end."""
        x1, _, x2, y2 = self._canvas.textbbox((left, top), text, font=self._font)
        rise = y2 - top if above and top >= y2 - top else 0
        self._canvas.rectangle((x1, top - rise, x2 + 1, y2 - rise + 1), fill=colour)
        self._canvas.text((left, top - rise), text, fill="#ffffff", font=self._font)
        return float(y2 - rise + 1)


def _objects(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield what has a place: detections, and of a pipeline the entries of each output that have a box or corners."""
    for entries in document.values():
        if isinstance(entries, list):
            yield from (each for each in entries if isinstance(each, dict) and (each.get("box") or each.get("corners")))


def _label(entry: Mapping[str, Any]) -> str:
    """Return what is written at an object: its texts, such as its label, and its score."""
    texts, score = [value for value in entry.values() if isinstance(value, str)], entry.get("score")
    return " ".join(texts if score is None else (*texts, f"{score:.2f}"))


def _masked(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for key in ("classes", "detections"):
        yield from (entry for entry in document.get(key, ()) if "mask" in entry)


def _covered(pixels: Array, entry: Mapping[str, Any]) -> Array:
    """Return pixels with the colour of a class where its mask is. A mask of another size is left out."""
    from PIL import ImageColor

    mask = mask_of(entry["mask"])
    if mask.shape != pixels.shape[:2]:
        return pixels
    colour = np.asarray(ImageColor.getrgb(_colour(entry)), np.float32)
    return np.where(mask[..., None], pixels * (1 - MASK_SHARE) + colour * MASK_SHARE, pixels)


def _captions(document: Mapping[str, Any]) -> list[str]:
    """Return what is said about the whole image: text, label, classes or parts."""
    if "text" in document:
        return [str(document["text"])]
    parts = document.get("classes") or ([document] if "label" in document else [])
    shares = ((part["label"], part.get("score", part.get("share"))) for part in parts)
    return [label if share is None else f"{label} {share:.2f}" for label, share in shares]


def _colour(entry: Mapping[str, Any]) -> str:
    """Return the colour of a class, by its number or label."""
    number = entry.get("class", zlib.crc32(str(entry.get("label")).encode()))
    return COLOURS[int(number) % len(COLOURS)]
