"""A run that its engine cannot end: its caller is told, its version is opened again, and in the end stays out."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx.parser
import openvino
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.attack.rig import HEAD
from tests.attack.test_endless_runs import LOOP
from tests.simulators.daemon import QUIET, SHORT_TRIALS, running

CONFIG = QUIET + SHORT_TRIALS + "[limits]\nrun_limit_s = 0.3\nrun_end_s = 0.3\nmax_hangs = 1\n"
ENDLESS = 2_000_000_000


def test_openvino_loops_cost_their_caller_and_in_the_end_their_version(tmp_path: Path) -> None:
    file = tmp_path / "models" / "loop" / "model.xml"
    file.parent.mkdir(parents=True)
    onnx.save(onnx.parser.parse_model(f"{HEAD}g {LOOP}"), tmp_path / "loop.onnx")
    openvino.save_model(openvino.convert_model(tmp_path / "loop.onnx"), file, compress_to_fp16=False)
    with running(tmp_path / "gateway", models=tmp_path / "models", config=CONFIG) as daemon:
        with triton.InferenceServerClient(daemon.grpc) as client:
            for _ in range(2):
                while not client.is_model_ready("loop"):  # a busy machine needs more than one trial
                    time.sleep(0.01)
                assert _sines(client, 3) == pytest.approx(np.sin(np.sin(np.sin(1.0))), abs=1e-6)
                with pytest.raises(InferenceServerException, match="longer than a run may"):
                    _sines(client, ENDLESS)
                daemon.wait_logged("servable changed", state="END")
            daemon.wait_logged("model refused")
            (line,) = client.get_model_repository_index().models
        assert line.state == "UNAVAILABLE"
        assert "did not end" in line.reason


def _sines(client: triton.InferenceServerClient, count: int) -> float:
    inputs = [triton.InferInput("n", [], "INT64"), triton.InferInput("x", [2], "FP32")]
    for tensor, values in zip(inputs, (np.array(count), np.ones(2, np.float32)), strict=True):
        tensor.set_data_from_numpy(values)
    return float(client.infer("loop", inputs).as_numpy("y")[0])
