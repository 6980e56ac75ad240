"""Files of images with a task's result drawn into them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.engine.orientation import orientation_of, upright
from gateway.serving.tasks.drawing import draw

if TYPE_CHECKING:
    from PIL import Image


def draw_file(document: Mapping[str, Any], source: Path, target: Path, *, turned: bool = True) -> None:
    """Draw a result into a copy of an image, by default of the upright one.

    Raises ConfigurationError for a file that cannot be read or written.
    """
    from PIL import Image

    try:
        with Image.open(source) as opened:
            image = opened.convert("RGB")  # reads all, also EXIF data behind the pixels
            image = upright(image, orientation_of(opened)) if turned else image
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot be drawn from {source}: {error}", file=str(target)) from error
    draw_image(document, image, target)


def draw_image(document: Mapping[str, Any], image: Image.Image, target: Path) -> None:
    """Draw a result into a copy of an RGB image. Raises ConfigurationError for a file that cannot be written."""
    try:
        draw(document, image).save(target)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot be written: {error}", file=str(target)) from error
