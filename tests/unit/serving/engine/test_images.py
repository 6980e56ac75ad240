"""Encoded images to input tensors: good, broken, hostile; every fit, colour and layout, pixel by pixel."""

from __future__ import annotations

import dataclasses
import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import Preprocess, TensorSpec
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.engine.images import decode_images
from gateway.serving.engine.orientation import read_orientation
from gateway.serving.engine.settings import EngineSettings
from tests.simulators.daemon import ROOT
from tests.simulators.engine_rig import limits_with
from tests.simulators.examples import examples
from tests.simulators.images_made import ORIENTATION, elements, encoded, exif, stored_turned

SETTINGS = EngineSettings()
RGB = np.array([[[250, 10, 20], [30, 200, 40]], [[50, 60, 220], [70, 80, 90]]], np.uint8)
GRAY = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40


def spec(
    shape: tuple[int, ...] = (-1, -1, -1, -1), layout: str = "", datatype: Datatype = Datatype.FP32, **how: object
) -> TensorSpec:
    return TensorSpec("x", datatype, shape, layout, preprocess=Preprocess(("png", "jpeg"), **how))  # type: ignore[arg-type]


def decode(content: bytes, wanted: TensorSpec, bounds: EngineSettings = SETTINGS) -> Array:
    return decode_images(elements(content), wanted, bounds)[0][0]


def fault_of(content: bytes, wanted: TensorSpec, bounds: EngineSettings = SETTINGS) -> RequestError:
    with pytest.raises(RequestError) as error:
        decode(content, wanted, bounds)
    return error.value


