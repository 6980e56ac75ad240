"""Import of exports of Optimum: labels, images, variants."""

import json

import numpy as np
import pytest
from onnx import TensorProto, helper

from gateway.common.domain.errors import ConfigurationError
from gateway.workshop.importing.hugging_face import is_hugging_face, read_hugging_face
from gateway.workshop.importing.imported import ImportOutcome
from gateway.workshop.importing.pixels import PixelSteps, preprocess_keys
from gateway.workshop.importing.release_writer import settled
from tests.simulators.import_sources import CLASSES, documents_of, save, write_classifier, write_hugging_face


def read(folder):
    documents = documents_of(folder)
    assert is_hugging_face(documents)
    return read_hugging_face(documents).models[0]


def left(model):
    return {finding.what: finding.text for finding in model.findings if finding.outcome is ImportOutcome.LEFT_OUT}


def test_a_classifier_of_images(tmp_path):
    model = read(write_hugging_face(tmp_path / "vit base"))
    assert (model.name, model.task, model.labels) == ("vit-base", "image-classification", CLASSES)
    assert (model.inputs[0].shape, model.inputs[0].layout) == ((-1, 3, 8, 8), "NCHW")
    assert model.outputs[0].postprocess == "softmax"
    keys = model.preprocess["pixel_values"]
    assert (keys["resize"], keys["fit"], keys["mean"]) == ([8, 8], "stretch", [1.0])
    assert keys["scale"] == pytest.approx(1 / 127.5)
    assert left(model) == {}


def test_scale_and_mean_give_what_the_processor_gives():
    pixels, mean, std = np.arange(256.0), 0.4, 0.2
    keys = preprocess_keys(PixelSteps((8, 8), scale=1 / 255, mean=(mean,) * 3, std=(std,) * 3))
    np.testing.assert_allclose(pixels * keys["scale"] - keys["mean"][0], (pixels / 255 - mean) / std, atol=1e-6)


def test_deviations_by_channel_have_a_key(tmp_path):
    model = read(write_hugging_face(tmp_path, processor={"image_std": [0.2, 0.3, 0.4]}))
    assert model.preprocess["pixel_values"]["std"] == [0.2, 0.3, 0.4]
    assert model.preprocess["pixel_values"]["mean"] == [0.5]
    assert settled(model).task_options == model.task_options


def test_the_centre_of_an_image(tmp_path):
    processor = {"size": {"shortest_edge": 10}, "do_center_crop": True, "crop_size": {"height": 8, "width": 8}}
    model = read(write_hugging_face(tmp_path, processor=processor))
    keys = model.preprocess["pixel_values"]
    assert (keys["fit"], keys["crop_share"], keys["resize"], left(model)) == ("crop", 0.8, [8, 8], {})
    processor["crop_size"] = {"height": 8, "width": 6}
    assert "no square" in left(read(write_hugging_face(tmp_path / "oblong", processor=processor)))["crop_size"]
    processor["crop_size"] = {"height": 12, "width": 12}
    assert "enlarged" in left(read(write_hugging_face(tmp_path / "larger", processor=processor)))["crop_size"]
    processor |= {"size": {"height": 10, "width": 12}, "crop_size": {"height": 8, "width": 8}}
    assert "stretched" in left(read(write_hugging_face(tmp_path / "both", processor=processor)))["do_center_crop"]


@pytest.mark.parametrize(
    ("processor", "key", "value"),
    [
        ({"do_flip_channel_order": True}, "color", "bgr"),
        ({"do_rescale": False, "do_normalize": False}, "scale", 1.0),
        ({"size": 8}, "resize", [8, 8]),
        ({"size": {"shortest_edge": 8}, "crop_pct": 0.8}, "crop_share", 0.8),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.8}, "fit", "stretch"),
        ({"resample": 3}, "resample", "bicubic"),
        ({"do_normalize": False}, "mean", [0.0]),
    ],
)
def test_switches_of_the_processor(tmp_path, processor, key, value):
    assert read(write_hugging_face(tmp_path, processor=processor)).preprocess["pixel_values"][key] == value


@pytest.mark.parametrize("unknown", [5, [3], "bicubic"])
def test_a_filter_without_a_name_here_is_reported(tmp_path, unknown):
    model = read(write_hugging_face(tmp_path, processor={"resample": unknown}))
    assert "in training, bilinear here" in left(model)["resample"]


@pytest.mark.parametrize(
    ("processor", "problem"),
    [
        ({"size": {"height": 0, "width": 8}}, "size: must be 1 to 16384 pixels, not 0"),
        ({"size": True}, "must be 1 to"),
        ({"size": {"shortest_edge": 8}, "crop_pct": "0.9"}, "crop_pct: must be a share"),
        ({"image_mean": ["a"]}, "image_mean: must be a number"),
        ({"image_mean": [1, 2]}, "must be 1 or 3 numbers"),
        ({"image_std": [0, 0, 0]}, "must be 1 or 3 numbers, for a deviation above 0"),
        ({"rescale_factor": 1e300}, "rescale_factor: must be a number"),
    ],
)
def test_wrong_numbers_are_errors(tmp_path, processor, problem):
    with pytest.raises(ConfigurationError, match=f"preprocessor_config.json: {problem}|{problem}"):
        read(write_hugging_face(tmp_path, processor=processor))


