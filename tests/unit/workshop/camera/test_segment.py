"""The client's segment: its content, its permissions, and its end."""

import os
import stat

import pytest

from gateway.workshop.camera.segment import FrameSegment


def test_frames_are_written_from_its_beginning_and_nobody_else_may_read_it(tmp_path):
    segment = FrameSegment(16, folder=tmp_path)
    (file,) = tmp_path.iterdir()
    assert segment.key == f"/{file.name}"
    assert segment.write(b"abc", b"defg") == 7
    assert segment.write(b"x") == 1
    assert file.read_bytes() == b"xbcdefg" + bytes(9)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    segment.close()
    assert list(tmp_path.iterdir()) == []


def test_a_group_may_read_it(tmp_path):
    segment = FrameSegment(16, os.getgid(), tmp_path)
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert file.stat().st_gid == os.getgid()
    segment.close()


def test_what_does_not_fit_is_refused(tmp_path):
    segment = FrameSegment(4, folder=tmp_path)
    with pytest.raises(ValueError, match="has 4 bytes"):
        segment.write(b"abc", b"de")
    segment.close()


def test_memory_that_cannot_be_had_is_an_error_and_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match=r"File too large|No space left|Cannot allocate"):
        FrameSegment(1 << 62, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
