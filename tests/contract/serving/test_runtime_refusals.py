"""Files and manifests that every runtime refuses to open, with a reason that names what is wrong."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import Artifact, Binding, TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.runtimes.catalog import get_runtime
from tests.simulators.models import FILES


def refusal(case, **changes):
    """Return the error of opening a changed manifest or variant."""
    manifest = replace(case.manifest, **{key: changes.pop(key) for key in ("inputs", "outputs") if key in changes})
    budget = changes.pop("budget", SessionBudget())
    variant = replace(case.variant, **changes)
    with pytest.raises(VariantError) as caught:
        get_runtime(variant.runtime).open(manifest, variant, case.files, budget)
    return caught.value


def artifact(case):
    return case.files / case.variant.artifacts[0].path


@pytest.mark.parametrize("content", [b"", b"not a model " * 50], ids=["empty", "garbage"])
def test_a_file_that_is_no_model(small, content):
    artifact(small).write_bytes(content)
    assert artifact(small).name in refusal(small).reason


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_truncated_file(small, share):
    content = artifact(small).read_bytes()
    artifact(small).write_bytes(content[: int(len(content) * share)])
    assert artifact(small).name in refusal(small).reason


def test_a_missing_file(small):
    artifact(small).unlink()
    assert "does not exist" in refusal(small).reason


def test_a_file_that_cannot_be_read_is_told_with_a_remedy_and_tried_again(small):
    for artifact in small.variant.artifacts:
        file = small.files / artifact.path
        kept = file.read_bytes()
        file.unlink()
        file.symlink_to(file)  # it is there, and not even root may read it
        error = refusal(small)
        assert (f"the model file {file} cannot be read" in error.reason, error.transient) == (True, True)
        assert "let the gateway's user read it" in error.remedy
        file.unlink()
        file.write_bytes(kept)


def test_artifacts_of_another_runtime(small):
    error = refusal(small, artifacts=(Artifact("model.other", "0" * 64, 1),))
    assert "model.other" in error.reason
    assert error.remedy


def test_another_input_name(small):
    error = refusal(small, bind={"x": Binding("pixels")})
    assert "no input called 'pixels'" in error.reason
    assert "'x'" in error.reason


def test_another_output_name(small):
    assert "no output called 'classes'" in refusal(small, bind={"scores": Binding("classes")}).reason


def test_an_input_that_nobody_feeds(small):
    spec = replace(small.manifest.inputs[0], name="y")
    error = refusal(small, inputs=(spec,), bind={"y": Binding("scores")})
    assert "scores" in error.reason


@pytest.mark.parametrize("shape", [(-1, 5), (-1, 4, 1), (-1, -1)])
def test_another_shape_says_both(small, shape):
    error = refusal(small, inputs=(TensorSpec("x", Datatype.FP32, shape),))
    assert str(list(shape)) in error.reason
    assert "[-1, 4]" in error.reason
    assert "'x'" in error.reason


def test_another_datatype_says_both(small):
    error = refusal(small, inputs=(TensorSpec("x", Datatype.BYTES, (-1, 4)),))
    assert "BYTES" in error.reason
    assert "FP32" in error.reason


def test_an_unknown_accelerator(small):
    assert "cannot use hailo-8" in refusal(small, budget=SessionBudget(accelerator="hailo-8")).reason


def test_an_unknown_option(small):
    assert "no option 'turbo'" in refusal(small, budget=SessionBudget(options={"turbo": "yes"})).reason


@pytest.mark.parametrize("runtime", FILES)
def test_inspecting_a_missing_file(runtime):
    suffix = {"onnx": ".onnx", "openvino": ".xml", "litert": ".tflite", "reference": ".npz"}[runtime]
    with pytest.raises(VariantError, match="does not exist"):
        get_runtime(runtime).inspect(Path("/nowhere/model").with_suffix(suffix))


def test_inspection_tells_what_opening_needs(small):
    """A manifest completed from the signature opens: that is how a bare model is served."""
    signature = get_runtime(small.variant.runtime).inspect(artifact(small))
    assert [(spec.name, spec.datatype, spec.shape) for spec in signature.inputs] == [("x", Datatype.FP32, (-1, 4))]
    assert [(spec.name, spec.datatype, spec.shape) for spec in signature.outputs] == [
        ("scores", Datatype.FP32, (-1, 3))
    ]
    manifest = replace(small.manifest, inputs=signature.inputs, outputs=signature.outputs)
    session = get_runtime(small.variant.runtime).open(manifest, small.variant, small.files, SessionBudget())
    assert session.run(small.inputs)["scores"].shape == (8, 3)
