"""Raw frames as OpenCV and Pillow convert them, BT.709 by the inverse of its definition, sizes, round trips."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Array
from gateway.serving.tasks.frames_yuv import Planes, frame_bytes, split_planes, to_gray, to_rgb

SIZE = (48, 64)
OPENCV = {"nv12": cv2.COLOR_YUV2RGB_NV12, "i420": cv2.COLOR_YUV2RGB_I420, "yuyv": cv2.COLOR_YUV2RGB_YUYV}
KR_KB = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}


def noise(form: str, seed: int = 0) -> Array:
    """Return a frame in OpenCV's shape, all samples in the limited range."""
    samples = np.random.default_rng(seed).integers(16, 236, frame_bytes(form, *SIZE), np.uint8)
    return samples.reshape(*SIZE, 2) if form == "yuyv" else samples.reshape(-1, SIZE[1])


def difference(first: Array, second: Array) -> int:
    return int(np.abs(first.astype(int) - second.astype(int)).max())


@pytest.mark.parametrize("form", OPENCV)
def test_frames_are_converted_as_by_opencv(form: str) -> None:
    frame = noise(form)
    planes = split_planes(frame.tobytes(), form, SIZE)
    assert difference(to_rgb(planes), cv2.cvtColor(frame, OPENCV[form])) <= 1


@pytest.mark.parametrize("form", OPENCV)
def test_the_luma_of_opencv_is_the_gray_of_full_range(form: str) -> None:
    frame = noise(form)
    code = cv2.COLOR_YUV2GRAY_YUYV if form == "yuyv" else cv2.COLOR_YUV2GRAY_NV12
    planes = split_planes(frame.tobytes(), form, SIZE)
    assert np.array_equal(to_gray(planes, "full"), cv2.cvtColor(frame, code))


def test_gray_expands_the_limited_range() -> None:
    luma = np.array([[0, 16], [235, 255]], np.uint8)
    assert to_gray(Planes(luma, luma[:1, :1], luma[:1, :1])).tolist() == [[0, 0], [255, 255]]


def test_full_range_is_that_of_jpeg() -> None:
    """Pillow's YCbCr is that of JFIF: BT.601, full range."""
    samples = np.random.default_rng(1).integers(0, 256, (*SIZE, 3), np.uint8)
    samples[:, 1::2, 1:] = samples[:, ::2, 1:]  # one chroma sample for two pixels
    planes = Planes(samples[:, :, 0], samples[:, ::2, 1], samples[:, ::2, 2])
    reference = np.asarray(Image.fromarray(samples, "YCbCr").convert("RGB"))
    assert difference(to_rgb(planes, "bt601", "full"), reference) <= 1


def encode(rgb: Array, matrix: str, levels: str) -> Array:
    """Return Y, U and V of colours [n, 3] by the definitions of BT.601 and BT.709, before rounding."""
    kr, kb = KR_KB[matrix]
    luma = rgb @ [kr, 1 - kr - kb, kb]
    u, v = (rgb[:, 2] - luma) / (2 * (1 - kb)), (rgb[:, 0] - luma) / (2 * (1 - kr))
    if levels == "full":
        return np.stack([luma, u + 128, v + 128], axis=1)
    return np.stack([luma * 219 / 255 + 16, u * 224 / 255 + 128, v * 224 / 255 + 128], axis=1)


COLOURS = arrays.arrays(np.uint8, (4, 3))


@given(COLOURS, st.sampled_from(["bt601", "bt709"]), st.sampled_from(["limited", "full"]))
def test_a_colour_comes_back(colours: Array, matrix: str, levels: str) -> None:
    """Rounding Y, U and V by up to a half moves a colour by at most 3 steps."""
    samples = np.rint(encode(colours.astype(float), matrix, levels)).clip(0, 255).astype(np.uint8)
    y, u, v = samples.T
    planes = Planes(np.repeat(y, 2)[np.newaxis], u[np.newaxis], v[np.newaxis])
    assert difference(to_rgb(planes, matrix, levels), np.repeat(colours, 2, axis=0)[np.newaxis]) <= 3


@given(arrays.arrays(np.uint8, (2, 2)), st.sampled_from(["bt601", "bt709"]), st.sampled_from(["limited", "full"]))
def test_no_sample_overflows(samples: Array, matrix: str, levels: str) -> None:
    """Every sample is converted as the formula says, cut to 0..255: samples outside the limited range, too."""
    planes = Planes(samples, samples[:1, :1], samples[:1, 1:])
    got = to_rgb(planes, matrix, levels)
    forward = encode(np.eye(3), matrix, levels) - encode(np.zeros((1, 3)), matrix, levels)
    zero = encode(np.zeros((1, 3)), matrix, levels)[0]
    for row, column in np.ndindex(2, 2):
        signal = np.array([samples[row, column], samples[0, 0], samples[0, 1]], float)
        wanted = np.linalg.solve(forward.T, signal - zero).clip(0, 255)
        assert np.abs(got[row, column] - wanted).max() <= 0.6


@pytest.mark.parametrize("form", OPENCV)
@pytest.mark.parametrize("change", [-1, 1])
def test_another_number_of_bytes_is_refused(form: str, change: int) -> None:
    with pytest.raises(
        RequestError, match=f"a frame of 64 by 48 pixels in {form} has {frame_bytes(form, *SIZE)}"
    ) as error:
        split_planes(bytes(frame_bytes(form, *SIZE) + change), form, SIZE)
    assert error.value.fault is Fault.INVALID
