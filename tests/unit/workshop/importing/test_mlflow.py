"""Import of MLflow's model folders."""

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.workshop.importing.imported import ImportOutcome
from gateway.workshop.importing.mlflow import is_mlflow, read_mlflow
from tests.simulators.import_sources import ML_MODEL, documents_of, write_mlflow

COLUMNS = '[{"name": "a", "type": "double"}, {"name": "b", "type": "double"}, {"name": "c", "type": "long"}]'


def read(folder, text=ML_MODEL):
    documents = documents_of(write_mlflow(folder, text))
    assert is_mlflow(documents)
    return read_mlflow(documents).models[0]


def with_inputs(text):
    head, _, rest = ML_MODEL.partition("  inputs: ")
    return f"{head}  inputs: '{text}'\n  outputs: {rest.partition('  outputs: ')[2]}"


def test_tensors_of_the_signature_are_those_of_the_file(tmp_path):
    model = read(tmp_path / "sums")
    assert (model.name, model.version) == ("sums", "1")
    assert [spec.shape for spec in model.inputs + model.outputs] == [(-1, 3), (-1, 3)]


def test_the_artifact_names_a_folder_called_model(tmp_path):
    assert read(tmp_path / "model", ML_MODEL.replace("artifact_path: sums", "artifact_path: price nets")).name == (
        "price-nets"
    )


def test_the_signature_fixes_open_dimensions(tmp_path):
    fixed = '[{"type": "tensor", "name": "x", "tensor-spec": {"dtype": "float32", "shape": [4, 3]}}]'
    assert read(tmp_path / "m", with_inputs(fixed)).inputs[0].shape == (4, 3)


def test_columns_of_one_tensor_are_named_in_order(tmp_path):
    facts = [finding.text for finding in read(tmp_path / "m", with_inputs(COLUMNS)).findings]
    assert any("the columns of x, in this order: a, b, c" in text for text in facts)


def test_columns_that_fit_no_tensor_are_left_out(tmp_path):
    model = read(tmp_path / "m", with_inputs('[{"name": "a", "type": "double"}]'))
    (left,) = [finding for finding in model.findings if finding.outcome is ImportOutcome.LEFT_OUT]
    assert "none of the tensors x [-1, 3]" in left.text


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ('"name": "z", "tensor-spec": {"dtype": "float32", "shape": [-1, 3]}', "names 'z', but the model file has x"),
        ('"name": "x", "tensor-spec": {"dtype": "int64", "shape": [-1, 3]}', "x is int64, but FP32"),
        ('"name": "x", "tensor-spec": {"dtype": "float32", "shape": [-1, 4]}', r"shape \[-1, 4\], but \[-1, 3\]"),
        ('"name": "x", "tensor-spec": {"dtype": "float32", "shape": [3]}', r"shape \[3\], but"),
        ('"name": "x"', "missing"),
    ],
)
def test_a_signature_that_contradicts_the_file_is_an_error(tmp_path, spec, problem):
    with pytest.raises(ConfigurationError, match=problem):
        read(tmp_path / "m", with_inputs(f'[{{"type": "tensor", {spec}}}]'))


@pytest.mark.parametrize(
    ("flavor", "advice"),
    [
        ("sklearn", "skl2onnx"),
        ("pytorch", "torch.onnx.export"),
        ("transformers", "optimum-cli"),
        ("prophet", "to ONNX"),
    ],
)
def test_other_flavours_say_what_to_export(tmp_path, flavor, advice):
    with pytest.raises(ConfigurationError, match=rf"no flavour onnx, only {flavor}, python_function; .*{advice}"):
        read(tmp_path / "m", ML_MODEL.replace("  onnx:", f"  {flavor}:"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("flavors: &a [*a]", "MLmodel:1: anchors and aliases"),
        ("flavors: [", "MLmodel:1: not valid YAML"),
        ("", "must be a mapping"),
        ("flavors: 3", "flavors: missing"),
        (ML_MODEL.replace("data: model.onnx", "data: ../model.onnx"), "leads out of the source"),
        (ML_MODEL.replace("data: model.onnx", "data: gone.onnx"), "gone.onnx: is missing"),
        (with_inputs("[{"), "not valid JSON"),
        (with_inputs("{}"), "must be a list"),
        ("a: " + "b" * 300_000, "has more than 262144 bytes"),
    ],
)
def test_a_damaged_document_is_an_error(tmp_path, text, problem):
    with pytest.raises(ConfigurationError, match=problem):
        read(tmp_path / "m", text)
