"""nghttp and h2load, nghttp2's own programs: padding, CONTINUATION, small windows, many streams at once."""

from __future__ import annotations

import re
import subprocess

import pytest
import tritonclient.grpc as triton

from tests.simulators.daemon import QUIET, SHORT_TRIALS, running
from tests.system.framed import GRPC, INFER, framed, question

REQUESTS = 640


@pytest.fixture(scope="module")
def body(tmp_path_factory):
    file = tmp_path_factory.mktemp("body") / "question"
    file.write_bytes(framed(question()))
    return str(file)


def nghttp(url, body, *options, **environ):
    command = ["nghttp", "-v", "-n", "--no-dep", *GRPC, "-d", body, "-t", "20s", *options, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, env=environ or None)
    return re.sub(r"\x1b\[[\d;]*m", "", done.stdout)


def answered(said):
    """Return how many streams got headers, then a message, then trailers that say OK."""
    assert ":status: 200" in said
    assert "content-type: application/grpc" in said
    assert "RST_STREAM" not in said
    return len(re.findall(r"grpc-status: 0$", said, re.MULTILINE))


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--no-content-length",),
        ("-w", "4", "-W", "16"),
        ("-c", "0"),
        ("--encoder-header-table-size", "0"),
    ],
    ids=" ".join,
)
def test_one_question(served, body, options):
    """-w 4 leaves a stream 15 bytes at a time; -c 0 takes the header table away."""
    said = nghttp(f"http://{served.grpc}{INFER}", body, *options)
    assert answered(said) == 1
    frames = re.findall(r"recv (\w+) frame <length=\d+, flags=0x(\w\w), stream_id=1>", said)
    assert [kind for kind, _ in frames if kind == "HEADERS"] == ["HEADERS"] * 2
    assert frames[-1] == ("HEADERS", "05")  # END_STREAM and END_HEADERS


def test_headers_of_26_kilobytes(body, tmp_path, state):
    """More than is taken by default. Their block is larger than the frames that nghttp2 packs: CONTINUATION."""
    config = f"{QUIET}{SHORT_TRIALS}[grpc.http2]\nmax_header_bytes = 65_536\n"
    with running(tmp_path, state=state, config=config, http=["off"]) as daemon:
        said = nghttp(f"http://{daemon.grpc}{INFER}", body, "--continuation")
    (block,) = re.findall(r"send HEADERS frame <length=(\d+)", said)
    assert int(block) > 16_384
    assert answered(said) == 1


def test_padded_frames(served, body):
    said = nghttp(f"http://{served.grpc}{INFER}", body, "--padding=200")
    assert answered(said) == 1


def test_a_header_table_that_shrinks_and_grows_at_once(served, body):
    """RFC 7541, section 4.2: the smallest size must be told before the last."""
    said = nghttp(f"http://{served.grpc}{INFER}", body, "-c", "0", "-c", "65536")
    assert answered(said) == 1


def test_many_questions_on_one_connection(served, body):
    said = nghttp(f"http://{served.grpc}{INFER}", body, "-m", "50")
    assert answered(said) == 50


def test_over_tls(served_tls, body):
    said = nghttp(f"https://localhost:{served_tls.grpc.rpartition(':')[2]}{INFER}", body, "-y")
    assert "The negotiated protocol: h2" in said
    assert answered(said) == 1


def test_an_upgrade_from_http_1_is_not_offered(served, body):
    command = ["nghttp", "-v", "-u", "-n", *GRPC, "-d", body, "-t", "20s", f"http://{served.grpc}{INFER}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert "101 Switching" not in done.stdout
    assert "grpc-status" not in done.stdout
    assert answered(nghttp(f"http://{served.grpc}{INFER}", body)) == 1


@pytest.mark.parametrize("connections", [1, 4])
def test_h2load_with_32_streams_a_connection(served, body, connections):
    with triton.InferenceServerClient(served.grpc) as client:

        def answers():
            (line,) = client.get_inference_statistics("meter-reader").model_stats
            return line.inference_stats.success.count

        before = answers()
        options = ["-n", str(REQUESTS), "-c", str(connections), "-m", "32", "-d", body, *GRPC]
        command = ["h2load", *options, f"http://{served.grpc}{INFER}"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True).stdout
        assert f"{REQUESTS} done, {REQUESTS} succeeded, 0 failed, 0 errored, 0 timeout" in said
        assert f"status codes: {REQUESTS} 2xx, 0 3xx, 0 4xx, 0 5xx" in said
        assert answers() - before == REQUESTS
