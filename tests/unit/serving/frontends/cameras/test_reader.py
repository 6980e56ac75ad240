"""Frames of real videos: files, damaged ones, and a camera over HTTP that is lost and found again."""

from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from PIL import Image

from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.serving.frontends.cameras.reader import SourceReader
from gateway.serving.frontends.cameras.settings import FeedSettings
from gateway.serving.frontends.cameras.source import camera_source, file_source
from tests.simulators.camera_tools import write_spoilt, write_video


class Served(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def web(tmp_path):
    """Lend a server of the files in `tmp_path`, and its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Served, directory=tmp_path))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def reader_of(source, tell=lambda _: None, pause=lambda _: None, **settings):
    return SourceReader(source, FeedSettings(**settings), tell, pause)


def test_the_frames_of_a_file_have_numbers_timestamps_and_its_pixels(tmp_path):
    reader = reader_of(file_source(str(write_video(tmp_path / "street.mp4", 20, 10))))
    frames = [*reader.frames(reader.open())]
    assert [frame.number for frame in frames] == [*range(20)]
    assert [frame.timestamp_s for frame in frames] == pytest.approx([number / 10 for number in range(20)])
    assert [int(frame.image.to_ndarray(format="rgb24").mean()) for frame in frames] == pytest.approx(
        [2 * number for number in range(20)], abs=3
    )
    assert reader.broken == 0


def test_broken_packets_are_counted_and_too_many_in_a_row_end_a_file(tmp_path):
    path = tmp_path / "street.mkv"
    write_spoilt(path, 10, {3, 4, 7})
    reader = reader_of(file_source(str(path)), broken_in_row=2)
    assert len([*reader.frames(reader.open())]) == 7
    assert reader.broken == 3
    strict = reader_of(file_source(str(path)), broken_in_row=1)
    with pytest.raises(ConfigurationError, match=r"street.mkv: is damaged after 3 frames: Invalid data found"):
        [*strict.frames(strict.open())]


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "No such file"), (b"", "Invalid data|End of file"), (b"no video at all" * 100, "Invalid data|no video")],
)
def test_what_is_no_video_is_refused_at_once(tmp_path, content, problem):
    path = tmp_path / "street.mp4"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"street.mp4: cannot be read as a video: ({problem})"):
        reader_of(file_source(str(path))).open()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("notes.txt", "the key of the door is under the mat\n" * 50),
        ("parts.ffconcat", "ffconcat version 1.0\nfile street.ts\n"),
        ("list.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\nstreet.ts\n#EXT-X-ENDLIST\n"),
        ("camera.sdp", "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"),
    ],
)
def test_a_file_of_text_or_of_names_of_other_files_is_no_video(tmp_path, name, content):
    write_video(tmp_path / "street.ts")
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigurationError, match=r"it is no video of an allowed format \(mov, matroska, "):
        reader_of(file_source(str(tmp_path / name))).open()


def test_pictures_and_patterns_of_their_names_are_no_video(tmp_path):
    for number in range(3):
        Image.new("RGB", (64, 64)).save(tmp_path / f"{number}.png")
    for name in ("%d.png", "1.png"):
        with pytest.raises(ConfigurationError, match="no video of an allowed format"):
            reader_of(file_source(str(tmp_path / name))).open()


def test_a_camera_may_send_a_playlist_but_one_that_names_no_file_of_this_machine(tmp_path, web):
    _, url = web
    street = write_video(tmp_path / "street.ts")
    for number, place in enumerate(("street.ts", str(street), f"file:{street}", f"file://{street}")):
        playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{place}\n#EXT-X-ENDLIST\n"
        (tmp_path / f"{number}.m3u8").write_text(playlist)
    with reader_of(source := camera_source(f"{url}/0.m3u8")).open() as container:
        assert container.format.name == "hls"
    assert "file" not in source.options["protocol_whitelist"]
    for number in (1, 2, 3):
        with pytest.raises(UnreachableError, match="cannot be read"):
            reader_of(camera_source(f"{url}/{number}.m3u8")).open()


@pytest.mark.parametrize("name", ["live?name=x.m3u8", "list.m3u"])
def test_a_camera_whose_url_names_no_playlist_leads_to_no_other_address(tmp_path, web, name):
    _, url = web
    write_video(tmp_path / "street.ts")
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{url}/street.ts\n#EXT-X-ENDLIST\n"
    (tmp_path / name.partition("?")[0]).write_text(playlist)
    with pytest.raises(UnreachableError, match="no video of an allowed format"):
        reader_of(camera_source(f"{url}/{name}")).open()


def test_a_camera_that_sends_text_is_refused(tmp_path, web):
    (tmp_path / "notes.txt").write_text("hello\n" * 200)
    with pytest.raises(UnreachableError, match=r"no video of an allowed format .* rtp\)"):
        reader_of(camera_source(f"{web[1]}/notes.txt")).open()


def test_a_camera_that_is_lost_is_connected_again_until_the_attempts_are_used_up(tmp_path, web):
    _, url = web
    write_video(tmp_path / "street.ts", 10)
    told, pauses = [], []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            (tmp_path / "street.ts").unlink()

    source = camera_source(f"{url}/street.ts".replace("//", "//admin:s3cret@"))
    reader = reader_of(source, told.append, pause, reconnections=3, pause_s=1.0, pause_limit_s=3.0)
    frames = reader.frames(reader.open())
    numbers = []
    with pytest.raises(
        UnreachableError, match="was lost, and 3 attempts in a row to connect it again failed"
    ) as caught:
        numbers.extend(frame.number for frame in frames)
    assert "404" in str(caught.value)
    assert numbers == [*range(20)]
    assert pauses == [1.0, 1.0, 2.0, 3.0]  # the first attempt brought frames: then it begins again
    assert told[:2] == [f"{source} was lost: the stream ended", "it is connected again"]
    assert "s3cret" not in " ".join(told) + str(caught.value)


def test_a_camera_that_cannot_be_reached_at_first_is_an_error_without_further_attempts(web):
    _, url = web
    with pytest.raises(UnreachableError, match="cannot be read: Server returned 404 Not Found; check the address"):
        reader_of(camera_source(f"{url}/none")).open()
