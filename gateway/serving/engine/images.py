"""Decoding of encoded images and raw frames to an input tensor as the manifest declares.

The steps are decode, turn upright, colour, resize, fit, scale, mean and std. Pillow decodes; a JPEG is decoded at the
smallest scale that still covers the part of the input that it fills (`draft`, decision 0056). Raw frames of cameras
have the declared size. Data from a peer is untrusted: bytes and pixels are bounded before decoding.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import IMAGE_FORMATS, Preprocess, TensorSpec, fits
from gateway.common.domain.tensor import Array, Tensor
from gateway.serving.engine.orientation import STORED, mirrored, orientation_of, read_orientation, upright, upright_size
from gateway.serving.engine.settings import EngineSettings
from gateway.serving.tasks.audio_input import decode_recordings
from gateway.serving.tasks.frame import Frame, place
from gateway.serving.tasks.frames_yuv import Planes, split_planes, to_gray, to_rgb
from gateway.serving.tasks.input_values import cast_values
from gateway.serving.tasks.views import View

if TYPE_CHECKING:
    from PIL import Image

_MODES = {"gray": "L", "rgb": "RGB", "bgr": "RGB"}
_BANDS = {"gray": "L", "rgb": "RGB", "bgr": "BGR"}
REDUCING_GAP = 2.0
"""Gap for parts of an image in its full size: what Pillow calls indistinguishable is 3, a scaled decode has less."""
HEADER_PIXELS = 178_956_970
"""Most pixels of an image of which only the header is read: Pillow opens no larger one."""
_CHANNELS_LAST = ("NHWC",)
warnings.filterwarnings("ignore", module=r"PIL\.")  # one for each damaged tag of a caller's image


@dataclass(frozen=True, slots=True)
class _ShownPart:
    """Part of an image: `box` (left, top, right, bottom) in its pixels, `size` (width, height) in the input."""

    box: tuple[float, float, float, float]
    size: tuple[int, int]

    @property
    def shrinks(self) -> bool:
        """Return True if both sides become smaller."""
        left, top, right, bottom = self.box
        return self.size[0] < right - left and self.size[1] < bottom - top

    def moved(self, across: float, down: float) -> _ShownPart:
        """Return the part in an image that has more pixels left of it and above it."""
        left, top, right, bottom = self.box
        return replace(self, box=(left + across, top + down, right + across, bottom + down))


@dataclass(frozen=True, slots=True)
class _Decoded:
    """Decoded image, the `scale` at which it was decoded, its place in the input, and the part that the input shows."""

    image: Image.Image
    scale: float
    frame: Frame
    part: _ShownPart


def decode_inputs(
    inputs: Mapping[str, Tensor], encoded: Sequence[TensorSpec], settings: EngineSettings
) -> tuple[dict[str, Tensor], tuple[Frame, ...], int]:
    """Return the inputs with those in `encoded` decoded, the places of the first one's images, and how many turned.

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
    return decoded, frames[0] if frames else (), sum(frame.turned for placed in frames for frame in placed)


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
        batch = images[0][np.newaxis] if len(images) == 1 else np.stack(images)
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
    decode = _decode_frame if preprocess.frame else _decode_image
    image, frame, decoded_pixels = decode(content, preprocess, where, pixels_left)
    return _as_input(image, frame, spec, preprocess), frame, decoded_pixels


def open_image(content: bytes, where: str, settings: EngineSettings, pixels_left: int) -> Image.Image:
    """Return an encoded image as RGB, upright, in its own size, of `pixels_left` at most. `where` names it in errors.

    Raises RequestError: INVALID if it is no JPEG or PNG image, TOO_LARGE if it exceeds the bounds.
    """
    if len(content) > settings.image_bytes:
        words = f"{where} has {len(content)} bytes, at most {settings.image_bytes} are read"
        raise RequestError(Fault.TOO_LARGE, words)
    return _open(content, Preprocess(IMAGE_FORMATS), where, pixels_left).image


def image_size(content: bytes, row: int, name: str) -> tuple[int, int]:
    """Return width and height of an upright JPEG or PNG image of an input, of its header.

    Raises RequestError: INVALID if it is none, TOO_LARGE if it has far too many pixels.
    """
    from PIL import Image

    with _refusals(f"image {row} of input '{name}'", IMAGE_FORMATS, HEADER_PIXELS):
        image = Image.open(io.BytesIO(content), formats=[each.upper() for each in IMAGE_FORMATS])
        exif = image.info.get("exif")
        if not exif and image.format == "PNG":  # it may follow the pixels
            exif = content.rpartition(b"eXIf")[2]
        return upright_size(image.size, read_orientation(exif or b""))


