"""Steps with state in the real daemon: images of two streams over gRPC and HTTP, in the order in which they come."""

import hashlib
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as web
from onnx import helper, numpy_helper
from tritonclient.utils import InferenceServerException

from tests.simulators.daemon import QUIET, ROOT, SHORT_TRIALS, running
from tests.simulators.images_made import encoded
from tests.simulators.models_made import save, shaped

MANIFEST = """
schema = 1
name = "person-detector"
version = "1"
labels = ["person"]
rows = "independent"
[task]
kind = "object-detection"
head = "end-to-end"
score_threshold = 0.05
[[input]]
name = "image"
datatype = "FP32"
shape = [-1, 3, 64, 64]
layout = "NCHW"
preprocess = {{decode = ["jpeg", "png"], resize = [64, 64], fit = "letterbox"}}
[[output]]
name = "dets"
datatype = "FP32"
shape = [-1, 1, 6]
[[variant]]
name = "onnx-fp32"
runtime = "onnx"
precision = "fp32"
artifacts = [{{path = "model.onnx", sha256 = "{sha256}", bytes = {size}}}]
"""


def write_models(folder: Path) -> None:
    """Write a detector that finds one person, who stands in the brightest row, and the pipeline of the how-to."""
    made = folder / "person-detector" / "1"
    made.mkdir(parents=True)
    nodes = [
        helper.make_node("ReduceMax", ["image"], ["rows_of"], axes=[1, 3], keepdims=0),
        helper.make_node("ArgMax", ["rows_of"], ["row"], axis=1, keepdims=1),
        helper.make_node("Cast", ["row"], ["at"], to=1),
        helper.make_node("MatMul", ["at", "factors"], ["scaled"]),
        helper.make_node("Add", ["scaled", "offsets"], ["flat"]),
        helper.make_node("Unsqueeze", ["flat", "axis"], ["dets"]),
    ]
    values = {
        "factors": np.array([[0, 1, 0, 1, 0, 0]], np.float32),
        "offsets": np.array([[20, -20, 40, 1, 0.9, 0]], np.float32),
        "axis": np.array([1]),
    }
    arrays = [numpy_helper.from_array(array, name) for name, array in values.items()]
    model = shaped({"image": ["rows", 3, 64, 64]}, {"dets": ["rows", 1, 6]}, *nodes, initializer=arrays)
    content = save(model, made / "model.onnx").read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    (made / "manifest.toml").write_text(MANIFEST.format(sha256=sha256, size=len(content)))
    page = (ROOT / "docs/pages/howto/pipelines.md").read_text()
    declared = next(block for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "person-detector" in block)
    (folder / "gate" / "1").mkdir(parents=True)
    (folder / "gate" / "1" / "pipeline.toml").write_text(f'schema = 1\nname = "gate"\nversion = "1"\n{declared}')


def picture(row: int) -> bytes:
    """Return an image with one bright row."""
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[row] = 255
    return encoded(pixels)


def inputs(client: object, row: int) -> list[object]:
    """Return the image of a person who stands in a row, for one of Triton's clients."""
    given = client.InferInput("image", [1], "BYTES")  # type: ignore[attr-defined]
    given.set_data_from_numpy(np.array([picture(row)], object))
    return [given]


def test_streams_of_real_clients_are_counted(tmp_path: Path) -> None:
    write_models(tmp_path / "models")
    walk = [*range(10, 60, 3), *range(58, 10, -3)]
    with running(tmp_path, models=tmp_path / "models", config=QUIET + SHORT_TRIALS) as daemon:
        client, other = triton.InferenceServerClient(daemon.grpc), web.InferenceServerClient(daemon.http)
        found, ended = dict[int, Any](), threading.Semaphore(0)

        def received(place: int, result: triton.InferResult, error: object) -> None:
            found[place] = error or tuple(int(result.as_numpy(name)[0]) for name in ("entered", "left"))
            ended.release()

        for place, row in enumerate(walk):  # all at once, in one stream
            client.async_infer(
                "gate",
                inputs(triton, row),
                callback=lambda result, error, place=place: received(place, result, error),
                sequence_id="camera",
            )
            web_found = other.infer("gate", inputs(web, row), sequence_id=7)
        for _ in walk:
            assert ended.acquire(timeout=60)
        assert found[len(walk) - 1] == (1, 1)
        assert [found[place][0] for place in range(len(walk))] == sorted(found[place][0] for place in found)
        assert (web_found.as_numpy("entered"), web_found.as_numpy("left")) == ([1], [1])
        assert web_found.as_numpy("people.track").tolist() == [[1]]
        bad = triton.InferInput("image", [1], "BYTES")
        bad.set_data_from_numpy(np.array([b"none"], object))
        with pytest.raises(InferenceServerException, match="not a jpeg or png image"):
            client.infer("gate", [bad], sequence_id="camera")
        assert client.infer("gate", inputs(triton, 10), sequence_id="camera").as_numpy("entered").tolist() == [1]
        assert client.get_model_config("gate").config.parameters["state"].string_value == "stream"