def test_images_that_the_model_does_not_take_are_reported(tmp_path):
    write_hugging_face(tmp_path)
    write_classifier(tmp_path / "onnx" / "model.onnx", channels=1)
    model = read(tmp_path)
    assert model.preprocess == {}
    assert any(finding.outcome is ImportOutcome.MISSING for finding in model.findings)


def test_siblings_become_variants(tmp_path):
    write_hugging_face(tmp_path)
    for end in ("fp16", "quantized", "q4"):
        write_classifier(tmp_path / "onnx" / f"model_{end}.onnx", channels="channels")
    write_classifier(tmp_path / "onnx" / "model_int8.onnx", channels=1)
    model = read(tmp_path)
    assert [(each.name, each.precision) for each in model.variants] == [
        ("onnx-fp32", "fp32"),
        ("onnx-fp16", "fp16"),
        ("onnx-quantized", "int8"),
    ]
    assert set(left(model)) == {"onnx/model_q4.onnx", "onnx/model_int8.onnx"}


@pytest.mark.parametrize(
    ("labels", "problem"),
    [({"0": "a", "2": "b"}, "without gaps"), (["a"], "by their numbers"), ({"zero": "a"}, "without gaps")],
)
def test_wrong_labels_are_errors(tmp_path, labels, problem):
    with pytest.raises(ConfigurationError, match=problem):
        read(write_hugging_face(tmp_path, config={"id2label": labels}))


def test_labels_without_meaning_and_of_another_number_are_left_out(tmp_path):
    names = {str(number): f"LABEL_{number}" for number in range(3)}
    assert read(write_hugging_face(tmp_path, config={"id2label": names})).labels == ()
    model = read(write_hugging_face(tmp_path, config={"id2label": {"0": "a", "1": "b"}}))
    assert model.labels == ()
    assert any("names 2 classes, but the model has 3" in finding.text for finding in model.findings)


def test_several_labels_for_a_row(tmp_path):
    model = read(write_hugging_face(tmp_path, config={"problem_type": "multi_label_classification"}))
    assert model.outputs[0].postprocess == ""
    assert model.task_options == {"output": "logits", "activation": "sigmoid"}


def write_outputs(folder, architecture, outputs):
    """Write an export with outputs of these shapes; nothing runs it."""
    write_hugging_face(folder, config={"architectures": [architecture]})
    value = helper.make_tensor_value_info
    image = value("pixel_values", TensorProto.FLOAT, ["rows", 3, 8, 8])
    nodes = [helper.make_node("Identity", ["pixel_values"], [name]) for name in outputs]
    tensors = [value(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
    save(folder / "onnx" / "model.onnx", helper.make_graph(nodes, "net", [image], tensors))


@pytest.mark.parametrize("classes", [3, 4])
def test_a_detection_transformer(tmp_path, classes):
    outputs = {"logits": ["rows", 10, classes], "pred_boxes": ["rows", 10, 4]}
    write_outputs(tmp_path, "RTDetrForObjectDetection", outputs)
    model = settled(read(tmp_path))
    options = {"head": "detr", "boxes": "pred_boxes", "scores": "logits"}
    assert (model.task, model.task_options, left(model)) == ("object-detection", options, {})


def test_a_segmentation_of_images(tmp_path):
    write_outputs(tmp_path, "SegformerForSemanticSegmentation", {"logits": ["rows", 3, 2, 2]})
    model = settled(read(tmp_path))
    assert (model.task, model.task_options, left(model)) == (
        "semantic-segmentation",
        {"resize": "bilinear"},
        {},
    )


def test_text_needs_its_tokens(tmp_path):
    value = helper.make_tensor_value_info
    node = helper.make_node("Cast", ["input_ids"], ["logits"], to=TensorProto.FLOAT)
    tokens, scores = value("input_ids", TensorProto.INT64, ["n", 3]), value("logits", TensorProto.FLOAT, ["n", 3])
    save(tmp_path / "model.onnx", helper.make_graph([node], "bert", [tokens], [scores]))
    config = {"architectures": ["BertForSequenceClassification"], "model_type": "bert"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = read(tmp_path)
    assert (model.task, model.task_options) == ("text-classification", {"output": "logits"})
    assert "no tokenizer" in left(model)["tokenizer"]


def test_models_that_generate_are_refused(tmp_path):
    write_hugging_face(tmp_path)
    write_classifier(tmp_path / "onnx" / "decoder_model_merged.onnx")
    with pytest.raises(ConfigurationError, match="generates text"):
        read(tmp_path)
