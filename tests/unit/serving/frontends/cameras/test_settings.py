"""Settings of `[[camera]]`: what is refused, and how it is said without secrets."""

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.cli.config import effective
from gateway.serving.config import parse_config
from gateway.serving.frontends.cameras.settings import CameraSettings, check_cameras

DOOR = '[[camera]]\nname = "door"\nurl = "rtsp://10.0.0.7/h264"\nmodel = "street"\n'


def test_a_camera_has_defaults_and_tables():
    (camera,) = parse_config(DOOR, "").camera
    assert camera == CameraSettings("door", "rtsp://10.0.0.7/h264", "street")
    assert camera.snapshot is None
    text = DOOR + "masks = [[0.0, 0, 0.3, 0.0, 0.3, 1]]\n[camera.snapshot]\nlabels = ['person']\n"
    (camera,) = parse_config(text, "").camera
    assert camera.masks == ((0.0, 0.0, 0.3, 0.0, 0.3, 1.0),)
    assert camera.snapshot is not None
    assert (camera.snapshot.labels, camera.snapshot.every_s) == (("person",), 10.0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ('name = ".."', "begin with a letter or digit"),
        ('name = "a/b"', "letters, digits"),
        ('name = ""', "1 to 64"),
        (f'name = "{"a" * 65}"', "1 to 64"),
        ('url = "video.mp4"', "whole path"),
        ('url = "file:///etc/passwd"', "is no camera"),
        ('url = "ftp://host/a"', "is no camera"),
        ('url = "concat:/a|/b"', "is no camera"),
        ('url = ""', "is no camera"),
        ('url = "rtsp://host:99999/"', "is no camera"),
        ('model = ""', "the name of a model"),
        ("per_s = 0", "0.01 to 1000"),
        ("per_s = nan", "must be between"),
        ("masks = [0.0, 1.0]", "must be an array of arrays of numbers"),
        ("masks = [[0.0, 0.0, 1.0, 1.0]]", "3 to 64 pairs"),
        ("masks = [[0.0, 0.0, 1.0, 1.0, 0.5]]", "3 to 64 pairs"),
        ("masks = [[0.0, 0.0, 1.0, 1.0, 0.5, 1.1]]", "0 to 1"),
        ("masks = [[0.0, 0.0, 1.0, 1.0, 0.5, inf]]", "finite"),
        ("masks = [[0.0, 0.0, 1.0, 1.0, 0.5, true]]", "arrays of numbers"),
        ("masks = [[0.1, 0.1, 0.9, 0.9, 0.9, 0.1, 0.1, 0.9]]", "neither cross nor touch"),  # a bow-tie
        ("masks = [[0.5, 0.0, 0.8, 0.9, 0.0, 0.3, 1.0, 0.3, 0.2, 0.9]]", "neither cross nor touch"),  # a pentagram
        ("masks = [[0.1, 0.1, 0.9, 0.1, 0.5, 0.9, 0.1, 0.1, 0.9, 0.1, 0.5, 0.9]]", "cross nor touch"),  # traced twice
        ("masks = [[0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.5, 0.0, 0.0, 1.0]]", "cross nor touch"),  # a corner on an edge
        ("masks = [['a']]", "arrays of numbers"),
        ('credential = "/x"\nurl = "/dev/video0"', "only rtsp and http have users"),
        ('credential = "/x"\nurl = "rtsp://a:b@host/"', "url without user"),
        ('ca = "/c.pem"', "only rtsps and https"),
        ("frames = 3", "unknown key"),
        ("snapshot = {min_score = 1.5}", "0 to 1"),
        ("snapshot = {every_s = 0}", "0.1 to 86400"),
        ("snapshot = {max_bytes = 1}", "1048576 or more"),
        ("snapshot = {colour = 1}", "unknown key"),
    ],
)
def test_what_cannot_work_is_refused_with_table_and_key(change, problem):
    keys = [line.partition(" ")[0] for line in change.splitlines()]
    kept = [line for line in DOOR.splitlines() if line.partition(" ")[0] not in keys]
    with pytest.raises(ConfigurationError, match=problem) as raised:
        parse_config("\n".join((*kept, change)), "")
    assert raised.value.table.startswith("camera[0]")


