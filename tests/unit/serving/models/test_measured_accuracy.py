"""Every committed variant, run by its own runtime, is as accurate on the held-out rows as its manifest and card say."""

from pathlib import Path

import numpy as np
import pytest
import tomllib

MODELS = Path(__file__).resolve().parents[4] / "models"
# Int8 kernels round differently from processor to processor: besides the printed figure's rounding, so many held-out
# rows may fall to the other side than on the machine that wrote the manifest.
ROWS_APART = 2
FIGURE_ROUNDING = 5e-5
ONE_STEP = 0.02  # a probability's change when an int8 score is rounded up in one kernel and down in another


def run_onnx(files, bind, inputs):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(files[0], options, providers=["CPUExecutionProvider"])
    return session.run([bind["scores"]["name"]], inputs)[0]


def run_openvino(files, bind, inputs):
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = openvino.Core().compile_model(files[0], "CPU", settings)
    return compiled(inputs)[bind["scores"]["name"]]


def run_litert(files, bind, inputs):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(files[0]), num_threads=1)
    source = {each["name"]: each for each in interpreter.get_input_details()}
    for name, values in inputs.items():
        interpreter.resize_tensor_input(source[name]["index"], values.shape)
    interpreter.allocate_tensors()
    for name, values in inputs.items():
        interpreter.set_tensor(source[name]["index"], quantised(values, source[name]))
    interpreter.invoke()
    target = next(each for each in interpreter.get_output_details() if each["name"] == bind["scores"]["name"])
    return dequantised(interpreter.get_tensor(target["index"]), target)


def quantised(values, detail):
    scale, zero = detail["quantization"]
    if detail["dtype"] == np.float32:
        return values
    return np.clip(np.rint(values / scale) + zero, -128, 127).astype(detail["dtype"])


def dequantised(values, detail):
    scale, zero = detail["quantization"]
    return values if detail["dtype"] == np.float32 else (values.astype(np.float32) - zero) * np.float32(scale)


RUNTIMES = {"onnx": run_onnx, "openvino": run_openvino, "litert": run_litert}


def cases():
    for path in sorted(MODELS.glob("*/*/manifest.toml")):
        manifest = tomllib.loads(path.read_text())
        for variant in manifest["variant"]:
            if variant["runtime"] in RUNTIMES:
                yield pytest.param(path.parent, manifest, variant, id=f"{manifest['name']}-{variant['name']}")


CASES = list(cases())


def softmax(logits):
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def scores_of(folder, manifest, variant, rows):
    tensor = manifest["input"][0]
    bound = variant["bind"][tensor["name"]]
    axes = [tensor["layout"].index(axis) for axis in bound["layout"]]
    inputs = {bound["name"]: np.ascontiguousarray(rows.transpose(axes))}
    files = [folder / artifact["path"] for artifact in variant["artifacts"]]
    return softmax(RUNTIMES[variant["runtime"]](files, variant["bind"], inputs))


def golden_of(folder, manifest):
    with np.load(folder / manifest["golden"]["file"], allow_pickle=False) as arrays:
        return arrays[f"input.{manifest['input'][0]['name']}"], arrays["output.scores"], arrays["label"]


@pytest.mark.parametrize(("folder", "manifest", "variant"), CASES)
def test_a_variant_is_as_accurate_as_its_manifest_says(folder, manifest, variant):
    rows, _, label = golden_of(folder, manifest)
    accuracy = np.mean(scores_of(folder, manifest, variant, rows).argmax(axis=1) == label)
    assert accuracy == pytest.approx(variant["accuracy"], abs=ROWS_APART / len(label) + FIGURE_ROUNDING)


@pytest.mark.parametrize(("folder", "manifest", "variant"), CASES)
def test_a_variant_passes_its_golden_set(folder, manifest, variant):
    rows, expected, _ = golden_of(folder, manifest)
    scores = scores_of(folder, manifest, variant, rows)
    limit = manifest["golden"]["tolerance"][variant["runtime"]]
    assert np.mean(scores.argmax(axis=1) == expected.argmax(axis=1)) >= limit["agreement"]
    assert np.mean(np.abs(scores - expected)) <= limit["mean_abs"]


@pytest.mark.parametrize(("folder", "manifest", "variant"), CASES)
def test_a_golden_set_refuses_a_variant_whose_channels_or_pixels_are_misplaced(folder, manifest, variant):
    rows, expected, _ = golden_of(folder, manifest)
    limit = manifest["golden"]["tolerance"][variant["runtime"]]
    scores = scores_of(folder, manifest, variant, np.ascontiguousarray(rows[..., ::-1]))
    assert np.mean(np.abs(scores - expected)) > limit["mean_abs"]


@pytest.mark.parametrize(("folder", "manifest", "variant"), CASES)
def test_rows_of_a_batch_do_not_change_each_other(folder, manifest, variant):
    rows, _, _ = golden_of(folder, manifest)
    together = scores_of(folder, manifest, variant, rows[:5])
    alone = np.concatenate([scores_of(folder, manifest, variant, rows[number : number + 1]) for number in range(5)])
    np.testing.assert_allclose(together, alone, atol=ONE_STEP)


def test_the_golden_outputs_reach_the_accuracy_of_the_reference_variant():
    for path in sorted(MODELS.glob("*/*/manifest.toml")):
        manifest = tomllib.loads(path.read_text())
        reference = next(each for each in manifest["variant"] if each["runtime"] == "reference")
        _, expected, label = golden_of(path.parent, manifest)
        assert np.mean(expected.argmax(axis=1) == label) == pytest.approx(reference["accuracy"], abs=FIGURE_ROUNDING)
