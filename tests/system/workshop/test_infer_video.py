"""`edge-gateway infer --video` and `--camera`: real videos, a real gateway, a camera behind a server of RTSP."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest
from PIL import Image

from tests.performance.networks import corner
from tests.simulators.camera_tools import infer, pixels, rtsp_rs_camera, started_infer, write_spoilt, write_video
from tests.simulators.daemon import QUIET, SHORT_TRIALS, running
from tests.system.serving.test_tasks import FOUND, write_detector

FRAMES = 20
SHARED = "[shared_memory]\nallowed = true\nsweep_s = 0.1\n"
RAW = {"nv12": 'decode = ["nv12"], frame = [64, 128]', "i420": 'decode = ["i420"], frame = [32, 64]'}
LEFT = "edge-gateway-camera-"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_detector(folder / "street" / "1")
    for name, preprocess in RAW.items():
        write_detector(folder / name / "1")
        manifest = folder / name / "1" / "manifest.toml"
        text = manifest.read_text().replace('decode = ["png", "jpeg"]', preprocess)
        manifest.write_text(text.replace('name = "street"', f'name = "{name}"', 1))
    (folder / "corner").mkdir()
    (folder / "corner" / "model.onnx").write_bytes(corner("corner", (64, 128, 3)).content)
    return folder


@pytest.fixture(scope="module")
def gateway(library, tmp_path_factory):
    """Lend a gateway that allows shared memory, at a UNIX socket and, where it does not allow it, over TCP."""
    folder = tmp_path_factory.mktemp("gateway")
    listens = ("127.0.0.1:0", f"unix:{folder / 'http.sock'}")
    with running(folder, models=library, config=QUIET + SHORT_TRIALS + SHARED, http=listens) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def street(tmp_path_factory):
    return write_video(tmp_path_factory.mktemp("videos") / "street.mp4", FRAMES)


def socket_of(gateway) -> str:
    return f"unix:{gateway.folder / 'http.sock'}"


def lines_of(done: subprocess.CompletedProcess[str]):
    """Return the JSON lines of results, and the summary."""
    *results, last = (json.loads(line) for line in done.stdout.splitlines())
    return results, last["summary"]


def segments() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(LEFT)}  # noqa: PTH208 - names only


@pytest.mark.parametrize("model", ["street", *RAW])
def test_every_frame_of_a_file_is_answered_in_shared_memory(gateway, street, model):
    before = segments()
    done = infer(model, "--video", street, "--rate", "max", "--output", "json", "--url", socket_of(gateway))
    assert done.returncode == 0, done.stderr
    results, summary = lines_of(done)
    assert [line["frame"] for line in results] == [*range(FRAMES)]
    assert results[3]["timestamp_s"] == pytest.approx(0.1)
    scale = 0.5 if model == "i420" else 1.0  # its frames are half as large: they are scaled, and so are the boxes
    boxes = [[scale * side for side in entry["box"]] for entry in FOUND]
    assert [entry["box"] for entry in results[0]["result"]["detections"]] == boxes
    assert summary["shared_memory"] is True
    assert (
        summary["form"]
        == {"street": "JPEG", "nv12": "NV12 of 128 by 64 pixels", "i420": "I420 of 64 by 32 pixels"}[model]
    )
    assert {key: summary["frames"][key] for key in ("read", "answered", "skipped", "failed")} == {
        "read": FRAMES, "answered": FRAMES, "skipped": 0, "failed": 0,
    }  # fmt: skip
    assert ("frames of 128 by 64 pixels are scaled to 64 by 32" in done.stderr) == (model == "i420")
    assert segments() == before


def test_a_model_of_pixels_gets_tensors_and_sees_the_frames_in_their_order(gateway, street):
    done = infer("corner", "--video", street, "--rate", "max", "--output", "json", "--url", socket_of(gateway))
    results, summary = lines_of(done)
    seen = [line["outputs"][0]["data"][0] for line in results]
    assert seen == pytest.approx([pixels(number, 1, 1).mean() for number in range(FRAMES)], abs=3)
    assert summary["form"] == "rgb24 tensors of 128 by 64 pixels"


def test_the_newest_frame_wins_where_frames_come_faster_than_answers(gateway, tmp_path):
    fast = write_video(tmp_path / "fast.mp4", 400, rate=1000)  # no answer takes less than a millisecond
    done = infer("corner", "--video", fast, "--output", "json", "--url", socket_of(gateway))
    results, summary = lines_of(done)
    frames, numbers = summary["frames"], [line["frame"] for line in results]
    assert frames["skipped"] > 0
    assert frames["read"] == 400 == frames["skipped"] + frames["asked"]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 399
    for line in results:  # each result is that of its frame
        assert line["outputs"][0]["data"][0] == pytest.approx(pixels(line["frame"], 1, 1).mean(), abs=3)


def test_a_rate_and_a_number_of_frames_limit_what_is_sent(gateway, street):
    words = ("--video", street, "--rate", "10", "--frames", "4", "--output", "json", "--url", socket_of(gateway))
    results, summary = lines_of(infer("street", *words))
    numbers = [line["frame"] for line in results]
    assert 1 <= len(numbers) <= 4  # fewer where answers are slow: the newest frame wins
    assert numbers == sorted({number for number in numbers if number % 3 == 0})
    assert summary["frames"]["left_out"] >= 2 * len(numbers) - 2


def test_the_table_shows_frames_and_latencies(gateway, street):
    done = infer("street", "--video", street, "--url", socket_of(gateway))
    assert done.returncode == 0
    head, form, *rest = done.stdout.splitlines()
    assert head == f"street version 1 at {socket_of(gateway)}"
    assert form.startswith("frames as JPEG in shared memory, ")
    rows = [line.split()[0] for line in rest if "│" in line]
    assert rows == ["read", "skipped", "asked", "answered", "failed", "decode", "wait", "prepare", "request", "whole"]


def test_the_configured_gateway_is_found_and_its_socket_preferred(gateway, street):
    listen = f'[http]\nlisten = ["{gateway.http}", "{socket_of(gateway)}"]\n'
    gateway.config_file.write_text(f"{gateway.config_file.read_text()}{listen}")
    done = infer("street", "--video", street, "--rate", "max", "--config", gateway.config_file)
    assert f"at {socket_of(gateway)}" in done.stdout


def test_results_are_drawn_into_a_picture_or_a_video(gateway, street, tmp_path):
    import av

    red = (230, 25, 75)
    words = ("--video", street, "--rate", "max", "--url", socket_of(gateway))
    assert infer("street", *words, "--draw", tmp_path / "found.png").returncode == 0
    with Image.open(tmp_path / "found.png") as image:
        assert (image.size, image.getpixel((16, 30))) == ((128, 64), red)
        assert image.getpixel((120, 5))[0] == pytest.approx(2 * (FRAMES - 1), abs=3)  # the last frame
    assert infer("street", *words, "--draw", tmp_path / "found.mp4").returncode == 0
    with av.open(str(tmp_path / "found.mp4")) as container:
        frames = [*container.decode(video=0)]
    assert len(frames) == FRAMES
    assert frames[3].time == pytest.approx(0.1, abs=0.002)
    assert frames[3].to_image().getpixel((16, 30)) == pytest.approx(red, abs=60)


@pytest.mark.parametrize(
    ("shared", "words"),
    [("", "[shared_memory] allowed = true"), (SHARED, "[shared_memory] over_tcp = true")],
)
def test_where_shared_memory_is_not_allowed_frames_are_sent_as_bytes(library, street, tmp_path, shared, words):
    with running(tmp_path, models=library, config=QUIET + SHORT_TRIALS + shared) as daemon:
        done = infer("nv12", "--video", street, "--rate", "max", "--output", "json", "--url", daemon.http)
    _, summary = lines_of(done)
    assert (summary["frames"]["answered"], summary["shared_memory"]) == (FRAMES, False)
    assert done.stderr.count("frames are sent as bytes, not in shared memory") == 1
    assert words in done.stderr


def test_a_gateway_that_is_started_again_gets_the_rest_of_the_frames(library, tmp_path):
    http = f"unix:{tmp_path / 'http.sock'}"
    options = {"models": library, "config": QUIET + SHORT_TRIALS + SHARED, "http": (http,)}
    slow = write_video(tmp_path / "slow.mp4", 2000, rate=20)
    feed = ("corner", "--video", slow, "--output", "json", "--url", http)
    with running(tmp_path / "gateway", **options) as daemon, started_infer(*feed) as client:
        assert "outputs" in client.stdout.readline()
        daemon.stop()
        daemon.start()
        while "outputs" not in client.stdout.readline():
            assert client.poll() is None, client.stderr.read()
        client.send_signal(signal.SIGINT)
        output, _ = client.communicate(timeout=30)
    last = json.loads(output.splitlines()[-1])["summary"]
    assert client.returncode == 0
    assert last["shared_memory"] is True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_no_segment(gateway, tmp_path, number):
    long, before = write_video(tmp_path / "long.mp4", 2000, rate=20), segments()
    with started_infer("street", "--video", long, "--output", "json", "--url", socket_of(gateway)) as client:
        assert "result" in client.stdout.readline()
        assert len(segments() - before) == 1
        client.send_signal(number)
        output, errors = client.communicate(timeout=30)
    assert client.returncode == (0 if number == signal.SIGINT else 128 + number), errors
    assert ("summary" in output) == (number == signal.SIGINT)
    assert "Traceback" not in errors
    assert segments() == before


def test_what_cannot_be_fed_is_refused_with_the_reason(gateway, street, tmp_path):
    damaged, url = tmp_path / "damaged.mp4", ("--url", socket_of(gateway))
    damaged.write_bytes(street.read_bytes()[:500])
    for arguments, code, words in [
        (("street", "--video", tmp_path / "none.mp4"), 2, "none.mp4: cannot be read as a video: No such file"),
        (("street", "--video", damaged), 2, "damaged.mp4: cannot be read as a video: "),
        (("none", "--video", street), 1, "has no model 'none'"),
        (("corner", "--video", street, "--draw", tmp_path / "x.png"), 2, "has no task, so that nothing can be drawn"),
        (("street", "--video", street, "--draw", street), 2, "--draw: is the video itself"),
        (("street", "--video", street, "--draw", tmp_path / "x.gif"), 2, "takes a file that ends in one of .png"),
        (("street", "--video", street, "--draw", tmp_path / "x" / "x.png"), 2, "does not exist"),
        (("street", "--camera", "/dev/video77"), 3, "/dev/video77: cannot be read: No such file"),
        (("street", "--camera", "/dev/video77", "--rate", "max"), 2, "--rate: max goes with --video"),
        (("street", "--image", street, "--rate", "3"), 2, "--rate: goes with --video or --camera"),
    ]:
        done = infer(*arguments, *url)
        assert done.returncode == code, arguments
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
    done = infer("street", "--video", street, "--offline")
    assert (done.returncode, "a video needs a gateway that runs" in done.stderr) == (3, True)


def test_frames_that_fail_are_counted_and_too_many_in_a_row_end_the_feed(library, street, tmp_path):
    config = QUIET + SHORT_TRIALS + "[limits]\nimage_pixels = 4096\n"
    with running(tmp_path, models=library, config=config) as daemon:
        done = infer("street", "--video", street, "--rate", "max", "--output", "json", "--url", daemon.http)
        few = infer("street", "--video", street, "--frames", "2", "--url", daemon.http)
    assert done.returncode == 1
    results, summary = lines_of(done)
    assert [line["frame"] for line in results if "at most 4096 more are decoded" in line["error"]] == [*range(11)]
    assert (summary["frames"]["failed"], summary["frames"]["answered"]) == (11, 0)
    assert [line[:22] for line in done.stderr.splitlines()[1:]] == [
        *(f"edge-gateway: frame {number}:" for number in range(3)), "edge-gateway: TOO_LARG"
    ]  # fmt: skip
    assert few.returncode == 1
    assert "failed" in few.stdout


def test_a_source_without_a_frame_is_a_finding(gateway, tmp_path):
    write_spoilt(tmp_path / "empty.mkv", 5, {*range(5)})
    done = infer("street", "--video", tmp_path / "empty.mkv", "--url", socket_of(gateway))
    assert (done.returncode, "the source brought no frame" in done.stderr) == (1, True), done.stderr


def test_a_camera_over_rtsp_is_fed_until_the_wished_number_of_frames(gateway):
    with rtsp_rs_camera() as plain_url:
        url = plain_url.replace("//", "//admin:s3cret@")
        done = infer("street", "--camera", url, "--frames", "15", "--output", "json", "--url", socket_of(gateway))
    assert done.returncode == 0, done.stderr
    results, summary = lines_of(done)
    assert len(results) == 15 == summary["frames"]["answered"]
    assert results[0]["result"]["detections"] == FOUND
    assert "s3cret" not in done.stdout + done.stderr
