"""Sources by their names: URLs of cameras, devices, files."""

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.frontends.cameras.source import camera_source, file_source, without_secret


def test_a_device_is_read_by_v4l2_and_a_url_by_its_scheme():
    assert camera_source("/dev/video0").format == "v4l2"
    assert camera_source("rtsp://camera/stream").options["rtsp_flags"] == "prefer_tcp"
    assert "rtsp_flags" not in camera_source("http://camera/video.mjpg").options
    assert camera_source("rtsp://camera/stream").live


@pytest.mark.parametrize("text", ["camera", "street.mp4", "file:///etc/passwd", "rtsp://", "concat:a|b", "http://["])
def test_what_is_no_camera_is_refused(text):
    with pytest.raises(ConfigurationError, match="is no camera; write rtsp://host/path"):
        camera_source(text)


def test_a_file_is_read_as_a_file_whatever_its_name():
    source = file_source("http://camera/video")
    assert source.address.startswith("/")
    assert source.options["protocol_whitelist"] == "file"
    assert not source.live


def test_user_names_and_passwords_are_not_printed():
    assert str(camera_source("rtsp://admin:s3cret@camera/stream")) == "rtsp://camera/stream"
    assert without_secret("cannot open 'rtsp://u:p@a/b' nor http://c/d") == "cannot open 'rtsp://a/b' nor http://c/d"
    with pytest.raises(ConfigurationError) as caught:
        camera_source("ftp://admin:s3cret@camera/stream")
    assert "s3cret" not in str(caught.value)
