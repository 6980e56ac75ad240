"""Defective releases of meter-reader: each function makes a valid version's folder defective before it is signed.

`fleet_device.FleetDevice.publish` takes them. They are complete and signed, and must not take over.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

from gateway.common.store.plain import file_digest
from tests.simulators import models_litert
from tests.simulators.daemon import SHIPPED
from tests.simulators.fleet_device import ONE_VARIANT, Change, exchange_artifact, keep_variant

FOR_EVER = 2**62


def wrong_golden(version: Path) -> None:
    """Replace the expected results by other classes', with correct digests.

    The bytes differ each time: verdicts are stored by content, and daemons of other tests may share them.
    """
    file, manifest = version / "golden.npz", version / "manifest.toml"
    before = file_digest(file)
    with np.load(file) as arrays:
        changed = dict(arrays)
    scores = np.roll(changed["output.scores"], 1, axis=1)
    changed["output.scores"] = scores * scores.dtype.type(random.uniform(0.9, 1.0))
    np.savez(file, **changed)
    manifest.write_text(manifest.read_text().replace(before, file_digest(file)))


def crashing(version: Path) -> None:
    """Make opening it end the process with a signal."""
    shipped = (SHIPPED / version.parent.name / "1" / "manifest.toml").read_text()
    (version / "manifest.toml").write_text(shipped.replace('version = "1"', f'version = "{version.name}"', 1))
    keep_variant(version, "litert-fp32")
    exchange_artifact(version, models_litert.crashing(), "litert-fp32/model.tflite")


def looping(trips: int, *, per_row: bool = False) -> Change:
    """Add a loop of `trips` iterations to each run; `per_row`: to each row but the first. Results stay correct."""

    def change(version: Path) -> None:
        exchange_artifact(version, _with_loop(version / ONE_VARIANT / "model.onnx", trips, per_row=per_row))

    return change


def hanging(version: Path) -> None:
    """Make its first run endless."""
    looping(FOR_EVER)(version)


def hoarding(mib_per_row: int) -> Change:
    """Allocate this much memory per row of the largest request. Results stay correct."""

    def change(version: Path) -> None:
        exchange_artifact(version, _with_hoard(version / ONE_VARIANT / "model.onnx", mib_per_row))

    return change


def _with_loop(file: Path, trips: int, *, per_row: bool) -> bytes:
    from onnx import TensorProto, helper

    body = helper.make_graph(
        [helper.make_node("Identity", ["ill_go"], ["ill_on"]), helper.make_node("Abs", ["ill_in"], ["ill_out"])],
        "ill_body",
        [
            helper.make_tensor_value_info("ill_step", TensorProto.INT64, []),
            helper.make_tensor_value_info("ill_go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("ill_in", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("ill_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("ill_out", TensorProto.FLOAT, []),
        ],
    )
    count = [
        helper.make_node("Shape", ["image"], ["ill_shape"], start=0, end=1),
        helper.make_node("Squeeze", ["ill_shape"], ["ill_rows"]),
        helper.make_node("Sub", ["ill_rows", "ill_one"], ["ill_more"]),
        helper.make_node("Mul", ["ill_more", "ill_trips"], ["ill_count"]),
    ]
    return _added(
        file,
        [
            *(count if per_row else [helper.make_node("Identity", ["ill_trips"], ["ill_count"])]),
            helper.make_node("ReduceSum", ["image"], ["ill_sum"], keepdims=0),
            helper.make_node("Loop", ["ill_count", "ill_start", "ill_sum"], ["ill_result"], body=body),
        ],
        [
            helper.make_tensor("ill_one", TensorProto.INT64, [], [1]),
            helper.make_tensor("ill_trips", TensorProto.INT64, [], [trips]),
            helper.make_tensor("ill_start", TensorProto.BOOL, [], [True]),
        ],
    )


def _with_hoard(file: Path, mib_per_row: int) -> bytes:
    from onnx import TensorProto, helper

    return _added(
        file,
        [
            helper.make_node("ReduceSum", ["image", "ill_axes"], ["ill_row"], keepdims=0),
            helper.make_node("Unsqueeze", ["ill_row", "ill_axis"], ["ill_column"]),
            helper.make_node("Expand", ["ill_column", "ill_wide"], ["ill_hoard"]),
            helper.make_node("Sqrt", ["ill_hoard"], ["ill_more"]),
            helper.make_node("ReduceMax", ["ill_more"], ["ill_result"], keepdims=0),
        ],
        [
            helper.make_tensor("ill_axes", TensorProto.INT64, [3], [1, 2, 3]),
            helper.make_tensor("ill_axis", TensorProto.INT64, [1], [1]),
            helper.make_tensor("ill_wide", TensorProto.INT64, [2], [1, mib_per_row << 18]),
        ],
    )


def _added(file: Path, nodes: list[Any], constants: list[Any]) -> bytes:
    """Add `ill_result` to the model, a scalar that is not NaN, multiplied by zero into its scores."""
    import onnx
    from onnx import TensorProto, helper

    model = onnx.load(file)
    graph = model.graph
    (last,) = [node for node in graph.node if "scores" in node.output]
    last.output[list(last.output).index("scores")] = "true_scores"
    nodes = [
        *nodes,
        helper.make_node("Mul", ["ill_result", "ill_nought"], ["ill_nothing"]),
        helper.make_node("Add", ["true_scores", "ill_nothing"], ["scores"]),
    ]
    graph.node.extend(nodes)
    graph.initializer.extend([*constants, helper.make_tensor("ill_nought", TensorProto.FLOAT, [], [0.0])])
    content: bytes = model.SerializeToString()
    return content
