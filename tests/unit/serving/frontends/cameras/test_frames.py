"""Frames in the form of a model, and files of drawn ones, with PyAV."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gateway.common.domain.errors import ConfigurationError, RequestError
from gateway.serving.frontends.cameras.forms import FrameForm
from gateway.serving.frontends.cameras.frames import masked, prepare
from gateway.serving.frontends.cameras.settings import FeedSettings
from gateway.serving.tasks.frames_yuv import split_planes, to_rgb
from gateway.workshop.camera.video_file import VideoFile
from tests.simulators import camera_tools  # noqa: F401  it finds PyAV

SETTINGS = FeedSettings()
HALVES = np.repeat([[[200, 60, 30]], [[20, 90, 220]]], 64, axis=1).repeat(16, axis=0).astype(np.uint8)
"""Image of 64 by 32 pixels: red above, blue below."""


def framed(rgb: np.ndarray, pixels: str = "yuv420p", **colours: str):
    import av

    return av.VideoFrame.from_ndarray(rgb, format="rgb24").reformat(format=pixels, **colours)


@pytest.mark.parametrize("manifest", ["nv12", "i420", "yuyv"])
@pytest.mark.parametrize("source", [("ITU601", "MPEG"), ("ITU709", "MPEG"), ("ITU601", "JPEG")])
@pytest.mark.parametrize("wanted", [("bt601", "limited"), ("bt709", "limited"), ("bt601", "full")])
def test_raw_frames_have_the_colours_that_the_manifest_declares(manifest, source, wanted):
    pixels = {"nv12": "nv12", "i420": "yuv420p", "yuyv": "yuyv422"}[manifest]
    frame = framed(HALVES, dst_colorspace=source[0], dst_color_range=source[1])
    form = FrameForm("x", pixels, (64, 32), matrix=wanted[0], color_range=wanted[1])
    prepared = prepare(frame, form, SETTINGS)
    seen = to_rgb(split_planes(prepared.content, manifest, (32, 64)), *wanted)
    assert np.abs(seen[[4, 28], 20].astype(int) - HALVES[[4, 28], 20]).max() <= 4
    assert prepared.shape == [1]


def test_a_frame_that_has_the_form_is_sent_as_it_is_and_another_size_is_scaled():
    form = FrameForm("x", "yuv420p", (64, 32), matrix="bt709", color_range="limited")
    frame = framed(HALVES)
    assert prepare(frame, form, SETTINGS).image is frame
    scaled = prepare(framed(HALVES.repeat(3, axis=0).repeat(2, axis=1)), form, SETTINGS)
    assert (scaled.image.width, scaled.image.height, len(scaled.content)) == (64, 32, 64 * 32 * 3 // 2)


def test_rows_of_frames_have_no_padding():
    odd = np.arange(27 * 35 * 3, dtype=np.uint8).reshape(27, 35, 3)
    frame = framed(odd, "rgb24")
    rows = prepare(frame, FrameForm("x", "rgb24", layout="NHWC", rank=4), SETTINGS)
    assert (rows.content, rows.shape) == (odd.tobytes(), [1, 27, 35, 3])
    planes = prepare(frame, FrameForm("x", "rgb24", layout="NCHW", rank=4), SETTINGS)
    assert (planes.content, planes.shape) == (odd.transpose(2, 0, 1).tobytes(), [1, 3, 27, 35])
    gray = prepare(frame, FrameForm("x", "gray", layout="NCHW", rank=4), SETTINGS)
    assert (len(gray.content), gray.shape) == (27 * 35, [1, 1, 27, 35])


@pytest.mark.parametrize("image", ["jpeg", "png"])
def test_compressed_frames_are_images_of_the_same_size(image):
    prepared = prepare(framed(HALVES), FrameForm("x", "rgb24", image=image), SETTINGS)
    with Image.open(io.BytesIO(prepared.content)) as opened:
        assert (opened.format.lower(), opened.size) == (image, (64, 32))
        assert np.abs(np.asarray(opened)[4, 20].astype(int) - HALVES[4, 20]).max() <= 6


def test_frames_over_the_bounds_are_refused():
    form = FrameForm("x", "rgb24", layout="NHWC", rank=4)
    with pytest.raises(RequestError, match="a frame of 64 by 32 pixels has more than 2047 pixels; let the camera"):
        prepare(framed(HALVES), form, FeedSettings(frame_pixels=2047))
    with pytest.raises(RequestError, match="has 6144 bytes as rgb24 tensors, at most 6143 are sent"):
        prepare(framed(HALVES), form, FeedSettings(frame_bytes=6143))


def test_a_video_file_has_the_frames_at_their_times_and_in_the_size_of_the_first(tmp_path):
    import av

    path = tmp_path / "found.mp4"
    with VideoFile(path) as file:
        for number in range(5):
            file.add(HALVES, 10 + number / 5)
        file.add(HALVES.repeat(2, axis=0), 11.5)
        file.add(HALVES, 0.0)  # a camera that was connected again
        file.add(HALVES, 0.2)
    with av.open(str(path)) as container:
        frames = [(round(frame.time, 3), frame.width, frame.height) for frame in container.decode(video=0)]
    assert frames == [(time_s, 64, 32) for time_s in (0.0, 0.2, 0.4, 0.6, 0.8, 1.5, 1.54, 1.74)]


def test_a_frame_of_an_odd_size_can_be_encoded_and_a_file_without_frames_is_not_left(tmp_path):
    import av

    with VideoFile(tmp_path / "odd.mkv") as file:
        file.add(HALVES[:31, :63], 0.0)
    with av.open(str(tmp_path / "odd.mkv")) as container:
        (frame,) = container.decode(video=0)
        assert (frame.width, frame.height) == (62, 30)
    with VideoFile(tmp_path / "none.mp4"):
        pass
    assert not (tmp_path / "none.mp4").exists()


def test_a_file_that_cannot_be_written_is_an_error_of_the_option(tmp_path):
    problem = r"--draw: cannot be written: .*No such file or directory"
    with pytest.raises(ConfigurationError, match=problem), VideoFile(tmp_path / "missing" / "found.mp4") as file:
        file.add(HALVES, 0.0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=6),
    st.sampled_from([(1, 1), (2, 2), (16, 8), (33, 17)]),
)
def test_every_pixel_whose_middle_is_within_a_mask_is_black(corners, size):
    width, height = size
    pixels = np.full((height, width, 3), 200, np.uint8)
    flat = [side for corner in corners for side in corner]
    black = masked(framed(pixels), [flat], SETTINGS).to_ndarray(format="rgb24")[..., 0] == 0
    for y in range(height):
        for x in range(width):
            if _within((x + 0.5) / width, (y + 0.5) / height, corners):
                assert black[y, x], (x, y)
    assert masked(framed(pixels), [], SETTINGS).to_ndarray(format="rgb24").min() > 190


def _within(x, y, corners):
    """Return True if a point is well within a polygon by even-odd ray casting, and not at its border."""
    inside = False
    for (x1, y1), (x2, y2) in zip(corners, corners[1:] + corners[:1], strict=True):
        if (y1 > y) != (y2 > y):
            at = x1 + (y - y1) / (y2 - y1) * (x2 - x1)
            if abs(at - x) < 1e-9:
                return False
            inside ^= x < at
    return inside


def test_a_mask_of_the_whole_picture_leaves_nothing_in_any_form():
    whole = [[0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0]]
    black = masked(framed(HALVES), whole, SETTINGS)
    assert not black.to_ndarray(format="rgb24").any()
    for form in (FrameForm("i", "rgb24", layout="NHWC", rank=4), FrameForm("i", "gray", layout="NCHW", rank=4)):
        assert max(prepare(black, form, SETTINGS).content) <= 16  # black of limited range