@pytest.mark.parametrize(
    "mask",
    [
        (0.0, 0.0, 1.0, 0.0, 0.5, 1.0, 0.0, 0.0),  # closed by hand
        (0.1, 0.1, 0.1, 0.1, 0.9, 0.1, 0.5, 0.9),  # a corner twice
        (0.0, 0.0, 1.0, 0.0, 1.0, 0.2, 0.2, 0.2, 0.2, 1.0, 0.0, 1.0),  # an L
        (0.5, 0.0, 0.6, 0.4, 1.0, 0.5, 0.6, 0.6, 0.5, 1.0, 0.4, 0.6, 0.0, 0.5, 0.4, 0.4),  # a star
        (0.5, 0.5, 0.5, 0.5, 0.5, 0.5),
    ],
)
def test_masks_that_do_not_cross_themselves_are_taken(mask):
    assert CameraSettings("door", "/v.mp4", "m", masks=(mask,)).masks == (mask,)


@pytest.mark.parametrize("name", ["two", "many"])
def test_names_differ_and_cameras_are_bounded(name):
    cameras = [CameraSettings("door" if name == "two" else f"c{number}", "/v.mp4", "m") for number in range(65)]
    with pytest.raises(ConfigurationError, match="names must differ" if name == "two" else "at most 64"):
        check_cameras(cameras)


def test_a_password_in_a_file_that_all_may_read_is_refused_and_never_shown(tmp_path):
    file = tmp_path / "edge-gateway.toml"
    text = DOOR.replace("rtsp://", "rtsp://admin:s3cret@")
    file.write_text(text)
    file.chmod(0o644)
    with pytest.raises(ConfigurationError, match="name a file with `credential`") as raised:
        parse_config(text, str(file))
    assert "s3cret" not in str(raised.value) + raised.value.excerpt
    file.chmod(0o640)
    assert parse_config(text, str(file)).camera[0].has_secret


@pytest.mark.parametrize("url", ["rtsp://a:s3cret/x@host/", "rtsp://a:s3cret#@host/"])
def test_a_secret_is_not_shown_where_the_url_is_wrong(url):
    with pytest.raises(ConfigurationError) as raised:
        parse_config(DOOR.replace("rtsp://10.0.0.7/h264", url), "")
    assert "s3cret" not in str(raised.value) + raised.value.excerpt


def test_the_configuration_in_force_shows_cameras_without_secrets():
    shown = effective(parse_config(DOOR.replace("rtsp://", "rtsp://admin:s3cret@"), ""))
    assert shown["camera[0]"]["url"] == "rtsp://10.0.0.7/h264"
    (camera,) = parse_config(DOOR.replace("/h264", "/h264?user=admin&pwd=s3cret&stream=1"), "").camera
    assert "s3cret" not in camera.shown_url
    assert camera.shown_url.startswith("rtsp://10.0.0.7/h264?user=admin")
    assert "camera" not in effective(parse_config("", ""))


@pytest.mark.parametrize(
    "url",
    [
        "rtsp://10.0.0.7/user=admin&password=s3cret&channel=1",
        "rtsp://10.0.0.7/user=admin_password=s3cret_channel=1_stream=0.sdp",
        "http://10.0.0.7/videostream.cgi?loginuse=admin&loginpas=s3cret",
        "http://10.0.0.7/videostream.cgi?usr=admin&psw=s3cret",
        "rtsp://10.0.0.7:554/admin:s3cret/ch1",
    ],
)
def test_a_password_in_path_or_query_is_a_secret(tmp_path, url):
    file = tmp_path / "edge-gateway.toml"
    text = DOOR.replace("rtsp://10.0.0.7/h264", url)
    file.write_text(text)
    file.chmod(0o644)
    with pytest.raises(ConfigurationError, match="has a password") as raised:
        parse_config(text, str(file))
    assert "s3cret" not in str(raised.value) + raised.value.excerpt
    file.chmod(0o640)
    (camera,) = parse_config(text, str(file)).camera
    assert camera.has_secret
    assert "s3cret" not in camera.shown_url + str(camera.source)
    assert "s3cret" not in CameraSettings("door", "http://10.0.0.7/admin:s3cret", "m").shown_url


@pytest.mark.parametrize("url", ["rtsp://10.0.0.7:554/h264?channel=1", "/dev/video0", "http://h/a/2027-01-01T00:00:00"])
def test_a_url_without_a_password_has_no_secret(url):
    camera = CameraSettings("door", url, "street")
    assert not camera.has_secret
    assert camera.shown_url == url
