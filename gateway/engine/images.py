"""Decoding of encoded images and raw frames to an input tensor as the manifest declares.

The steps are decode, colour, resize, fit, scale, mean and std. Pillow decodes; a JPEG is decoded at the smallest scale
that still covers the wanted size (`draft`). Raw frames of cameras have the declared size. Data from a peer is
untrusted: bytes and pixels are bounded before decoding.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gateway.domain.errors import Fault, RequestError
from gateway.domain.manifest import Preprocess, TensorSpec, fits
from gateway.domain.tensor import Array, Tensor
from gateway.engine.settings import EngineSettings
from gateway.tasks.audio_input import decode_recordings
from gateway.tasks.frame import Frame, place
from gateway.tasks.frames_yuv import split_planes, to_gray, to_rgb
from gateway.tasks.input_values import cast_values

if TYPE_CHECKING:
    from PIL import Image

_MODES = {"gray": "L", "rgb": "RGB", "bgr": "RGB"}
_NOT_CHANNELS_FIRST = ("NHWC",)


def decode_inputs(
    inputs: Mapping[str, Tensor], encoded: Sequence[TensorSpec], settings: EngineSettings
) -> tuple[dict[str, Tensor], tuple[Frame, ...]]:
    """Return the inputs with those in `encoded` decoded, and the places of the images of the first images of these.

    Raises as `decode_images` and `decode_recordings` do.
    """
    decoded, frames = dict(inputs), list[tuple[Frame, ...]]()
    for spec in encoded:
        contents = inputs[spec.name].array
        if spec.audio is not None:
            array = decode_recordings([bytes(content) for content in contents.ravel()], spec, spec.audio)
        else:
            array, placed = decode_images(contents, spec, settings)
            frames.append(placed)
        decoded[spec.name] = Tensor(spec.datatype, array)
    return decoded, frames[0] if frames else ()


def decode_images(encoded: Array, spec: TensorSpec, settings: EngineSettings) -> tuple[Array, tuple[Frame, ...]]:
    """Return a tensor [n, …] in the spec's datatype and layout from n encoded images, and their places in it.

    Raises RequestError: INVALID if an image is not in a declared format, TOO_LARGE if it exceeds the bounds.
    """
    if spec.preprocess is None:
        raise RequestError(Fault.INVALID, f"input '{spec.name}' does not take encoded images")
    images, frames, pixels_left = [], list[Frame](), settings.image_pixels
    for index, element in enumerate(encoded.ravel()):
        where = f"image {index} of input '{spec.name}'"
        image, frame, pixels = _decode(bytes(element), where, spec, settings, pixels_left)
        images.append(image)
        frames.append(frame)
        pixels_left -= pixels
    try:
        batch = np.stack(images)
    except ValueError:
        raise RequestError(Fault.INVALID, f"the images for input '{spec.name}' differ in size") from None
    wanted = spec.shape[1:]
    if not fits(batch.shape[1:], wanted):
        raise RequestError(
            Fault.INVALID, f"images for input '{spec.name}' decode to {list(batch.shape[1:])}, expected {list(wanted)}"
        )
    return batch, tuple(frames)


def _decode(
    content: bytes, where: str, spec: TensorSpec, settings: EngineSettings, pixels_left: int
) -> tuple[Array, Frame, int]:
    """Return the image as the spec requires it, its place in that, and the number of pixels that were decoded."""
    preprocess = spec.preprocess or Preprocess(())
    if len(content) > settings.image_bytes:
        raise RequestError(
            Fault.TOO_LARGE, f"{where} has {len(content)} bytes, at most {settings.image_bytes} are read"
        )
    image, size = (_frame if preprocess.frame else _open)(content, preprocess, where, pixels_left)
    frame = place(preprocess.fit, size, preprocess.resize[::-1] if preprocess.resize else size)
    pixels = np.asarray(_fit(image, preprocess), np.float32)
    if preprocess.color == "bgr":
        pixels = pixels[:, :, ::-1]
    if pixels.ndim == 2:
        pixels = pixels[:, :, np.newaxis]
    values = pixels * np.float32(preprocess.scale) - np.asarray(preprocess.mean, np.float32)
    values /= np.asarray(preprocess.std, np.float32)
    ordered = values if spec.layout in _NOT_CHANNELS_FIRST else values.transpose(2, 0, 1)
    return cast_values(ordered, spec.datatype.dtype), frame, image.width * image.height


def _frame(content: bytes, preprocess: Preprocess, where: str, pixel_limit: int) -> tuple[Image.Image, tuple[int, int]]:
    """Return a raw frame as an image, and its size (width, height)."""
    from PIL import Image

    height, width = size = preprocess.frame or (0, 0)
    _check_pixels(height * width, pixel_limit, where)
    planes = split_planes(content, preprocess.decode[0], size, where)
    if preprocess.color == "gray":
        pixels = to_gray(planes, preprocess.color_range)
    else:
        pixels = to_rgb(planes, preprocess.color_matrix, preprocess.color_range)
    return Image.fromarray(pixels), (width, height)


def _open(content: bytes, preprocess: Preprocess, where: str, pixel_limit: int) -> tuple[Image.Image, tuple[int, int]]:
    """Return the decoded image, perhaps at a smaller scale, and its own size (width, height)."""
    from PIL import Image, UnidentifiedImageError

    formats = tuple(name.upper() for name in preprocess.decode)
    try:
        image: Image.Image = Image.open(io.BytesIO(content), formats=formats)
        size = image.size
        _check_pixels(image.width * image.height, pixel_limit, where)
        mode = _MODES[preprocess.color]
        if preprocess.resize:
            image.draft(mode, _draft_size(image.size, preprocess.resize))
        image.load()
        return _in_mode(image, mode), size
    except UnidentifiedImageError:
        wanted = " or ".join(preprocess.decode)
        raise RequestError(Fault.INVALID, f"{where} is not a {wanted} image") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise RequestError(Fault.TOO_LARGE, f"{where} decodes to more than {pixel_limit} pixels") from None
    except (OSError, ValueError, SyntaxError, EOFError, KeyError, IndexError, TypeError, OverflowError) as error:
        raise RequestError(Fault.INVALID, f"{where} is broken: {error}") from None


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    from PIL import Image

    if image.mode.startswith("I"):  # 16-bit PNG: `convert` would clip at 255 instead of scaling
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image if image.mode == mode else image.convert(mode)


def _check_pixels(pixels: int, limit: int, where: str) -> None:
    if pixels > limit:
        raise RequestError(Fault.TOO_LARGE, f"{where} has {pixels} pixels, at most {limit} more are decoded for it")


def _draft_size(size: tuple[int, int], wanted: tuple[int, int]) -> tuple[int, int]:
    """Return the least size (width, height) of a scaled decode: the size that any fit needs on both sides."""
    scale = max(wanted[1] / size[0], wanted[0] / size[1])
    return max(1, int(size[0] * scale)), max(1, int(size[1] * scale))


def _fit(image: Image.Image, preprocess: Preprocess) -> Image.Image:
    from PIL import Image, ImageOps

    if preprocess.resize is None or image.size == preprocess.resize[::-1]:
        return image
    size = preprocess.resize[::-1]
    if preprocess.fit == "letterbox":
        color = (preprocess.pad_value,) * preprocess.channels
        return ImageOps.pad(image, size, Image.Resampling.BILINEAR, color)
    if preprocess.fit == "crop":
        return ImageOps.fit(image, size, Image.Resampling.BILINEAR)
    return image.resize(size, Image.Resampling.BILINEAR)
