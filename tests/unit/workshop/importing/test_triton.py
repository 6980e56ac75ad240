"""Import of Triton's repositories: what is taken over, what is skipped, what is refused."""

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import Binding
from gateway.workshop.importing.imported import ImportOutcome
from gateway.workshop.importing.triton import is_triton, read_triton
from tests.simulators.import_sources import TRITON, documents_of, write_sums, write_triton

BARE = 'name: "sums" max_batch_size: 4 '


def test_a_repository_becomes_releases(tmp_path):
    documents = documents_of(write_triton(tmp_path))
    assert is_triton(documents)
    found = read_triton(documents)
    assert [(model.name, model.version) for model in found.models] == [("sums", "1"), ("sums", "2")]
    model = found.models[0]
    assert found.skipped == ()
    assert model.labels == ("cat", "dog", "eel")
    assert (model.batch, model.max_batch_rows) == (True, 16)
    assert [spec.shape for spec in model.inputs + model.outputs] == [(-1, 3), (-1, 3)]
    left = {finding.what for finding in model.findings if finding.outcome is ImportOutcome.LEFT_OUT}
    assert left == {"instance_group", "dynamic_batching"}


def test_the_folder_of_one_model_is_a_source(tmp_path):
    found = read_triton(documents_of(write_triton(tmp_path) / "sums"))
    assert [model.name for model in found.models] == ["sums", "sums"]


def test_a_folder_without_configuration_is_described_by_its_file(tmp_path):
    write_triton(tmp_path)
    write_sums(tmp_path / "plain" / "3" / "model.onnx")
    found = read_triton(documents_of(tmp_path))
    assert (found.models[0].name, found.models[0].version) == ("plain", "3")


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ("sequence_batching { iterative_sequence: true }", "iterative_sequence: is not offered here"),
        ("model_transaction_policy { decoupled: true }", "decoupled: is not offered here"),
        ('backend: "tensorrt_x"', "'tensorrt_x' is not offered here; use one of onnxruntime"),
        ('platform: "tensorrt_plan"', "'tensorrt_plan' is not offered here"),
    ],
)
def test_what_cannot_be_served_is_skipped_with_its_line(tmp_path, field, why):
    write_triton(tmp_path, config=f"{BARE}\n{field}\n")
    write_sums(tmp_path / "plain" / "1" / "model.onnx")
    found = read_triton(documents_of(tmp_path))
    assert [model.name for model in found.models] == ["plain"]
    (skipped,) = found.skipped
    assert why in skipped.why
    assert "sums/config.pbtxt:2" in skipped.why


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (f"{BARE}\nmax_batchsize: 4", "sums/config.pbtxt:2: max_batchsize: unknown field"),
        (TRITON[: len(TRITON) // 2], "sums/config.pbtxt:6: a field"),
        ('name: "other"', "says 'other', but the folder is called 'sums'"),
        (f"{BARE} max_batch_size: 8", "is given twice"),
        (
            f'{BARE} output {{ name: "y" data_type: TYPE_FP32 dims: 3 label_filename: "../l.txt" }}',
            "in the same folder",
        ),
        (
            f'{BARE} output {{ name: "y" data_type: TYPE_FP32 dims: 3 label_filename: "gone.txt" }}',
            "gone.txt: is missing",
        ),
    ],
)
def test_a_damaged_configuration_is_an_error(tmp_path, config, problem):
    with pytest.raises(ConfigurationError, match=problem.replace("'", ".")):
        read_triton(documents_of(write_triton(tmp_path, config=config)))


def test_a_configuration_that_contradicts_the_file_is_skipped(tmp_path):
    config = f'{BARE} input {{ name: "x" data_type: TYPE_INT8 dims: [ 3 ] }}'
    found = read_triton(documents_of(write_triton(tmp_path, config=config, versions=["1"])))
    assert found.models == ()
    assert "correct data_type" in found.skipped[0].why


@pytest.mark.parametrize("version", ["0", "01", "00"])
def test_versions_that_triton_does_not_read_are_named(tmp_path, version):
    found = read_triton(documents_of(write_triton(tmp_path, versions=["1", version])))
    assert [model.version for model in found.models] == ["1"]
    assert [(each.version, "leading zeros" in each.why) for each in found.skipped] == [(version, True)]


def test_the_version_policy_applies(tmp_path):
    config = f"{BARE} version_policy {{ specific {{ versions: [ 2, 7 ] }} }}"
    found = read_triton(documents_of(write_triton(tmp_path, config=config)))
    assert [model.version for model in found.models] == ["2"]
    assert [(each.version, "names it" in each.why) for each in found.skipped] == [("7", True)]


def test_a_reshape_becomes_a_binding(tmp_path):
    config = f'{BARE} input {{ name: "x" data_type: TYPE_FP32 dims: [ 3, 1 ] reshape {{ shape: [ 3 ] }} }}'
    (model, _) = read_triton(documents_of(write_triton(tmp_path, config=config))).models
    assert model.inputs[0].shape == (-1, 3, 1)
    assert model.variants[0].bind == {"x": Binding("x", shape=(-1, 3))}


def test_labels_that_do_not_fit_the_output_are_left_out(tmp_path):
    write_triton(tmp_path)
    (tmp_path / "sums" / "labels.txt").write_text("cat\ndog\n")
    model = read_triton(documents_of(tmp_path)).models[0]
    assert model.labels == ()
    assert any("names 2 classes, but the model has 3" in finding.text for finding in model.findings)


def test_labels_of_10_mib_are_refused(tmp_path):
    write_triton(tmp_path)
    (tmp_path / "sums" / "labels.txt").write_text("cat\n" * (10 * 1024 * 1024 // 4))
    with pytest.raises(ConfigurationError, match=r"sums/labels.txt: has more than 1048576 bytes"):
        read_triton(documents_of(tmp_path))


def test_a_model_without_versions_is_named(tmp_path):
    write_triton(tmp_path, versions=[])
    assert "holds no folder of a version" in read_triton(documents_of(tmp_path)).skipped[0].why