def views_as_input(views: Iterable[View], spec: TensorSpec) -> tuple[Array, tuple[Frame, ...]]:
    """Return parts of images as a tensor [n, …] for an input that declares its preprocessing, and their places in it.

    Places are in pixels of each part. Raises RequestError INVALID if they differ in size and the input resizes none.
    """
    from PIL import Image

    preprocess, images, frames = spec.preprocess or Preprocess(()), list[Array](), list[Frame]()
    for view in views:
        image: Image.Image = view.image
        size = (max(1, round(view.size[0])), max(1, round(view.size[1])))
        frame, part = _placed(size, preprocess)
        if view.corners is None:
            left, top, right, bottom = map(int, view.box)
            if (left, top, right, bottom) != (0, 0, *image.size):
                image = image.crop((left, top, right, bottom))  # else pixels around it are mixed in
        else:
            corners = view.corners[[0, 3, 2, 1]].ravel().tolist()  # Pillow begins top left and goes down
            image = image.transform(size, Image.Transform.QUAD, corners, Image.Resampling.BILINEAR)
        gap = REDUCING_GAP if preprocess.resample != "nearest" else None
        shown = _resized(_in_mode(image, _MODES[preprocess.color]), part, (1.0, 1.0), preprocess.resample, gap)
        images.append(_as_input(shown, frame, spec, preprocess))
        frames.append(frame)
    try:
        return np.stack(images), tuple(frames)
    except ValueError:
        raise RequestError(Fault.INVALID, f"the images for input '{spec.name}' differ in size") from None


def _as_input(image: Image.Image, frame: Frame, spec: TensorSpec, preprocess: Preprocess) -> Array:
    """Return what the input shows of an image as its values, [channels, height, width] or as its layout says."""
    first = spec.layout not in _CHANNELS_LAST
    size = preprocess.resize[::-1] if preprocess.resize else (frame.width, frame.height)
    pixels = _pixels(image, size, preprocess, channels_first=first)
    # (pixels · scale − mean) / std; steps that change nothing are left out. The last axis of the arrays is long in both
    # layouts: with three channels there, they took seven times as long.
    table = values = pixels.reshape(len(pixels), -1)
    for operation, operand, neutral in (
        (np.multiply, (preprocess.scale,), 1.0),
        (np.subtract, preprocess.mean, 0.0),
        (np.divide, preprocess.std, 1.0),
    ):
        if any(value != neutral for value in operand):
            channels = np.resize(np.asarray(operand, np.float32), preprocess.channels)
            aligned = channels[:, np.newaxis] if first else np.tile(channels, pixels.shape[1])
            values = operation(values, aligned, out=None if values is table else values, dtype=np.float32)
    return cast_values(values.reshape(pixels.shape), spec.datatype.dtype)


def _decode_image(
    content: bytes, preprocess: Preprocess, where: str, pixel_limit: int
) -> tuple[Image.Image, Frame, int]:
    """Return the part of an encoded image that the input shows, its place, and the number of decoded pixels."""
    decoded = _open(content, preprocess, where, pixel_limit)
    image = _resized(decoded.image, decoded.part, (decoded.scale, decoded.scale), preprocess.resample)
    return image, decoded.frame, decoded.image.width * decoded.image.height


def _decode_frame(
    content: bytes, preprocess: Preprocess, where: str, pixel_limit: int
) -> tuple[Image.Image, Frame, int]:
    """Return the part of a raw frame that the input shows, its place, and the number of pixels.

    A part that becomes smaller is resized before its colours are converted: then fewer pixels are converted, and the
    result differs by rounding and by colours that RGB cannot hold.
    """
    from PIL import Image

    height, width = size = preprocess.frame or (0, 0)
    _check_pixels(height * width, pixel_limit, where)
    planes = split_planes(content, preprocess.decode[0], size, where)
    frame, part = _placed((width, height), preprocess)
    if part.shrinks:
        planes = Planes(*(_resized_plane(plane, part, size, preprocess.resample) for plane in planes))
    if preprocess.color == "gray":
        pixels = to_gray(planes, preprocess.color_range)
    else:
        pixels = to_rgb(planes, preprocess.color_matrix, preprocess.color_range)
    image = Image.fromarray(pixels)
    if not part.shrinks:
        image = _resized(image, part, (1.0, 1.0), preprocess.resample)
    return image, frame, height * width


