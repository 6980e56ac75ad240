"""Import of models that skl2onnx converted; the files are made as its converters lay them out."""

import pytest
from onnx import TensorProto, helper

from gateway.common.domain.errors import ConfigurationError
from gateway.workshop.importing.imported import ImportOutcome
from gateway.workshop.importing.sklearn_export import is_sklearn, read_sklearn
from tests.simulators.import_sources import documents_of, save

value = helper.make_tensor_value_info


def write_linear(file, classes, *, names=("label", "probabilities")):
    """Write a linear classifier of a number and a text, which is not used, as a pipeline of columns has them."""
    attribute = {"classlabels_strings": classes} if isinstance(classes[0], str) else {"classlabels_ints": classes}
    count = len(classes)
    node = helper.make_node(
        "LinearClassifier",
        ["size"],
        list(names),
        domain="ai.onnx.ml",
        coefficients=[1.0] * count,
        intercepts=[0.0] * count,
        post_transform="SOFTMAX",
        **attribute,
    )
    label = TensorProto.STRING if isinstance(classes[0], str) else TensorProto.INT64
    inputs = [value("size", TensorProto.FLOAT, ["n", 1]), value("city", TensorProto.STRING, ["n", 1])]
    outputs = [value(names[0], label, ["n"]), value(names[1], TensorProto.FLOAT, ["n", count])]
    save(file, helper.make_graph([node], "pipeline", inputs, outputs), producer="skl2onnx")


def write_regressor(file):
    node = helper.make_node(
        "LinearRegressor", ["x"], ["variable"], domain="ai.onnx.ml", coefficients=[1.0, 2.0], intercepts=[0.0]
    )
    tensors = value("x", TensorProto.FLOAT, ["n", 2]), value("variable", TensorProto.FLOAT, ["n", 1])
    save(file, helper.make_graph([node], "regressor", [tensors[0]], [tensors[1]]), producer="skl2onnx")


def read(file):
    documents = documents_of(file)
    assert is_sklearn(documents)
    return read_sklearn(documents).models[0]


@pytest.mark.parametrize("classes", [["high", "low", "mid"], [0, 1, 2, 7]])
@pytest.mark.parametrize("names", [("label", "probabilities"), ("output_label", "output_probability")])
def test_a_classifier_with_columns_of_numbers_and_texts(tmp_path, classes, names):
    write_linear(tmp_path / "price.onnx", classes, names=names)
    model = read(tmp_path / "price.onnx")
    assert (model.name, model.task) == ("price", "tabular-classification")
    assert model.labels == tuple(map(str, classes))
    assert model.task_options == {"output": names[1], "label_output": names[0]}
    assert [(spec.name, spec.datatype.label, spec.shape) for spec in model.inputs] == [
        ("size", "FP32", (-1, 1)),
        ("city", "BYTES", (-1, 1)),
    ]


def test_a_regressor(tmp_path):
    write_regressor(tmp_path / "m.onnx")
    model = read(tmp_path / "m.onnx")
    assert (model.task, model.task_options) == ("tabular-regression", {"output": "variable"})


def test_a_transformer_has_no_task(tmp_path):
    node = helper.make_node("Identity", ["x"], ["variable"])
    tensors = value("x", TensorProto.FLOAT, ["n", 2]), value("variable", TensorProto.FLOAT, ["n", 2])
    save(tmp_path / "m.onnx", helper.make_graph([node], "scaler", [tensors[0]], [tensors[1]]), producer="skl2onnx")
    model = read(tmp_path / "m.onnx")
    assert (model.task, model.task_options) == ("", None)
    assert [finding.outcome for finding in model.findings if finding.what == "task"] == [ImportOutcome.MISSING]


def test_several_files_are_refused(tmp_path):
    for name in ("a.onnx", "b.onnx"):
        write_regressor(tmp_path / name)
    with pytest.raises(ConfigurationError, match=r"several models: a.onnx, b.onnx; import each file alone"):
        read(tmp_path)
