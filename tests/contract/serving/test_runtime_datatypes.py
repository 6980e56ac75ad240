"""Datatypes that pass through each runtime unchanged, at the ends of their ranges."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import Artifact, ModelManifest, TensorSpec, Variant
from gateway.common.domain.tensor import Datatype, bfloat16_to_float32, float32_to_bfloat16
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.runtimes.catalog import get_runtime
from tests.simulators import models

FLOATS = (Datatype.FP16, Datatype.FP32, Datatype.FP64, Datatype.BF16)
NOT_EXCHANGED = {("openvino", Datatype.BYTES), ("litert", Datatype.BF16)}
NARROWED = {  # OpenVINO's plugins compute in 32 bits whatever the graph says
    ("openvino", Datatype.INT64): Datatype.INT32,
    ("openvino", Datatype.UINT64): Datatype.UINT16,
}
PAIRS = [
    (runtime, datatype) for runtime in models.FILES for datatype in Datatype if (runtime, datatype) not in NOT_EXCHANGED
]


def extremes(datatype):
    """Return two rows of three values."""
    if datatype is Datatype.BYTES:
        return np.array([[b"", "Grüße".encode(), b"a"], [b"b" * 1000, b"c", b"dd"]], object)
    if datatype is Datatype.BOOL:
        return np.array([[True, False, True], [False, False, True]])
    if datatype in FLOATS:
        values = np.array([[0.0, 1.5, -2.25], [np.inf, -np.inf, np.nan]], datatype.dtype)
        return bfloat16_to_float32(float32_to_bfloat16(values)) if datatype is Datatype.BF16 else values
    bounds = np.iinfo(datatype.dtype)
    return np.array([[bounds.min, 0, 1], [bounds.max, 2, 3]], datatype.dtype)


@pytest.mark.parametrize(("runtime", "datatype"), PAIRS, ids=[f"{r}-{d.label}" for r, d in PAIRS])
def test_identity(runtime, datatype, tmp_path):
    manifest = models.write_variant(tmp_path, models.identity(datatype), runtime)
    session = get_runtime(runtime).open(manifest, manifest.variants[0], tmp_path, SessionBudget())
    values = extremes(NARROWED.get((runtime, datatype), datatype)).astype(datatype.dtype)
    answer = session.run({"x": values})["y"]
    assert answer.dtype == datatype.dtype
    np.testing.assert_array_equal(answer, values)
    assert not np.may_share_memory(answer, values), "the caller may refill its inputs while outputs are lent"


def test_bytes_that_are_no_utf8_are_refused_by_onnx(tmp_path):
    manifest = models.write_variant(tmp_path, models.identity(Datatype.BYTES), "onnx")
    session = get_runtime("onnx").open(manifest, manifest.variants[0], tmp_path, SessionBudget())
    with pytest.raises(VariantError, match="utf-8"):
        session.run({"x": np.array([[b"\xff", b"", b""]], object)})


@pytest.mark.parametrize("classes", [["low", "high", "mid"], [7, -1, 30]])
def test_maps_of_zipmap_are_a_matrix_in_the_order_of_the_classes_of_the_file(classes, tmp_path):
    strings = isinstance(classes[0], str)
    named = {"classlabels_strings" if strings else "classlabels_int64s": classes}
    kind = TensorProto.STRING if strings else TensorProto.INT64
    scores = helper.make_map_type_proto(kind, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    graph = helper.make_graph(
        [
            helper.make_node("ZipMap", ["x"], ["probabilities"], domain="ai.onnx.ml", **named),
            helper.make_node("SplitToSequence", ["x"], ["parts"]),
            helper.make_node("Identity", ["x"], ["y"]),
        ],
        "zipped",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [
            helper.make_value_info("probabilities", helper.make_sequence_type_proto(scores)),
            helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3]),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    file = tmp_path / "model.onnx"
    file.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    signature = get_runtime("onnx").inspect(file)
    outputs = (TensorSpec("probabilities", Datatype.FP32, (-1, 3)), TensorSpec("y", Datatype.FP32, (-1, 3)))
    assert [(spec.name, spec.datatype, spec.shape) for spec in signature.outputs] == [
        (spec.name, spec.datatype, spec.shape) for spec in outputs
    ]
    variant = Variant("v", "onnx", "fp32", (Artifact("model.onnx", "0" * 64, 1),))
    manifest = ModelManifest("m", "1", (TensorSpec("x", Datatype.FP32, (-1, 3)),), outputs, (variant,))
    session = get_runtime("onnx").open(manifest, variant, tmp_path, SessionBudget())
    assert get_runtime("onnx").prove_rows(variant, tmp_path, session.rows).is_proved
    for values in (np.array([[0.5, 0.25, 0.125], [1.0, 2.0, 3.0]], np.float32), np.empty((0, 3), np.float32)):
        answer = session.run({"x": values})["probabilities"]
        assert (answer.dtype, answer.shape) == (np.float32, values.shape)
        np.testing.assert_array_equal(answer, values)


@pytest.mark.parametrize("datatype", [Datatype.INT64, Datatype.UINT64])
def test_integers_that_openvino_would_wrap_are_refused(datatype, tmp_path):
    manifest = models.write_variant(tmp_path, models.identity(datatype), "openvino")
    session = get_runtime("openvino").open(manifest, manifest.variants[0], tmp_path, SessionBudget())
    with pytest.raises(VariantError, match="'x' holds integers that do not fit int32"):
        session.run({"x": np.array([[0, 1, 2**40]], datatype.dtype)})


def test_strings_are_refused_by_openvino_when_the_file_is_read(tmp_path):
    import openvino as ov
    from openvino import opset13 as ops

    text = ops.parameter([3], ov.Type.string, name="text")
    ov.save_model(ov.Model([text], [text], "text"), str(tmp_path / "model.xml"))
    with pytest.raises(VariantError, match="is string, which this runtime cannot exchange"):
        get_runtime("openvino").inspect(tmp_path / "model.xml")
