"""A C++ client with Debian's gRPC against the real daemon: what the reference implementation makes of our answers."""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest

from tests.simulators.daemon import golden
from tests.system import cpp

OK, DEADLINE_EXCEEDED, NOT_FOUND, INVALID_ARGUMENT, UNAVAILABLE = "0", "4", "5", "3", "14"
DIMENSIONS = ("1", "8", "8")

pytestmark = pytest.mark.timeout(180)  # the first test of all compiles the client


@pytest.fixture(scope="session")
def program():
    return cpp.client()


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Return five golden digits, and the file that holds them."""
    wanted = golden("meter-reader", 5)
    file = tmp_path_factory.mktemp("rows") / "rows.bin"
    file.write_bytes(wanted.rows.tobytes())
    return wanted, str(file)


@pytest.fixture(params=["tcp", "unix"])
def ask(request, served, program):
    """Return a function that runs the client and returns what it said, by name."""
    target = served.addresses("grpc")[request.param == "unix"]
    return lambda *words: said(program, target, *words)


def said(program, target, *words, **environ):
    done = subprocess.run(
        [program, target, *words], capture_output=True, text=True, timeout=50, check=True, env={**os.environ, **environ}
    )
    found = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        found.setdefault(name, []).append(value)
    return found


def scores(found):
    return np.array(found["score"], "<f4").reshape(-1, 10)


def test_server_ready(ask):
    assert ask("ready") == {"ready": ["1"], "status": [OK], "details": [""]}


def test_metadata_and_what_the_caller_adds_to_a_call(ask):
    found = ask("metadata", "meter-reader")
    assert (found["name"], found["input"], found["status"]) == (["meter-reader"], ["image:FP32"], [OK])


@pytest.mark.parametrize(
    ("service", "status", "code"),
    [("", "SERVING", OK), ("inference.GRPCInferenceService", "SERVING", OK), ("nobody", "UNKNOWN", NOT_FOUND)],
)
def test_health(ask, service, status, code):
    found = ask("health", service)
    assert (found["health"], found["status"]) == ([status], [code])


def test_inference_gets_the_right_answer(ask, rows):
    wanted, file = rows
    found = ask("infer", "meter-reader", "0", "image", file, "5", *DIMENSIONS)
    assert (found["status"], found["id"], found["model"]) == ([OK], ["from C++"], ["meter-reader/1"])
    assert found["output"] == ["scores:FP32:5x10"]
    np.testing.assert_allclose(scores(found), wanted.scores, atol=0.05)
    assert (scores(found).argmax(axis=1) == wanted.scores.argmax(axis=1)).all()


def test_a_model_that_nobody_has(ask, rows):
    found = ask("infer", "grüß\n%", "0", "image", rows[1], "5", *DIMENSIONS)
    assert (found["status"], found["details"]) == ([NOT_FOUND], ["Request for unknown model: 'grüß"])
    assert "%'" in found  # the line after the line feed that the name holds


def test_a_tensor_of_another_size(ask, rows):
    found = ask("infer", "meter-reader", "0", "image", rows[1], "4", *DIMENSIONS)
    assert found["status"] == [INVALID_ARGUMENT]
    assert found["details"] == ["tensor 'image' has 1280 bytes, but FP32 of shape [4, 1, 8, 8] takes 1024"]


def test_a_deadline_of_a_microsecond(ask, rows, tmp_path):
    """A request of 1024 rows: gRPC rounds the deadline up to a millisecond, in which five might be answered."""
    many = tmp_path / "many.bin"
    many.write_bytes(rows[0].rows[:1].tobytes() * 1024)
    found = ask("infer", "meter-reader", "1", "image", str(many), "1024", *DIMENSIONS)
    assert found["status"] == [DEADLINE_EXCEEDED]


def test_a_deadline_that_is_kept(ask, rows):
    found = ask("infer", "meter-reader", "30000000", "image", rows[1], "5", *DIMENSIONS)
    assert found["status"] == [OK]


def test_a_stream_answers_every_request_and_survives_a_bad_one(ask, rows):
    wanted, file = rows
    found = ask("stream", "meter-reader", "image", file, "5", *DIMENSIONS)
    assert found["error"] == ["Request for unknown model: 'nobody' is not found"]
    classes = dict(zip(found["id"], scores(found).argmax(axis=1).tolist(), strict=True))
    assert classes == {f"{row}": int(wanted.scores[row].argmax()) for row in range(5)}
    assert (found["status"], found["details"]) == ([OK], [""])


def test_over_tls(served_tls, program, rows, authority):
    roots = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority / "ca.pem")}
    port = served_tls.grpc.rpartition(":")[2]
    words = ("infer", "meter-reader", "0", "image", rows[1], "5", *DIMENSIONS)
    assert said(program, f"tls:localhost:{port}", *words, **roots)["status"] == [OK]
    assert said(program, f"localhost:{port}", *words)["status"] == [UNAVAILABLE]