def _open(content: bytes, preprocess: Preprocess, where: str, pixel_limit: int) -> _Decoded:
    """Return the decoded image, perhaps at a smaller scale, turned upright if the manifest does not say otherwise."""
    from PIL import Image

    formats = tuple(name.upper() for name in preprocess.decode)
    with _refusals(where, preprocess.decode, pixel_limit):
        image: Image.Image = Image.open(io.BytesIO(content), formats=formats)
        stored = image.size
        _check_pixels(image.width * image.height, pixel_limit, where)
        mode = _MODES[preprocess.color]
        if image.format == "PNG":
            image.load()  # its EXIF data may follow the pixels
        turn = orientation_of(image) if preprocess.orientation == "upright" else STORED
        size = upright_size(stored, turn)
        frame, part = _placed(size, preprocess)
        scales = preprocess.resize and preprocess.resample != "nearest"  # which takes single pixels, not averages
        # The least size of a scaled decode is that of the whole image in the input.
        least = max(1, int(frame.width * frame.scale_x)), max(1, int(frame.height * frame.scale_y))
        drafted = image.draft(mode, upright_size(least, turn)) if scales else None
        image.load()
        image, scale = upright(_in_mode(image, mode), turn), drafted[1][2] / stored[0] if drafted else 1.0
        # a scaled size is rounded up: what is too much at the right end of the stored rows may be on the left now
        excess = (side / scale - whole for side, whole in zip(image.size, size, strict=True))
        part = part.moved(*(more if ends else 0.0 for more, ends in zip(excess, mirrored(turn), strict=True)))
        return _Decoded(image, scale, replace(frame, turned=turn != STORED), part)


@contextmanager
def _refusals(where: str, decode: Sequence[str], pixel_limit: int) -> Iterator[None]:
    """Raise RequestError for what Pillow raises for data that is no image, or broken."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except UnidentifiedImageError:
        wanted = " or ".join(decode)
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


def _placed(size: tuple[int, int], preprocess: Preprocess) -> tuple[Frame, _ShownPart]:
    """Return the place of an image of `size` (width, height) in the input, and the part of it that the input shows."""
    input_size = preprocess.resize[::-1] if preprocess.resize else size
    frame = place(preprocess.fit, size, input_size, preprocess.crop_share, preprocess.align)
    starts, ends, lengths = list[float](), list[float](), list[int]()
    for whole, scale, offset, side in zip(
        size, (frame.scale_x, frame.scale_y), (frame.left, frame.top), input_size, strict=True
    ):
        starts.append(max(0.0, -offset / scale))
        ends.append(min(float(whole), starts[-1] + side / scale))
        lengths.append(max(1, min(side, round(whole * scale))))
    return frame, _ShownPart((starts[0], starts[1], ends[0], ends[1]), (lengths[0], lengths[1]))


def _resized(
    image: Image.Image, part: _ShownPart, scales: tuple[float, float], resample: str, gap: float | None = None
) -> Image.Image:
    """Return a part of an image that has `scales` times the width and height of the original.

    `gap`: pixels are averaged first while the part is more than so many times as large as it is shown.
    """
    from PIL import Image

    (left, top, right, bottom), (across, down) = part.box, scales
    box = (left * across, top * down, right * across, bottom * down)
    if (*box, *part.size) == (0, 0, *image.size, *image.size):
        return image
    return image.resize(part.size, Image.Resampling[resample.upper()], box, gap)


def _resized_plane(plane: Array, part: _ShownPart, size: tuple[int, int], resample: str) -> Array:
    """Return a part of a plane of a frame of `size` (height, width)."""
    from PIL import Image

    scales = plane.shape[1] / size[1], plane.shape[0] / size[0]
    return np.asarray(_resized(Image.fromarray(np.ascontiguousarray(plane)), part, scales, resample))


def _pixels(image: Image.Image, input_size: tuple[int, int], preprocess: Preprocess, *, channels_first: bool) -> Array:
    """Return the pixels of the input in the order of its channels: the image, and a border where it ends."""
    (width, height), bands = input_size, _BANDS[preprocess.color]
    left, top = round((width - image.width) / 2), round((height - image.height) / 2)
    if preprocess.align == "top-left":
        left = top = 0
    rows, columns = slice(top, top + image.height), slice(left, left + image.width)
    shape = (len(bands), height, width) if channels_first else (height, width, len(bands))
    pixels = np.full(shape, preprocess.pad_value, np.uint8)
    if channels_first:
        for channel, band in zip(pixels, bands, strict=True):
            channel[rows, columns] = np.frombuffer(image.tobytes("raw", band), np.uint8).reshape(image.size[::-1])
    else:
        array = np.asarray(image).reshape(*image.size[::-1], len(bands))
        pixels[rows, columns] = array[:, :, ::-1] if preprocess.color == "bgr" else array
    return pixels
