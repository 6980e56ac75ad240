"""States that outlive the real daemon: a stop, a kill, another release, damage, and many streams."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.simulators import constants
from tests.simulators.daemon import COMMAND, QUIET, SHORT_TRIALS, running
from tests.simulators.models_made import save
from tests.simulators.sequences_made import accumulator
from tests.system.serving.test_sequences import add
from tests.system.serving.test_streams import inputs, write_models

KEPT = "\n[state]\nkeys = 20000\nidle_s = 3600.0\nkeep_on_disk = true\n"
STORE = "gateway.serving.engine.stream_store"
OFTEN = constants.command(COMMAND, {(STORE, "StreamStore", "save_s"): 0.1})
SUMS = """
schema = 1
name = "sums"
version = "1"
[[input]]
name = "INPUT"
datatype = "INT32"
shape = [-1, 1]
[[input]]
name = "START"
datatype = "INT32"
shape = [-1, 1]
[[input]]
name = "TOTAL"
datatype = "INT32"
shape = [-1, 1]
[[output]]
name = "OUTPUT"
datatype = "INT32"
shape = [-1, 1]
[[output]]
name = "NEXT"
datatype = "INT32"
shape = [-1, 1]
[sequence]
keys = 20000
idle_s = 3600.0
keep_on_disk = true
[[sequence.state]]
input = "TOTAL"
output = "NEXT"
[[sequence.control]]
input = "START"
kind = "start"
[[variant]]
name = "onnx"
runtime = "onnx"
precision = "fp32"
artifacts = [{{path = "model.onnx", sha256 = "{sha256}", bytes = {size}}}]
"""


def write_all(folder: Path) -> Path:
    """Write a pipeline that counts and a model with sequences, whose states are kept; return the pipeline's file."""
    write_models(folder)
    pipeline = folder / "gate" / "1" / "pipeline.toml"
    pipeline.write_text(pipeline.read_text() + KEPT)
    (folder / "sums" / "1").mkdir(parents=True)
    content = save(accumulator(), folder / "sums" / "1" / "model.onnx").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    (folder / "sums" / "1" / "manifest.toml").write_text(SUMS.format(sha256=digest, size=len(content)))
    return pipeline


def walk(client: Any, rows: Any, stream: str = "camera") -> tuple[int, int, list[int]]:
    """Return entered, left and the numbers of tracks after frames of someone who stands in these rows."""
    for row in rows:
        found = client.infer("gate", inputs(triton, row), sequence_id=stream)
    return int(found.as_numpy("entered")[0]), int(found.as_numpy("left")[0]), found.as_numpy("people.track")[0].tolist()


def test_counts_tracks_and_sequences_go_on_after_a_stop(tmp_path: Path) -> None:
    pipeline = write_all(tmp_path / "models")
    options: Any = {"models": tmp_path / "models", "config": QUIET + SHORT_TRIALS, "state": tmp_path / "state"}
    with running(tmp_path / "one", **options) as daemon, triton.InferenceServerClient(daemon.grpc) as client:
        assert walk(client, range(10, 60, 3)) == (1, 0, [1])
        assert add(client, 5, 77, sequence_start=True) == 5
    with running(tmp_path / "one", **options) as daemon, triton.InferenceServerClient(daemon.grpc) as client:
        daemon.wait_logged("1 streams of gate go on after the restart")
        assert walk(client, range(55, 10, -3)) == (1, 1, [1])  # the same person
        assert add(client, 3, 77) == 8
        daemon.kill()
    with running(tmp_path / "one", **options) as daemon, triton.InferenceServerClient(daemon.grpc) as client:
        # A sequence has no state after a kill: its client had an answer that an older one does not know.
        with pytest.raises(InferenceServerException, match="must specify the START flag"):
            add(client, 1, 77)
        assert walk(client, [10])[0] == 1
    pipeline.write_text(pipeline.read_text().replace("door = [0.1, 0.5", "door = [0.2, 0.5"))
    with running(tmp_path / "one", **options) as daemon, triton.InferenceServerClient(daemon.grpc) as client:
        daemon.wait_logged("streams of gate begin again: those on the disk are of another release of it")
        assert walk(client, [10]) == (0, 0, [1])


def test_a_kill_loses_no_more_than_the_last_period(tmp_path: Path) -> None:
    write_all(tmp_path / "models")
    options: Any = {"models": tmp_path / "models", "config": QUIET + SHORT_TRIALS, "state": tmp_path / "state"}
    folder = tmp_path / "state" / "streams"
    with running(tmp_path / "one", command=OFTEN, **options) as daemon:
        with triton.InferenceServerClient(daemon.grpc) as client:
            assert walk(client, range(10, 60, 3)) == (1, 0, [1])
            written = {file.stat().st_mtime_ns for file in folder.glob("gate-*.streams")}
            while {file.stat().st_mtime_ns for file in folder.glob("gate-*.streams")} <= written:
                walk(client, [58])
        daemon.kill()
    with running(tmp_path / "one", **options) as daemon, triton.InferenceServerClient(daemon.grpc) as client:
        assert walk(client, range(55, 10, -3)) == (1, 1, [1])
        daemon.kill()
    (file,) = folder.glob("gate-*.streams")
    file.write_bytes(file.read_bytes()[:-9])
    with running(tmp_path / "one", **options) as daemon, triton.InferenceServerClient(daemon.grpc) as client:
        assert "it is damaged" in daemon.wait_logged("its streams begin again")["event"]
        assert walk(client, [10]) == (0, 0, [1])


@pytest.mark.timeout(240)
def test_ten_thousand_streams_go_on(tmp_path: Path) -> None:
    write_all(tmp_path / "models")
    options: Any = {"models": tmp_path / "models", "config": QUIET + SHORT_TRIALS, "state": tmp_path / "state"}
    names = [f"s{number}" for number in range(10_000)]
    with running(tmp_path / "one", **options) as daemon, triton.InferenceServerClient(daemon.grpc) as client:
        ended, errors = threading.Semaphore(64), list[object]()
        for name in names:
            assert ended.acquire(timeout=60)

            def over(result: object, error: object) -> None:
                errors.extend([error] if result is None else [])
                ended.release()

            client.async_infer("sums", number(1), callback=over, sequence_id=name, sequence_start=True)
        for _ in range(64):
            assert ended.acquire(timeout=60)
        assert errors == []
    with running(tmp_path / "one", **options) as daemon, triton.InferenceServerClient(daemon.grpc) as client:
        assert add(client, 2, names[-1]) == 3
        with pytest.raises(InferenceServerException, match="START"):
            add(client, 2, "other")


def number(value: int) -> list[Any]:
    given = triton.InferInput("INPUT", [1, 1], "INT32")
    given.set_data_from_numpy(np.array([[value]], np.int32))
    return [given]
