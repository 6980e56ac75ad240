"""Frames that we say, as the hyperframe package reads them, and the shapes that we insist on."""

from __future__ import annotations

import pytest
from hyperframe.frame import Frame, GoAwayFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError
from gateway.serving.frontends.grpc_v2.http2.shapes import SHAPES, check_shape


def read(words: bytes) -> Frame:
    frame, length = Frame.parse_frame_header(memoryview(words[:9]))
    assert length == len(words) - 9
    frame.parse_body(memoryview(words[9:]))
    return frame


def test_settings() -> None:
    frame = read(frames.settings_frame({frames.MAX_FRAME_SIZE: 65_536, frames.MAX_CONCURRENT_STREAMS: 7}))
    assert isinstance(frame, SettingsFrame)
    assert frame.settings == {SettingsFrame.MAX_FRAME_SIZE: 65_536, SettingsFrame.MAX_CONCURRENT_STREAMS: 7}


def test_reset() -> None:
    frame = read(frames.reset_frame(5, Code.CANCEL))
    assert isinstance(frame, RstStreamFrame)
    assert (frame.stream_id, frame.error_code) == (5, 8)


def test_window_update() -> None:
    frame = read(frames.window_frame(3, frames.LARGEST_WINDOW))
    assert isinstance(frame, WindowUpdateFrame)
    assert (frame.stream_id, frame.window_increment) == (3, 2**31 - 1)


def test_goaway() -> None:
    frame = read(frames.goaway_frame(9, Code.ENHANCE_YOUR_CALM, "too_many_pings"))
    assert isinstance(frame, GoAwayFrame)
    assert (frame.last_stream_id, frame.error_code, frame.additional_data) == (9, 11, b"too_many_pings")


@pytest.mark.parametrize("length", [0, 1, 255, 65_535, 65_536, 2**24 - 1])
def test_an_opening_and_a_stream_are_a_header(length: int) -> None:
    words = frames.opening(frames.DATA, frames.END_STREAM, length) + frames.UINT32.pack(77)
    assert frames.HEADER.unpack(words) == (length >> 16, length & 0xFFFF, frames.DATA, frames.END_STREAM, 77)


GOOD = [
    (frames.PRIORITY, 1, 5),
    (frames.RST_STREAM, 1, 4),
    (frames.SETTINGS, 0, 0),
    (frames.SETTINGS, 0, 60),
    (frames.PING, 0, 8),
    (frames.GOAWAY, 0, 8),
    (frames.GOAWAY, 0, 300),
    (frames.WINDOW_UPDATE, 0, 4),
    (frames.WINDOW_UPDATE, 1, 4),
]


@pytest.mark.parametrize(("kind", "stream", "size"), GOOD)
def test_shapes(kind: int, stream: int, size: int) -> None:
    check_shape(kind, stream, memoryview(bytes(size)))
    if kind != frames.GOAWAY or size == 8:
        with pytest.raises(ProtocolError) as caught:
            check_shape(kind, stream, memoryview(bytes(size + 1 if kind != frames.GOAWAY else 7)))
        assert caught.value.code is Code.FRAME_SIZE_ERROR
    if SHAPES[kind].on_stream is not None:
        with pytest.raises(ProtocolError) as caught:
            check_shape(kind, 1 - stream, memoryview(bytes(size)))
        assert caught.value.code is Code.PROTOCOL_ERROR