def png_of(width: int, height: int, data: bytes = b"") -> bytes:
    """Return a PNG whose header claims any size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def test_rgb_png_is_exact_channels_first() -> None:
    assert np.array_equal(decode(encoded(RGB), spec()), RGB.transpose(2, 0, 1))


def test_channels_last_and_bgr() -> None:
    assert np.array_equal(decode(encoded(RGB), spec(layout="NHWC", color="bgr")), RGB[:, :, ::-1])


def test_gray_and_scale_and_mean() -> None:
    got = decode(encoded(GRAY), spec(color="gray", scale=0.5, mean=(3.0,)))
    assert np.array_equal(got, GRAY[np.newaxis] * np.float32(0.5) - 3)
    assert got.dtype == np.float32


def test_a_colour_image_for_a_gray_input_and_the_other_way_round() -> None:
    gray = decode(encoded(np.full((2, 2, 3), 90, np.uint8)), spec(color="gray"))
    assert np.array_equal(gray, np.full((1, 2, 2), 90))
    assert np.array_equal(decode(encoded(GRAY), spec()), np.repeat(GRAY[np.newaxis], 3, axis=0))


def test_sixteen_bits_a_pixel_are_scaled_not_clipped() -> None:
    pixels = np.array([[0, 256, 32768, 65535]], np.uint16)
    assert decode(encoded(pixels), spec(color="gray")).ravel().tolist() == [0, 1, 128, 255]


def test_jpeg_is_near_enough_also_when_scaled_while_decoded() -> None:
    flat = encoded(np.full((256, 512, 3), (200, 100, 50), np.uint8), "jpeg", quality=95)
    got = decode(flat, spec(resize=(16, 32)))
    assert got.shape == (3, 16, 32)
    assert np.abs(got - np.array([200, 100, 50])[:, None, None]).max() <= 3


@pytest.mark.parametrize(
    ("datatype", "mean", "scale", "pixels", "expected"),
    [
        (Datatype.UINT8, 0.0, 1.0, [0, 128, 255], [0, 128, 255]),
        (Datatype.INT8, 128.0, 1.0, [0, 128, 255], [-128, 0, 127]),
        (Datatype.UINT8, 200.0, 1.0, [0, 128, 255], [0, 0, 55]),
        (Datatype.UINT8, 0.0, 0.25, [3, 7], [1, 2]),
    ],
)
def test_integer_inputs_are_rounded_and_kept_in_range(
    datatype: Datatype, mean: float, scale: float, pixels: list[int], expected: list[int]
) -> None:
    image = encoded(np.array([pixels], np.uint8))
    got = decode(image, spec(color="gray", mean=(mean,), scale=scale, datatype=datatype))
    assert (got.dtype, got.ravel().tolist()) == (datatype.dtype, expected)


def wide() -> bytes:
    """Return an image 8 wide, 4 high: left half 0, right half 200."""
    pixels = np.zeros((4, 8), np.uint8)
    pixels[:, 4:] = 200
    return encoded(pixels)


@pytest.mark.parametrize("colour", [0, 9])
def test_letterbox_keeps_the_aspect_and_fills_with_its_colour(colour: int) -> None:
    got = decode(wide(), spec(color="gray", resize=(8, 8), fit="letterbox", pad_value=colour))[0]
    assert np.array_equal(got[2:6], np.repeat([[0, 0, 0, 0, 200, 200, 200, 200]], 4, axis=0))
    assert (got[[0, 1, 6, 7]] == colour).all()


def test_letterbox_on_the_other_axis() -> None:
    tall = encoded(np.full((8, 4), 50, np.uint8))
    got = decode(tall, spec(color="gray", resize=(4, 4), fit="letterbox"))[0]
    assert got.tolist() == [[0, 50, 50, 0]] * 4


def test_a_letterbox_may_pad_on_one_side_only() -> None:
    for pixels, rows in ((np.full((4, 8), 50, np.uint8), slice(2)), (np.full((8, 4), 50, np.uint8), slice(4))):
        how = {"color": "gray", "resize": (4, 4), "fit": "letterbox", "align": "top-left", "pad_value": 9}
        (batch, (frame,)) = decode_images(elements(encoded(pixels)), spec(**how), SETTINGS)
        shown = batch[0, 0, rows, : 4 if len(pixels) == 4 else 2]
        assert (shown == 50).all()
        assert (batch == 50).sum() == shown.size
        assert frame.boxes(np.array([[0.0, 0.0, 2.0, 2.0]])).tolist() == [[0, 0, 4, 4]]


def test_crop_takes_the_middle() -> None:
    pixels = np.zeros((4, 8), np.uint8)
    pixels[:, 2:6] = 100
    got = decode(encoded(pixels), spec(color="gray", resize=(4, 4), fit="crop"))[0]
    assert got.tolist() == [[100] * 4] * 4


def test_stretch_changes_the_aspect() -> None:
    got = decode(wide(), spec(color="gray", resize=(4, 4), fit="stretch"))[0]
    assert got.shape == (4, 4)
    assert got[:, 0].tolist() == [0] * 4
    assert got[:, 3].tolist() == [200] * 4


SIDES_PX = st.tuples(st.integers(1, 40), st.integers(1, 40))


@pytest.mark.parametrize("fit", ["stretch", "letterbox", "crop"])
@given(size=SIDES_PX, wanted=SIDES_PX, form=st.sampled_from(["png", "jpeg"]))
@settings(max_examples=40, deadline=None)
def test_any_size_becomes_the_wanted_size(fit: str, size: tuple[int, int], wanted: tuple[int, int], form: str) -> None:
    content = encoded(np.full((*size, 3), 128, np.uint8), form)
    got = decode(content, spec((-1, 3, *wanted), resize=wanted, fit=fit))
    assert got.shape == (3, *wanted)
    assert got.max() <= 131


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("color", ["gray", "rgb", "bgr"])
@given(size=SIDES_PX, wanted=SIDES_PX)
@settings(max_examples=20, deadline=None)
def test_fits_are_those_of_pillow(color: str, layout: str, size: tuple[int, int], wanted: tuple[int, int]) -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (*size, 3), np.uint8)
    image = Image.fromarray(pixels).convert("L" if color == "gray" else "RGB")
    border: tuple[int, ...] = (7,) if color == "gray" else (7, 7, 7)
    linear, shape = Image.Resampling.BILINEAR, wanted[::-1]
    scaled = [side * min(wanted[0] / size[0], wanted[1] / size[1]) for side in size]
    assume(all(side >= 1 and abs(side % 1 - 0.5) > 1e-6 for side in scaled))  # Pillow drops images without rows
    for fit, expected in (
        ("stretch", image.resize(shape, linear)),
        ("letterbox", ImageOps.pad(image, shape, linear, border)),
        ("crop", ImageOps.fit(image, shape, linear)),
        ("share", ImageOps.fit(image, shape, Image.Resampling.BICUBIC, bleed=0.125)),
    ):
        how: dict[str, object] = {"fit": fit, "pad_value": 7}
        if fit == "share":
            how = {"fit": "crop", "crop_share": 0.75, "resample": "bicubic"}
        got = decode(encoded(pixels), spec(layout=layout, color=color, resize=wanted, **how))
        rows = np.asarray(expected).reshape(*wanted, -1)[:, :, :: -1 if color == "bgr" else 1]
        assert np.array_equal(got, rows if layout == "NHWC" else rows.transpose(2, 0, 1))


def test_a_letterboxed_jpeg_is_decoded_at_the_scale_that_it_has_there() -> None:
    jpeg = encoded(np.full((160, 320, 3), 90, np.uint8), "jpeg")
    wanted, scaled = spec(resize=(40, 40), fit="letterbox"), 40 * 20
    bounds = EngineSettings(image_pixels=160 * 320 + scaled)  # for both: one at an eighth, then the header of the other
    assert decode_images(elements(jpeg, jpeg), wanted, bounds)[0].shape == (2, 3, 40, 40)


def test_nearest_takes_single_pixels_of_a_jpeg() -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::8] = 255
    jpeg = encoded(stripes, "jpeg", quality=100)
    whole = np.asarray(Image.open(io.BytesIO(jpeg)).resize((8, 8), Image.Resampling.NEAREST))
    assert np.array_equal(decode(jpeg, spec(layout="NHWC", resize=(8, 8), resample="nearest")), whole)


@pytest.mark.parametrize("fit", ["stretch", "letterbox", "crop"])
def test_scaled_decoding_moves_nothing(fit: str) -> None:
    """Sides that are no multiple of the scale end inside of the last scaled pixel."""
    slope = np.linspace(0, 255, 1025).astype(np.uint8)
    pixels = np.stack((np.broadcast_to(slope, (521, 1025)),) * 3, axis=2)
    wanted = spec(resize=(60, 128), fit=fit)
    got, exact = decode(encoded(pixels, "jpeg", quality=95), wanted), decode(encoded(pixels), wanted)
    assert np.abs(got - exact).max() < 1.5
    assert abs(float((got - exact).mean())) < 0.3


def test_many_images_become_one_batch_in_order() -> None:
    contents = [encoded(np.full((2, 2), value, np.uint8)) for value in (1, 2, 3)]
    got, _ = decode_images(elements(*contents).reshape(3, 1), spec(color="gray"), SETTINGS)
    assert got.shape == (3, 1, 2, 2)
    assert got[:, 0, 0, 0].tolist() == [1, 2, 3]


def test_images_that_differ_in_size_cannot_form_a_batch() -> None:
    both = elements(encoded(GRAY), encoded(RGB))
    with pytest.raises(RequestError, match="differ in size") as error:
        decode_images(both, spec(), SETTINGS)
    assert error.value.fault is Fault.INVALID


def test_a_size_the_model_does_not_take_is_named() -> None:
    error = fault_of(encoded(RGB), spec((-1, 3, 8, 8)))
    assert error.fault is Fault.INVALID
    assert "[3, 2, 2]" in error.message
    assert "[3, 8, 8]" in error.message


@pytest.mark.parametrize(
    "content",
    [b"", b"not an image", b"\xff\xd8\xff", encoded(RGB, "gif"), encoded(RGB, "bmp"), png_of(2, 2, b"\0")],
    ids=["empty", "text", "jpeg start", "gif", "bmp", "png without rows"],
)
def test_what_is_no_image_of_a_declared_format_is_invalid(content: bytes) -> None:
    error = fault_of(content, spec())
    assert error.fault is Fault.INVALID
    assert "image 0 of input 'x'" in error.message


def test_a_format_that_is_not_declared_is_refused() -> None:
    wanted = dataclasses.replace(spec(), preprocess=Preprocess(("png",)))
    assert "is not a png image" in fault_of(encoded(RGB, "jpeg"), wanted).message


@pytest.mark.parametrize("form", ["png", "jpeg"])
def test_truncated_images_are_invalid(form: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    content = encoded(pixels, form)
    for keep in (0.1, 0.5, 0.9):
        assert fault_of(content[: int(len(content) * keep)], spec()).fault is Fault.INVALID


@pytest.mark.parametrize(
    ("width", "height"), [(10_000, 10_000), (13_000, 10_000), (60_000, 60_000), (2**31 - 1, 2**31 - 1)]
)
def test_a_bomb_is_refused_by_its_header(width: int, height: int) -> None:
    assert fault_of(png_of(width, height), spec()).fault is Fault.TOO_LARGE


def test_bounds_are_the_settings() -> None:
    content = encoded(np.zeros((10, 10), np.uint8))
    assert fault_of(content, spec(), EngineSettings(image_pixels=99)).fault is Fault.TOO_LARGE
    assert fault_of(content, spec(), limits_with(image_bytes=len(content) - 1)).fault is Fault.TOO_LARGE
    assert decode(content, spec(), limits_with(image_pixels=100, image_bytes=len(content))).shape == (
        3,
        10,
        10,
    )


DAMAGEABLE = {
    form: encoded(np.random.default_rng(1).integers(0, 255, (24, 24, 3), np.uint8), form) for form in ("png", "jpeg")
}


@pytest.mark.parametrize("form", ["png", "jpeg"])
@given(data=st.data())
@settings(max_examples=examples(150), deadline=None)
@pytest.mark.filterwarnings("default::UserWarning")
def test_a_damaged_image_is_answered_or_refused_and_nothing_else(form: str, data: st.DataObject) -> None:
    content = bytearray(DAMAGEABLE[form])
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=8)):
        content[place] = data.draw(st.integers(0, 255))
    assert outcome(bytes(content)) in {(3, 8, 8), Fault.INVALID, Fault.TOO_LARGE}


def outcome(content: bytes) -> tuple[int, ...] | Fault:
    try:
        return decode(content, spec(resize=(8, 8))).shape
    except RequestError as error:
        return error.fault


def raw_spec(form: str, size: tuple[int, int], **how: object) -> TensorSpec:
    preprocess = Preprocess((form,), frame=size, **how)  # type: ignore[arg-type]
    return TensorSpec("x", Datatype.FP32, (-1, -1, -1, -1), "NHWC", preprocess=preprocess)


@pytest.mark.parametrize(("form", "code"), [("nv12", cv2.COLOR_YUV2RGB_NV12), ("i420", cv2.COLOR_YUV2RGB_I420)])
def test_raw_frames_are_decoded_as_by_opencv(form: str, code: int) -> None:
    frame = np.random.default_rng(2).integers(16, 236, (12, 10), np.uint8)
    got = decode(frame.tobytes(), raw_spec(form, (8, 10)))
    assert np.abs(got - cv2.cvtColor(frame, code)).max() <= 1
    assert np.array_equal(decode(frame.tobytes(), raw_spec(form, (8, 10), color="bgr")), got[:, :, ::-1])


def test_a_raw_frame_is_fitted_like_any_image() -> None:
    packed = np.full((4, 8, 2), (235, 128), np.uint8)
    wanted = raw_spec(
        "yuyv", (4, 8), resize=(8, 8), fit="letterbox", pad_value=114, scale=1 / 255, mean=(0.5,), std=(0.5,)
    )
    got = decode(packed.tobytes(), wanted)
    assert np.allclose(got[2:6], 1.0)
    assert np.allclose(got[[0, 1, 6, 7]], (114 / 255 - 0.5) / 0.5)


def smooth_frame(form: str, height: int, width: int) -> bytes:
    """Return a frame of soft shapes, whose colours RGB can hold."""
    y, x = np.mgrid[:height, :width]
    luma = 120 + 60 * np.sin(x / 17) * np.cos(y / 11)
    u, v = 128 + 30 * np.sin(x / 23 + y / 19), 128 + 30 * np.cos(x / 29)
    if form == "yuyv":
        packed = np.stack((luma[:, ::2], u[:, ::2], luma[:, 1::2], v[:, ::2]), axis=2)
        return packed.astype(np.uint8).tobytes()
    halves = [plane[::2, ::2] for plane in (u, v)]
    chroma = np.stack(halves, axis=2 if form == "nv12" else 0)
    return luma.astype(np.uint8).tobytes() + chroma.astype(np.uint8).tobytes()


@pytest.mark.parametrize("form", ["nv12", "i420", "yuyv"])
@pytest.mark.parametrize(
    "how",
    [{"fit": "stretch"}, {"fit": "letterbox"}, {"fit": "crop", "crop_share": 0.7}, {"fit": "stretch", "color": "gray"}],
)
def test_a_frame_that_becomes_smaller_is_that_of_a_whole_conversion(form: str, how: dict[str, object]) -> None:
    content = smooth_frame(form, 180, 320)
    whole = decode(content, raw_spec(form, (180, 320), **{key: how[key] for key in how if key == "color"}))
    image = encoded(np.squeeze(whole).astype(np.uint8))
    expected = decode(image, spec(layout="NHWC", resize=(60, 80), **how))
    got = decode(content, raw_spec(form, (180, 320), resize=(60, 80), **how))
    assert np.abs(got - expected).mean() < 0.7
    assert np.abs(got - expected).max() <= 4


def test_a_gray_input_takes_the_luma() -> None:
    frame = np.arange(24, dtype=np.uint8).reshape(6, 4)
    wanted = raw_spec("i420", (4, 4), color="gray", color_range="full")
    assert np.array_equal(decode(frame.tobytes(), wanted)[:, :, 0], frame[:4])


def test_a_raw_frame_of_another_size_is_refused() -> None:
    error = fault_of(bytes(100), raw_spec("nv12", (8, 10)))
    assert error.fault is Fault.INVALID
    assert "image 0 of input 'x' has 100 bytes, but a frame of 10 by 8 pixels in nv12 has 120" in error.message
    assert fault_of(bytes(120), raw_spec("nv12", (8, 10)), EngineSettings(image_pixels=79)).fault is Fault.TOO_LARGE


def test_std_per_channel() -> None:
    got = decode(encoded(RGB), spec(layout="NHWC", mean=(1.0, 2.0, 3.0), std=(1.0, 2.0, 4.0)))
    assert np.array_equal(
        got, (RGB.astype(np.float32) - np.array([1, 2, 3], np.float32)) / np.array([1, 2, 4], np.float32)
    )


NOISE = np.random.default_rng(1).integers(0, 256, (22, 34, 3), np.uint8)
RAMP = np.repeat(np.linspace(0, 255, 331, dtype=np.uint8)[None, :], 203, axis=0)
"""A ramp from left to right, whose sides are no multiples of 8."""


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"resize": (8, 8), "layout": "NHWC"},
        {"resize": (16, 16), "fit": "letterbox", "resample": "nearest"},
        {"resize": (8, 12), "fit": "crop", "crop_share": 0.7, "color": "gray"},
    ],
)
def test_an_image_is_read_as_viewers_show_it(orientation: int, how: dict[str, object]) -> None:
    wanted, frames = decode_images(elements(encoded(NOISE)), spec(**how), SETTINGS)  # type: ignore[arg-type]
    stored = stored_turned(NOISE, orientation)
    assert np.array_equal(np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(stored)))), NOISE)
    got, turned = decode_images(elements(stored), spec(**how), SETTINGS)  # type: ignore[arg-type]
    assert np.array_equal(got, wanted)
    assert turned == (dataclasses.replace(frames[0], turned=orientation != 1),)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("pixels", [RAMP, np.ascontiguousarray(RAMP.T)], ids=["across", "down"])
def test_a_jpeg_that_is_scaled_while_decoded_is_turned_in_its_place(orientation: int, pixels: Array) -> None:
    wanted = spec(resize=(pixels.shape[0] // 8, pixels.shape[1] // 8), color="gray")
    stored = stored_turned(pixels, orientation, "jpeg", quality=98)
    assert np.abs(decode(stored, wanted) - decode(encoded(pixels), wanted)).max() <= 2


def test_the_manifest_may_ask_for_the_stored_image() -> None:
    got, frames = decode_images(elements(stored_turned(NOISE, 6)), spec(orientation="stored"), SETTINGS)
    assert (frames[0].width, frames[0].height, frames[0].turned) == (22, 34, False)
    assert np.array_equal(got[0], np.rot90(NOISE).transpose(2, 0, 1))


@pytest.mark.parametrize("form", ["png", "jpeg"])
def test_the_orientation_of_a_thumbnail_turns_nothing(form: str) -> None:
    content = encoded(NOISE, form, exif=exif((0x0100, 34), thumbnail=6))
    assert not decode_images(elements(content), spec(), SETTINGS)[1][0].turned
    assert read_orientation(exif((0x0100, 34), (ORIENTATION, 8), thumbnail=6, order=">")) == 8


def test_exif_data_behind_the_pixels_of_a_png_count() -> None:
    before = stored_turned(NOISE, 8)
    start = before.index(b"eXIf") - 4
    length = 12 + int.from_bytes(before[start : start + 4], "big")
    end = before.index(b"IEND") - 4
    behind = before[:start] + before[start + length : end] + before[start : start + length] + before[end:]
    assert np.array_equal(decode(behind, spec()), NOISE.transpose(2, 0, 1))


@given(st.binary(max_size=80) | st.integers(0, 30).map(lambda end: exif((ORIENTATION, 6))[:end]))
@settings(max_examples=examples(100), deadline=None)
def test_damaged_exif_data_fail_no_request(data: bytes) -> None:
    assert read_orientation(data) in range(1, 9)
    got = decode(encoded(NOISE, exif=b"Exif\0\0" + data.removeprefix(b"Exif\0\0")), spec())
    assert got.size == NOISE.size


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_orientations_that_do_not_exist_turn_nothing(value: int) -> None:
    assert read_orientation(exif((ORIENTATION, value))) == 1


def test_damaged_tags_are_no_warnings(tmp_path: Path) -> None:
    tags = b"".join(struct.pack("<HHII", 1000 + tag, 1, 2**20, 2**20) for tag in range(50))
    file = io.BytesIO()
    Image.fromarray(RGB).save(file, "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 50) + tags)
    content = file.getvalue()
    without_density = content[:2] + content[4 + int.from_bytes(content[4:6], "big") :]  # else EXIF is not read for it
    (tmp_path / "damaged.jpg").write_bytes(without_density)
    program = "import sys; import gateway.serving.engine.images; from PIL import Image; Image.open(sys.argv[1]).load()"
    words = [sys.executable, "-c", program, str(tmp_path / "damaged.jpg")]
    assert subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stderr == ""
